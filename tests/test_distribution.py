"""Strategies from flags, batches over hosts and replicas, and two workers that train as one."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from small_corpus import small_corpus as small_corpus
from two_replicas import two_replicas

from official_bert import checkpoints, distribution
from official_bert.config import BertConfig


class CountedBatches:
    """Batch k holds the rows 100 k, 100 k + 1, … of one shard."""

    def __init__(self, shard_index, num_shards, batch_size=8):
        rows = batch_size // num_shards
        self._rows = np.arange(shard_index * rows, (shard_index + 1) * rows)

    def __getitem__(self, step):
        return {"input_ids": (100 * step + self._rows)[:, None].astype("int32")}


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_replica_gets_its_rows_of_each_global_batch_in_order(replicas):
    strategy = two_replicas() if replicas == 2 else tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = distribution.distribute(strategy, CountedBatches, range(3, 6))
    for step, batch in zip(range(3, 6), dataset):
        parts = strategy.experimental_local_results(batch["input_ids"])
        assert len(parts) == replicas
        rows = np.concatenate([part.numpy() for part in parts])
        np.testing.assert_array_equal(rows[:, 0], 100 * step + np.arange(8))


def test_each_name_gives_its_strategy():
    assert isinstance(distribution.make_strategy("mirrored", 0), tf.distribute.MirroredStrategy)
    assert isinstance(distribution.make_strategy("one_device", 0), tf.distribute.OneDeviceStrategy)
    assert distribution.make_strategy("off") is tf.distribute.get_strategy()
    for name in ("off", "one_device", "mirrored"):
        strategy = distribution.make_strategy(name)
        assert distribution.is_chief(strategy)
        assert not distribution.runs_on_accelerator(strategy)
        assert distribution.peak_flops(strategy, "bf16") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "horovod"}, "must be one of off, one_device"),
        ({"name": "parameter_server"}, "Asynchronous"),
        ({"name": "mirrored", "tpu": "mine"}, "distribution_strategy=tpu"),
        ({"name": "mirrored", "num_gpus": 99}, "this host shows"),
        ({"name": "mirrored", "worker_hosts": "a:1"}, "worker_hosts is for"),
        ({"name": "multi_worker_mirrored", "worker_hosts": "a:1,b:2"}, "task_index must be in 0"),
        ({"name": "mirrored", "num_gpus": 0, "all_reduce_alg": "ring"}, "nccl or hierarchical"),
        ({"name": "off", "all_reduce_alg": "nccl"}, "for several devices"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        distribution.make_strategy(**arguments)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def train_on(workers, corpus, folder):
    """Runs the command on so many worker processes of this host; returns the final tensors."""
    config = json.loads(corpus.config.to_json())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder.mkdir()
    (folder / "bert_config.json").write_text(BertConfig(**config).to_json())
    arguments = [
        f"--bert_config_file={folder}/bert_config.json",
        f"--input_files={corpus.train}",
        f"--eval_files={corpus.held_out}",
        f"--model_dir={folder}/model",
        "--max_seq_length=32",
        "--max_predictions_per_seq=5",
        "--train_batch_size=16",
        "--num_steps_per_epoch=6",
        "--num_train_epochs=1",
        "--warmup_steps=2",
        "--learning_rate=5e-3",
        "--optimizer_type=lamb",
        "--log_steps=3",
        "--save_checkpoints_steps=3",
    ]
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(workers))
    processes = []
    for index in range(workers):
        topology = ["--distribution_strategy=off"]
        if workers > 1:
            topology = [
                "--distribution_strategy=multi_worker_mirrored",
                f"--worker_hosts={hosts}",
                f"--task_index={index}",
            ]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "official_bert.run_pretraining", *arguments, *topology],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            )
        )
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * workers, outputs
    assert [("step 6/6" in output) for output in outputs] == [True] + [False] * (workers - 1)
    return checkpoints.CheckpointStore(folder / "model").latest().tensors()


@pytest.mark.slow
def test_two_worker_processes_give_the_weights_of_one(small_corpus, tmp_path):
    one = train_on(1, small_corpus, tmp_path / "one")
    two = train_on(2, small_corpus, tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-4, atol=1e-5, err_msg=name)
