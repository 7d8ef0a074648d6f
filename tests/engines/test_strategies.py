"""Strategies from flags, and batches over hosts and replicas."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import warm_python
import worker_processes
from two_replicas import two_replicas

from official_bert.engines import strategies, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.protocols import ArraySpec


class CountedBatches:
    """Batch k holds the rows 100 k, 100 k + 1, … of one shard."""

    def __init__(self, shard_index, num_shards, batch_size=8):
        rows = batch_size // num_shards
        self._rows = np.arange(shard_index * rows, (shard_index + 1) * rows)
        self.element_spec = {"input_ids": ArraySpec((rows, 1), np.int32)}

    def __getitem__(self, step):
        return {"input_ids": (100 * step + self._rows)[:, None].astype("int32")}


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_replica_gets_its_rows_of_each_global_batch_in_order(replicas):
    strategy = two_replicas() if replicas == 2 else tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = TfDistribute(strategy).feed(CountedBatches, range(3, 6))
    for step, batch in zip(range(3, 6), dataset):
        parts = strategy.experimental_local_results(batch["input_ids"])
        assert len(parts) == replicas
        rows = np.concatenate([part.numpy() for part in parts])
        np.testing.assert_array_equal(rows[:, 0], 100 * step + np.arange(8))


def test_one_replica_on_a_cpu_reads_without_a_tuner_to_wait_for():
    feed = TfDistribute(tf.distribute.MirroredStrategy(["CPU:0"])).feed(CountedBatches, range(2))
    assert isinstance(feed, tf.data.Iterator)  # one of tf.distribute would have a tuner of its own
    assert not feed._dataset.options().autotune.enabled
    assert [batch["input_ids"].numpy()[0, 0] for batch in feed] == [0, 100]


def test_each_name_gives_its_strategy():
    assert isinstance(strategies.make_strategy("mirrored", 0), tf.distribute.MirroredStrategy)
    assert isinstance(strategies.make_strategy("one_device", 0), tf.distribute.OneDeviceStrategy)
    assert strategies.make_strategy("off") is tf.distribute.get_strategy()
    for name in ("off", "one_device", "mirrored"):
        engine = TfDistribute(strategies.make_strategy(name))
        assert engine.is_chief
        assert not engine.runs_on_accelerator()
        assert engine.device_name() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "horovod"}, "must be one of off, one_device"),
        ({"name": "parameter_server"}, "Asynchronous"),
        ({"name": "mirrored", "tpu": "mine"}, "distribution_strategy must be tpu .*; got 'mirr"),
        ({"name": "mirrored", "num_gpus": 99}, "num_gpus must be at most .*; got 99"),
        ({"name": "mirrored", "worker_hosts": "a:1"}, "mirrored with worker_hosts; got"),
        ({"name": "mirrored", "task_index": 1}, "mirrored with task_index; got"),
        (
            {"name": "multi_worker_mirrored", "worker_hosts": "a:1,b:2", "task_index": 0}
            | {"num_gpus": 99},
            "num_gpus must be at most .*; got 99",
        ),
        ({"name": "multi_worker_mirrored", "worker_hosts": "a:1,b:2"}, "task_index must be in 0"),
        ({"name": "mirrored", "num_gpus": 0, "all_reduce_alg": "ring"}, "nccl or hierarchical"),
        ({"name": "off", "all_reduce_alg": "nccl"}, "with all_reduce_alg; got 'off'"),
        ({"name": "off", "num_gpus": 2}, "num_gpus must be 0 .*; got 2. Pass one_device or mirr"),
        ({"name": "tpu"}, "--tpu is required"),
        ({"name": "tpu", "tpu": "local"}, "No TPU could be reached as --tpu='local': .* rehearse"),
        ({"name": "one_device", "num_gpus": 2}, "at most 1 .*; got 2. Pass mirrored"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        strategies.make_strategy(**arguments)


def test_one_device_has_nothing_to_reduce_which_is_only_said(capsys):
    strategy = strategies.make_strategy("mirrored", all_reduce_alg="nccl", num_gpus=0)
    assert strategy.num_replicas_in_sync == 1
    said = capsys.readouterr().err
    assert said.startswith("warning: --all_reduce_alg has no effect with one device, CPU:0.")
    assert strategies.make_strategy("off", num_gpus=0) is tf.distribute.get_strategy()


def test_workers_in_tf_config_are_not_left_alone(monkeypatch):
    for cluster in ({"worker": ["a:1", "b:1"]}, {"chief": ["a:1"], "worker": ["b:1"]}):
        task = {"type": "worker", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        with pytest.raises(ValueError, match="the 2 workers of TF_CONFIG; got 'off'"):
            strategies.make_strategy("off")
    for one in ('{"cluster": {"worker": ["a:1"]}}', "{}", "not for us"):
        monkeypatch.setenv("TF_CONFIG", one)
        assert strategies.make_strategy("off") is tf.distribute.get_strategy()


def test_ctrl_c_ends_a_worker_that_waits_for_others():
    script = """
from official_bert.protocols import ArraySpec
from official_bert.engines import strategies
strategies.make_strategy(
    "multi_worker_mirrored", worker_hosts="127.0.0.1:{},127.0.0.1:{}", task_index=0
)
""".format(*worker_processes.free_ports(2))
    with warm_python.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert "waiting for the others" in process.stdout.readline()
            time.sleep(3)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(300) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_process_hears_itself_only_and_reads_everything(replicas):
    strategy = two_replicas() if replicas == 2 else tf.distribute.MirroredStrategy(["CPU:0"])
    engine = TfDistribute(strategy)
    assert engine.shard == (0, 1)
    np.testing.assert_array_equal(engine.all_gather([7, 8]), [[7, 8]])


def test_errors_of_a_lost_worker_are_told_from_others():
    lost = tf.errors.UnavailableError(
        None, None, "Collective ops is aborted by: … target /job:worker/replica:0/task:3: reset"
    )
    assert "TensorFlow names worker 3" in strategies.lost_worker(lost)
    heartbeat = tf.errors.InternalError(None, None, "Collective ops is aborted by: Deadline")
    assert "Another worker has ended" in strategies.lost_worker(heartbeat)
    for other in (tf.errors.InvalidArgumentError(None, None, "shapes"), KeyError("worker")):
        assert strategies.lost_worker(other) is None


@pytest.mark.parametrize(
    ("dtype", "gradients", "expected"),
    [
        (tf.float32, [256.0, 1.0], 257.0),
        (tf.bfloat16, [256.0, 1.0], 256.0),
        (tf.float16, [256.0, 1.0], 257.0),
        (tf.float16, [40000.0, 40000.0], np.inf),  # which the optimizer skips
    ],
)
def test_gradients_are_rounded_on_the_way_only_and_come_back_in_float32(dtype, gradients, expected):
    strategy = two_replicas()

    @tf.function(autograph=False)
    def summed():
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            gradient = tf.gather(tf.constant(gradients)[:, None], replica)
            return tf_update.sum_over_replicas([gradient], dtype)

        return strategy.experimental_local_results(strategy.run(on_replica)[0])

    for total in summed():
        assert total.dtype == tf.float32
        np.testing.assert_array_equal(total, [expected])
