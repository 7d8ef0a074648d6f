"""The loop on real text: it learns, it resumes exactly, and how it is cut up does not matter."""

import dataclasses
import json
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from small_corpus import small_corpus as small_corpus
from two_replicas import two_replicas

from official_bert import (
    checkpoints,
    disk_space,
    distribution,
    evaluation,
    input_pipeline,
    modeling,
    plots,
    pretraining_step,
    record_pools,
)
from official_bert.record_files import RecordFiles
from official_bert.stages import Optimizer, Reporting, Run, Stage
from official_bert.training import Diverged, Trainer

SHORT = Stage(
    steps=8,
    batch_size=16,
    max_seq_length=32,
    max_predictions_per_seq=5,
    learning_rate=5e-3,
    warmup_steps=3,
)
LONG = dataclasses.replace(
    SHORT, steps=4, batch_size=8, max_seq_length=64, max_predictions_per_seq=10
)
QUIET = Reporting(log_steps=4, save_checkpoints_steps=4, steps_per_loop=4)


def make_run(corpus, stages=(SHORT, LONG), **settings):
    settings.setdefault("config", corpus.config)
    settings.setdefault("optimizer", Optimizer())
    return Run(stages=tuple(stages), input_files=(corpus.train,), **settings)


def without_dropout(config):
    return dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def train(run, model_dir, reporting=QUIET, strategy=None):
    trainer = Trainer(run, reporting, strategy or tf.distribute.get_strategy(), model_dir)
    trainer.train()
    return trainer


def final_tensors(model_dir):
    return checkpoints.CheckpointStore(model_dir).latest().tensors()


def log_lines(model_dir):
    lines = map(json.loads, (model_dir / "train_log.jsonl").read_text().splitlines())
    return [{name: v for name, v in line.items() if name != "timing"} for line in lines]


@pytest.fixture(scope="module")
def whole(small_corpus, tmp_path_factory):
    """The model directory of an uninterrupted run of both stages."""
    folder = tmp_path_factory.mktemp("whole")
    train(make_run(small_corpus), folder)
    return folder


@pytest.fixture
def copy_of_whole(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def assert_same(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            np.testing.assert_allclose(a[name], b[name], err_msg=name, **tolerance)
        else:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_the_loss_falls_on_real_text_and_the_files_are_all_there(small_corpus, tmp_path):
    run = make_run(
        small_corpus,
        [dataclasses.replace(SHORT, steps=120, learning_rate=2e-2, warmup_steps=10)],
    )
    reporting = Reporting(
        log_steps=20, eval_files=(small_corpus.held_out,), eval_steps=60, steps_per_loop=20
    )
    train(run, tmp_path, reporting)
    lines = log_lines(tmp_path)
    losses = [line["masked_lm_loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.7
    evaluations = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [60, 120]
    assert evaluations[1]["masked_lm_loss"] < evaluations[0]["masked_lm_loss"]
    summary = json.loads((tmp_path / "summaries" / "training_summary.txt").read_text())
    assert summary["total_training_steps"] == 120
    assert summary["held_out"]["masked_lm_accuracy"] == evaluations[1]["masked_lm_accuracy"]
    exported = checkpoints.read_tensors(tmp_path / "pretrained" / "bert_model.ckpt-1")
    final = final_tensors(tmp_path)
    assert exported
    assert all(np.array_equal(exported[name], final[name]) for name in exported)
    assert (tmp_path / "bert_config.json").exists()


def test_checkpoints_have_the_names_of_the_official_ones(small_corpus, whole):
    prefix = tf.train.latest_checkpoint(whole)
    assert prefix == str(whole / "ctl_step_12.ckpt-3")
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor("global_step") == 12
    for name in ("", "/adam_m", "/adam_v"):
        assert reader.get_tensor(f"bert/embeddings/word_embeddings{name}").shape == (
            small_corpus.config.vocab_size,
            32,
        )


@pytest.mark.parametrize("last_step", [4, 8])  # inside a stage, and between two
def test_a_run_gone_on_with_equals_one_that_was_never_interrupted(
    small_corpus, whole, copy_of_whole, last_step
):
    for path in copy_of_whole.glob("ctl_step_*.json"):  # as if killed after `last_step`
        if json.loads(path.read_text())["step"] > last_step:
            path.unlink()
    train(make_run(small_corpus), copy_of_whole)
    assert_same(final_tensors(whole), final_tensors(copy_of_whole))
    assert log_lines(whole) == log_lines(copy_of_whole)


def test_how_steps_are_cut_into_calls_does_not_matter(small_corpus, whole, tmp_path):
    one = dataclasses.replace(QUIET, steps_per_loop=1, save_checkpoints_steps=3)
    train(make_run(small_corpus), tmp_path, one)
    assert_same(final_tensors(whole), final_tensors(tmp_path))
    assert log_lines(whole) == log_lines(tmp_path)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_two_replicas_give_the_weights_of_one(small_corpus, tmp_path, optimizer):
    """Without dropout, whose masks are drawn per replica; to the round-off of other sums."""
    run = make_run(
        small_corpus,
        [SHORT],
        config=without_dropout(small_corpus.config),
        optimizer=Optimizer(type=optimizer),
    )
    train(run, tmp_path / "one")
    train(run, tmp_path / "two", strategy=two_replicas())
    weights = [
        {k: v for k, v in final_tensors(tmp_path / name).items() if "/adam_" not in k}
        for name in ("one", "two")
    ]
    assert_same(*weights, rtol=1e-4, atol=1e-5)


def test_micro_batches_give_the_weights_of_one_large_batch(small_corpus, tmp_path):
    config = without_dropout(small_corpus.config)
    run = make_run(small_corpus, [SHORT], config=config)
    train(run, tmp_path / "one")
    train(dataclasses.replace(run, gradient_accumulation_steps=4), tmp_path / "four")
    weights = [
        {k: v for k, v in final_tensors(tmp_path / name).items() if "/adam_" not in k}
        for name in ("one", "four")
    ]
    assert_same(*weights, rtol=1e-4, atol=1e-5)


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    small_corpus, whole, copy_of_whole, capsys
):
    data = copy_of_whole / "ctl_step_12.ckpt-3.data-00000-of-00001"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    train(make_run(small_corpus), copy_of_whole)
    said = capsys.readouterr().out
    assert "ctl_step_12.ckpt-3 is damaged" in said
    assert f"goes on from {copy_of_whole}/ctl_step_8.ckpt-2" in said
    assert_same(final_tensors(whole), final_tensors(copy_of_whole))


def test_the_directory_of_another_run_is_refused_with_the_differences(small_corpus, whole):
    other = make_run(small_corpus, [dataclasses.replace(SHORT, learning_rate=1.0), LONG])
    with pytest.raises(ValueError, match=r"stages\[0\].learning_rate was 0.005 and is 1.0"):
        Trainer(other, QUIET, tf.distribute.get_strategy(), whole)


def test_foreign_checkpoints_are_refused(small_corpus, tmp_path):
    checkpoints.write_bundle(tmp_path / "model.ckpt-5", {"x": np.ones(3)})
    with pytest.raises(ValueError, match=r"no run\.json"):
        Trainer(make_run(small_corpus), QUIET, tf.distribute.get_strategy(), tmp_path)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"max_seq_length": 128, "max_predictions_per_seq": 20}, "max_position_embeddings is 64"),
        ({"max_predictions_per_seq": 6}, "max_predictions_per_seq"),
        ({"batch_size": 15}, "not a multiple of 2"),
    ],
)
def test_stages_that_do_not_fit_are_refused_before_any_work(small_corpus, tmp_path, stage, message):
    run = make_run(
        small_corpus, [dataclasses.replace(SHORT, **stage)], gradient_accumulation_steps=2
    )
    with pytest.raises(ValueError, match=message):
        Trainer(run, QUIET, tf.distribute.get_strategy(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_what_is_kept_is_refused(
    small_corpus, whole, copy_of_whole, monkeypatch
):
    """Room: for one checkpoint more than are kept, less what is there of the run's files."""
    run = make_run(small_corpus)
    sizes = {path: path.stat().st_size for path in whole.rglob("*.data-*") if path.is_file()}
    one = max(size for path, size in sizes.items() if path.name.startswith("ctl_step_12"))
    weights = max(size for path, size in sizes.items() if path.parent.name == "pretrained")
    keep_two = dataclasses.replace(QUIET, keep_checkpoint_max=2)  # of the three that it writes

    def refused(free, model_dir, reporting=keep_two):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: usage)
        try:
            Trainer(run, reporting, tf.distribute.get_strategy(), model_dir)
        except OSError as error:
            return str(error)
        return None

    new = copy_of_whole / "new"
    needed = 3 * one + weights
    said = refused(0.98 * needed, new)
    assert "3 checkpoints of 0.00" in said
    assert "keep_checkpoint_max=2 and the one being written" in said
    assert "Free some space, lower keep_checkpoint_max, or choose a model_dir" in said
    assert not refused(1.02 * needed, new)
    held_out = dataclasses.replace(keep_two, eval_files=(small_corpus.held_out,))
    assert "best and final" in refused(1.02 * needed, new, held_out)
    assert not refused(1.02 * (needed + weights), new, held_out)
    all_kept = dataclasses.replace(keep_two, keep_checkpoint_max=0)
    assert "6 checkpoints" in refused(1.02 * needed, new, all_kept)
    assert not refused(0.02 * needed, copy_of_whole)


def test_weights_carry_over_through_init_checkpoint(small_corpus, whole, tmp_path, capsys):
    prefix = str(whole / "pretrained" / "bert_model.ckpt-1")
    run = make_run(small_corpus, [LONG], init_checkpoint=prefix)
    started = Trainer(run, QUIET, tf.distribute.get_strategy(), tmp_path)
    wanted = final_tensors(whole)
    for variable in started.model.weights:
        np.testing.assert_array_equal(variable.numpy(), wanted[variable.path])
    count = len(started.model.weights)
    assert f"carried {count} of {count}" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_low_precision_trains_with_float32_weights(small_corpus, tmp_path, dtype):
    run = make_run(small_corpus, [dataclasses.replace(SHORT, steps=30)], dtype=dtype)
    train(run, tmp_path)
    lines = log_lines(tmp_path)
    assert lines[-1]["masked_lm_loss"] < lines[0]["masked_lm_loss"]
    assert all(v.dtype in ("float32", "int64", "int32") for v in final_tensors(tmp_path).values())


def test_the_loss_scale_halves_at_an_overflow_and_the_update_is_skipped(
    small_corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretraining_step, "FIRST_LOSS_SCALE", 2.0**40)
    monkeypatch.setattr(pretraining_step, "MOST_LOSS_SCALE", 2.0**40)
    run = make_run(small_corpus, [dataclasses.replace(SHORT, steps=40)], dtype="fp16")
    train(run, tmp_path, dataclasses.replace(QUIET, max_skipped_updates=100))
    tensors = final_tensors(tmp_path)
    skipped = tensors["optimizer/skipped_updates"]
    assert 5 < skipped < 40
    assert tensors["optimizer/iterations"] == 40 - skipped
    assert log_lines(tmp_path)[-1]["loss_scale"] == 2.0 ** (40 - skipped)


def test_a_run_that_cannot_go_on_says_where_and_keeps_its_last_checkpoint(small_corpus, tmp_path):
    bad = dataclasses.replace(SHORT, steps=40, learning_rate=1e30, warmup_steps=10)
    reporting = dataclasses.replace(QUIET, max_skipped_updates=4, save_checkpoints_steps=1)
    with pytest.raises(Diverged, match=r"4 steps in a row.*Variables whose gradient is not"):
        train(make_run(small_corpus, [bad]), tmp_path, reporting)
    assert checkpoints.CheckpointStore(tmp_path).latest() is not None


def test_a_window_of_skipped_updates_alone_has_null_in_the_log_and_a_count_in_the_line(
    small_corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pretraining_step, "FIRST_LOSS_SCALE", 2.0**40)
    monkeypatch.setattr(pretraining_step, "MOST_LOSS_SCALE", 2.0**40)
    run = make_run(small_corpus, [dataclasses.replace(SHORT, steps=40)], dtype="fp16")
    train(run, tmp_path, Reporting(log_steps=2, max_skipped_updates=100, tensorboard=True))

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    text = (tmp_path / "train_log.jsonl").read_text()
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    skipped = np.diff([0, *(line["skipped_updates"] for line in lines)])
    assert {0, 2} <= {*skipped}
    for line, count, words in zip(lines, skipped, said, strict=True):
        for name in ("loss", "masked_lm_loss", "next_sentence_accuracy"):
            assert (line[name] is None) == (count == 2)
        assert line["gradient_norm"] is None or count < 2
        assert ("loss" in words) == (count < 2)
        assert (f"{count} skipped  rate" in words) == (count > 0)
    assert len(plots.plot_log(tmp_path / "train_log.jsonl", tmp_path / "plots")) == 4


def test_held_out_records_are_parsed_once_however_often_they_are_evaluated(
    small_corpus, tmp_path, monkeypatch
):
    parsed = []
    read = record_pools.PoolReader.__call__

    def counted(self, runs):
        parsed.extend(self._name([run], 0).split("/")[-1].split(",")[0] for run in runs)
        return read(self, runs)

    monkeypatch.setattr(record_pools.PoolReader, "__call__", counted)
    reporting = dataclasses.replace(QUIET, eval_files=(small_corpus.held_out,), eval_steps=2)
    train(make_run(small_corpus, [SHORT]), tmp_path, reporting)
    lines = [line for line in log_lines(tmp_path) if line["kind"] == "eval"]
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    blocks = RecordFiles(small_corpus.held_out.format(max_seq_length=32)).blocks
    assert parsed.count("held_out_32.tfrecord") == len(blocks)


def test_the_most_frequent_token_is_that_of_all_held_out_labels(small_corpus, tmp_path):
    run = make_run(small_corpus, [SHORT])
    files = small_corpus.held_out.format(max_seq_length=32)
    labels = []
    for record in tf.data.TFRecordDataset([files]).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        ids = features["masked_lm_ids"].int64_list.value
        weights = features["masked_lm_weights"].float_list.value
        labels += [token for token, weight in zip(ids, weights, strict=True) if weight]
    for strategy, size in ((tf.distribute.get_strategy(), 32), (two_replicas(), 10)):
        with strategy.scope():
            model = modeling.BertPretrainer(run.config)
        batches = input_pipeline.Batches([files], size, 32, 5, shuffle=False)
        metrics = evaluation.Evaluator(model, strategy)(batches)
        share = max(np.bincount(labels)) / len(labels)
        assert metrics["most_frequent_token_accuracy"] == pytest.approx(share)


def test_what_a_kill_left_half_written_goes_with_the_next_checkpoint(tmp_path):
    left = [".writing-ctl_step_3.ckpt-1/bundle.index", "ctl_step_3.ckpt-1.index"]
    left += ["best/.writing-bert_model.ckpt-3/x", "best/bert_model.ckpt-3.data-00000-of-00001"]
    kept = ["bert_model.ckpt-7.index", "notes.txt"]
    for name in left + kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("left")
    store = checkpoints.CheckpointStore(tmp_path, keep=1)
    for step in (4, 8):
        store.save({"global_step": np.int64(step)}, step, state={})
        record = {"loss": 1.0 / step, "step": step, "max_seq_length": 32}
        checkpoints.save_best(tmp_path / "best", lambda: {"x": np.ones(1)}, record)
    parts = (".data-00000-of-00001", ".index")
    wanted = {f"ctl_step_8.ckpt-2{part}" for part in (*parts, ".json")}
    wanted |= {"best.json", "checkpoint", *(f"bert_model.ckpt-8{part}" for part in parts), *kept}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == wanted


def test_weights_of_a_loss_that_is_no_number_are_not_the_best(tmp_path):
    for loss in (float("nan"), 3.0, float("inf"), float("nan")):
        record = {"loss": loss, "step": 1, "max_seq_length": 32}
        checkpoints.save_best(tmp_path, lambda loss=loss: {"loss": np.float32(loss)}, record)
    assert json.loads((tmp_path / "best.json").read_text())["loss"] == 3.0
    assert checkpoints.read_tensors(tmp_path / "bert_model.ckpt-1") == {"loss": 3.0}


def test_one_reduction_of_the_gradients_an_update_however_many_micro_batches(small_corpus):
    """Counted in the graph: of one update with 4 micro-batches, by size of what is reduced."""
    counts = [_gradient_reductions(small_corpus, micro_batches) for micro_batches in (1, 4)]
    assert counts[0] == counts[1] > 0


def _gradient_reductions(small_corpus, micro_batches):
    devices = tf.distribute.ReductionToOneDevice()  # of its own, since its calls are counted
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], devices)
    run = make_run(small_corpus, [SHORT], gradient_accumulation_steps=micro_batches)
    with strategy.scope():
        model = modeling.BertPretrainer(run.config)
        optimizer = run.optimizer.make()
        optimizer.build(model.trainable_variables)
    calls = []
    reduce = strategy.extended._cross_device_ops.batch_reduce

    def counted(reduce_op, pairs, *args, **kwargs):
        calls.append(len(pairs))
        return reduce(reduce_op, pairs, *args, **kwargs)

    strategy.extended._cross_device_ops.batch_reduce = counted
    loop = pretraining_step.make_training_loop(run, model, optimizer, strategy)
    batches = input_pipeline.Batches(SHORT.resolve(run.input_files), 16, 32, 5, seed=1)
    iterator = iter(distribution.distribute(strategy, lambda *shard: batches, range(2)))
    loop(iterator, 0, 2, pretraining_step.first_state(run))
    return sum(calls)


class SlowBatches:
    """One batch, handed out again and again after some seconds."""

    def __init__(self, batch, seconds):
        self._batch, self._seconds = batch, seconds

    def __getitem__(self, step):
        time.sleep(self._seconds)
        return self._batch


def test_the_log_says_how_long_steps_waited_for_their_batches(small_corpus):
    run = make_run(small_corpus, [SHORT])
    strategy = tf.distribute.get_strategy()
    model = modeling.BertPretrainer(run.config)
    optimizer = run.optimizer.make()
    optimizer.build(model.trainable_variables)
    loop = pretraining_step.make_training_loop(run, model, optimizer, strategy)
    batch = input_pipeline.Batches(SHORT.resolve(run.input_files), 16, 32, 5, seed=1)[0]
    waits = {}
    for seconds in (0.0, 0.3):
        batches = SlowBatches(batch, seconds)
        steps = range(8)
        iterator = iter(distribution.distribute(strategy, lambda *_, b=batches: b, steps))
        state = loop(iterator, 0, 3, pretraining_step.first_state(run))  # traces; empties prefetch
        waits[seconds] = loop(iterator, 3, 5, state | {"input_wait": 0.0})["input_wait"]
    assert waits[0.3] == pytest.approx(1.5, abs=0.5)
    assert waits[0.0] < 0.2
