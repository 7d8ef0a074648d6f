"""The loop on real text: it learns, it resumes exactly, and how it is cut up does not matter."""

import dataclasses
import io
import json
import os
import shutil
import signal
import threading
import time

import jax_training
import numpy as np
import pytest
import tensorflow as tf
from small_runs import (
    LONG,
    QUIET,
    SHORT,
    assert_same,
    begin,
    final_tensors,
    forget_after,
    log_lines,
    make_run,
    train,
)
from two_replicas import two_replicas

from official_bert import convert_checkpoint
from official_bert.commands import plots
from official_bert.data import input_pipeline, parsed_records
from official_bert.data.record_files import RecordFiles
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model import pretrainer
from official_bert.protocols import LoopState
from official_bert.stages import LoopOptions, Optimizer
from official_bert.training import (
    checkpoints,
    model_state,
    run_checks,
    stage_model,
    trainer,
    training_log,
)
from official_bert.training.trainer import Diverged


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


def test_the_loss_falls_on_real_text_and_the_files_are_all_there(small_corpus, tmp_path):
    run = make_run(
        small_corpus,
        [dataclasses.replace(SHORT, steps=120, learning_rate=2e-2, warmup_steps=10)],
    )
    options = LoopOptions(
        log_steps=20, eval_files=(small_corpus.held_out,), eval_steps=60, steps_per_loop=20
    )
    train(run, tmp_path, options)
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
    names = reader.get_variable_to_shape_map()
    ours = {name for name in names if name.startswith("optimizer/")}
    assert ours == {"optimizer/iterations", "optimizer/skipped_updates"}
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
    forget_after(copy_of_whole, last_step)
    train(make_run(small_corpus), copy_of_whole)
    assert_same(final_tensors(whole), final_tensors(copy_of_whole))
    assert log_lines(whole) == log_lines(copy_of_whole)


def test_how_steps_are_cut_into_calls_does_not_matter(small_corpus, whole, tmp_path):
    one = dataclasses.replace(QUIET, steps_per_loop=1, save_checkpoints_steps=3)
    train(make_run(small_corpus), tmp_path, one)
    assert_same(final_tensors(whole), final_tensors(tmp_path))
    assert log_lines(whole) == log_lines(tmp_path)


@pytest.mark.parametrize(("replicas", "accumulation"), [(2, 1), (1, 4)])
def test_replicas_and_micro_batches_give_the_weights_of_one_large_batch(
    small_corpus, whole, tmp_path, replicas, accumulation
):
    """With dropout, which follows from a row's place in the global batch; to round-off."""
    assert small_corpus.config.hidden_dropout_prob > 0
    run = make_run(small_corpus, [SHORT], gradient_accumulation_steps=accumulation)
    train(run, tmp_path, strategy=two_replicas() if replicas == 2 else None)
    found, wanted = (
        {name: v for name, v in store.at(SHORT.steps).tensors().items() if "/adam_" not in name}
        for store in map(checkpoints.CheckpointStore, (tmp_path, whole))
    )
    assert_same(found, wanted, rtol=1e-4, atol=1e-5)


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
    assert f"resuming from {copy_of_whole}/ctl_step_8.ckpt-2" in said
    assert_same(final_tensors(whole), final_tensors(copy_of_whole))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lamb", "orscale"])
def test_longer_sequences_begin_with_the_positions_of_the_shorter_ones(
    small_corpus, tmp_path, capsys, kind
):
    path = "bert/embeddings/position_embeddings"
    longer = dataclasses.replace(LONG, new_positions="repeat")
    still = dataclasses.replace(longer, learning_rate=0.0, steps=2)
    optimizer = Optimizer(type=kind)
    run = make_run(small_corpus, [SHORT, still, longer, still], optimizer=optimizer)
    options = dataclasses.replace(QUIET, save_checkpoints_steps=2, keep_checkpoint_max=0)
    train(run, tmp_path / "whole", options)
    store = checkpoints.CheckpointStore(tmp_path / "whole")
    before, after, moved, end = (store.at(step).tensors() for step in (8, 10, 14, 16))
    table = before[path]
    np.testing.assert_array_equal(after[path][:32], table[:32])
    np.testing.assert_array_equal(after[path][32:], table[32:] + table[:32])
    assert np.abs(table[32:]).sum() > 0  # their own initial values tell the blocks apart
    np.testing.assert_array_equal(end[path], moved[path])  # nothing is new to the last stage
    assert before.keys() == after.keys()
    assert after["optimizer/iterations"] == 10
    calibrations = [name for name in before if name.endswith("calibration")]
    assert bool(calibrations) == (kind == "orscale")
    for name in calibrations:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    said = capsys.readouterr().out
    assert said.count("positions 32 to 63 start with those of 0 to 31 added") == 1

    for step in (8, 10) if kind == "lamb" else (8,):  # at the boundary, and after it
        again = tmp_path / f"resumed_{step}"
        shutil.copytree(tmp_path / "whole", again)
        forget_after(again, step)
        train(run, again, options)
        assert_same(final_tensors(again), end)


def test_a_run_without_repeated_positions_is_described_as_before_there_were_any(small_corpus):
    stages = [SHORT, dataclasses.replace(LONG, new_positions="repeat")]
    described = make_run(small_corpus, stages).describe()["stages"]
    assert ["new_positions" in stage for stage in described] == [False, True]


def test_repeated_positions_are_for_runs_from_scratch_and_refused_with_their_name(
    small_corpus, whole
):
    stages = [SHORT, dataclasses.replace(LONG, new_positions="repeat")]
    with pytest.raises(ValueError, match='"fresh" with an init_checkpoint.*in stage 2'):
        make_run(small_corpus, stages, init_checkpoint="model")
    with pytest.raises(ValueError, match=r"stages\[1\].new_positions was .?fresh.? and is"):
        begin(make_run(small_corpus, stages), whole)


def test_repeated_positions_without_effect_are_warned_of(small_corpus):
    repeat = {"new_positions": "repeat"}
    stages = [dataclasses.replace(stage, **repeat) for stage in (SHORT, SHORT, LONG, LONG)]
    run = make_run(small_corpus, stages)
    model = pretrainer.BertPretrainer(run.config)
    said = [*run_checks.warnings(run, QUIET, 1, 0, model)]
    for line, stage, trained in zip(
        said, (1, 2, 4), ("0 of its 32", "32 of its 32", "64 of its 64")
    ):
        assert line.startswith(f"new_positions of stage {stage} has no effect"), line
        assert f"have trained {trained} positions" in line
    assert len(said) == 3


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            {"max_seq_length": 128, "max_predictions_per_seq": 20},
            "must be at most 64, the model's max_position",
        ),
        ({"max_predictions_per_seq": 6}, "max_predictions_per_seq"),
        ({"batch_size": 15}, "must be a multiple of 2 .*; got 15"),
    ],
)
def test_stages_that_do_not_fit_are_refused_before_any_work(small_corpus, tmp_path, stage, message):
    run = make_run(
        small_corpus, [dataclasses.replace(SHORT, **stage)], gradient_accumulation_steps=2
    )
    with pytest.raises(ValueError, match=message):
        begin(run, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_what_is_kept_is_refused(
    small_corpus, whole, copy_of_whole, monkeypatch
):
    """Room: for two checkpoints more than are kept, less what is there of the run's files."""
    run = make_run(small_corpus)
    sizes = {path: path.stat().st_size for path in whole.rglob("*.data-*") if path.is_file()}
    one = max(size for path, size in sizes.items() if path.name.startswith("ctl_step_12"))
    weights = max(size for path, size in sizes.items() if path.parent.name == "pretrained")
    keep_two = dataclasses.replace(QUIET, keep_checkpoint_max=2)  # of the three that it writes

    def refused(free, model_dir, options=keep_two):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
        try:
            begin(run, model_dir, options)
        except OSError as error:
            return str(error)
        return None

    new = copy_of_whole / "new"
    needed = 4 * one + 2 * weights
    said = refused(0.98 * needed, new)
    assert "4 checkpoints of 0.00" in said
    assert "keep_checkpoint_max=2, plus the one being written and the last known to be good" in said
    assert "Free some space, lower keep_checkpoint_max, or choose a folder on" in said
    assert not refused(1.02 * needed, new)
    held_out = dataclasses.replace(keep_two, eval_files=(small_corpus.held_out,))
    assert "best, first and final" in refused(1.02 * needed, new, held_out)
    assert not refused(1.02 * (needed + weights), new, held_out)
    all_kept = dataclasses.replace(keep_two, keep_checkpoint_max=0)
    assert "6 checkpoints" in refused(1.02 * needed, new, all_kept)
    assert refused(0.9 * one, copy_of_whole)
    assert not refused(1.02 * one, copy_of_whole)


def test_a_run_starts_from_weights_of_any_dialect_and_from_moments(
    small_corpus, whole, tmp_path, capsys
):
    prefix, wanted = whole / "pretrained" / "bert_model.ckpt-1", final_tensors(whole)
    files = {
        "bert_config_file": whole / "bert_config.json",
        "vocab_file": small_corpus.vocab_file,
    }
    convert_checkpoint.convert(prefix, tmp_path / "hf", "huggingface", **files)
    for start, dialect in ((prefix, ""), (tmp_path / "hf", "(Hugging Face): ")):
        run = make_run(small_corpus, [LONG], init_checkpoint=str(start))
        started = begin(run, tmp_path / f"from_{start.name}")
        for variable in started.model.weights:
            np.testing.assert_array_equal(variable.numpy(), wanted[variable.path])
        count = len(started.model.weights)
        assert f"{dialect}weights: carried {count} of {count}" in capsys.readouterr().out
    moments = dataclasses.replace(run, init_moments=True)
    with pytest.raises(
        ValueError, match=r"--init_checkpoint must have .*; got .* without the moments \("
    ):
        begin(moments, tmp_path / "b")
    convert_checkpoint.convert(whole, tmp_path / "tf1", "tf1", **files)
    for folder in whole, tmp_path / "tf1":
        moments = dataclasses.replace(moments, init_checkpoint=str(folder))
        started = begin(moments, tmp_path / f"from_{folder.name}")
        for variable in started.model.trainable_variables:
            for name, slot in started.optimizer.slots(variable).items():
                np.testing.assert_array_equal(slot.numpy(), wanted[f"{variable.path}/adam_{name}"])
        assert started.optimizer.iterations.numpy() == wanted["optimizer/iterations"] > 0


def test_weights_that_meant_something_else_are_refused(small_corpus, whole, tmp_path):
    for name, value in ("num_attention_heads", 4), ("hidden_act", "gelu_erf"):
        model = pretrainer.BertPretrainer(dataclasses.replace(small_corpus.config, **{name: value}))
        with pytest.raises(ValueError, match=f"{name} must be .*, with which the weights"):
            model_state.load_weights(model, whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"bert/pooler/dense/bias": [np.nan] * 32},
            "bert/pooler/dense/bias must have finite values; got",
        ),
        ({"bert/pooler/dense/bias": [0.0]}, r"the model's shape, \(32,\); got \(1,\) in"),
    ],
)
def test_an_init_checkpoint_that_would_spoil_the_run_is_refused(
    small_corpus, tmp_path, changed, message
):
    model = pretrainer.BertPretrainer(small_corpus.config)
    weights = {variable.path: variable.numpy() for variable in model.weights}
    changed = {name: np.float32(values) for name, values in changed.items()}
    checkpoints.write_bundle(tmp_path / "bert_model.ckpt", weights | changed)
    with pytest.raises(ValueError, match=message):
        model_state.load_weights(model, str(tmp_path / "bert_model.ckpt"))
    for variable in model.weights:
        np.testing.assert_array_equal(variable.numpy(), weights[variable.path])


def test_lars_learns_and_saves_its_momentum_which_another_run_takes_over(
    small_corpus, whole, tmp_path
):
    stage = dataclasses.replace(SHORT, steps=40, learning_rate=0.02)
    run = make_run(small_corpus, [stage], optimizer=Optimizer(type="lars"))
    train(run, tmp_path / "first")
    losses = [line["masked_lm_loss"] for line in log_lines(tmp_path / "first")]
    assert losses[-1] < losses[0] - 0.1
    before = final_tensors(tmp_path / "first")
    assert "bert/embeddings/word_embeddings/momentum" in before
    assert not [name for name in before if "adam" in name]
    start = {"init_checkpoint": str(tmp_path / "first"), "init_moments": True}
    begun = begin(dataclasses.replace(run, **start), tmp_path / "second")
    after = model_state.gather(begun.model, begun.optimizer, begun.engine.to_host)
    assert_same(after, {name: before[name] for name in after})
    lambs = dataclasses.replace(run, **start | {"init_checkpoint": str(whole)})
    with pytest.raises(
        ValueError, match="--init_checkpoint must have the momentum of LARS .*; got the moments of"
    ):
        begin(lambs, tmp_path / "third")


def assert_learned_with_float32_weights(model_dir):
    losses = [line["masked_lm_loss"] for line in log_lines(model_dir)]
    assert losses[-1] < next(filter(None, losses))
    dtypes = {str(value.dtype) for value in final_tensors(model_dir).values()}
    assert dtypes <= {"float32", "int64", "int32"}


def test_bfloat16_trains_with_float32_weights(small_corpus, tmp_path):
    run = make_run(small_corpus, [dataclasses.replace(SHORT, steps=30)], dtype="bf16")
    train(run, tmp_path)
    assert_learned_with_float32_weights(tmp_path)


def test_a_run_that_cannot_go_on_says_where_and_keeps_its_last_checkpoint(small_corpus, tmp_path):
    bad = dataclasses.replace(SHORT, steps=40, learning_rate=1e30, warmup_steps=10)
    options = dataclasses.replace(QUIET, max_skipped_updates=4, save_checkpoints_steps=1)
    with pytest.raises(Diverged, match=r"4 steps in a row.*Variables with such a gradient: "):
        train(make_run(small_corpus, [bad]), tmp_path, options)
    assert checkpoints.CheckpointStore(tmp_path).latest() is not None


@pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (2, 2)])
def test_the_row_whose_loss_is_not_finite_is_named(
    small_corpus, tmp_path, monkeypatch, replicas, accumulation
):
    read = input_pipeline.Batches.__getitem__

    def spoilt(batches, step):
        batch = read(batches, step)
        batch["masked_lm_weights"][13] = np.nan if step == 2 else 1.0
        return batch

    monkeypatch.setattr(input_pipeline.Batches, "__getitem__", spoilt)
    run = make_run(small_corpus, [SHORT], gradient_accumulation_steps=accumulation)
    options = dataclasses.replace(QUIET, max_skipped_updates=1, steps_per_loop=1)
    strategy = two_replicas() if replicas == 2 else tf.distribute.get_strategy()
    with pytest.raises(
        Diverged, match=r"step 2 .*not finite: masked_lm_loss.*enough to cause it: 13 "
    ):
        train(run, tmp_path, options, strategy)


def test_the_first_bad_row_is_found_by_asking_of_equally_many_rows_every_time():
    asked = []

    def is_bad(rows):
        asked.append(len(rows))
        return bool({5, 29} & {*rows})

    assert trainer._first_row(np.arange(1, 41, 4), is_bad) == 5
    assert {*asked} == {10}
    assert trainer._first_row(np.arange(7), lambda rows: len({*rows}) > 3) is None


def test_a_diagnosis_repeats_the_micro_batches_of_the_step(small_corpus):
    """Its rows, its dropout and its share of the loss: their sums are the step's."""
    run = make_run(small_corpus, [SHORT], gradient_accumulation_steps=4)
    strategy = two_replicas()
    with strategy.scope():
        model, optimizer = stage_model.make_model_and_optimizer(run, SHORT)
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    batches = input_pipeline.Batches(SHORT.resolve(run.input_files), 16, 32, 5, seed=1)
    parts = list(loop_state.micro_batches(run, 16, 2))
    assert sorted(np.concatenate(parts)) == list(range(16))
    sums = sum(
        tf_update.sums_and_gradients(run, model, batches[0], rows, 0, 1.0)[0] for rows in parts
    )
    iterator = TfDistribute(strategy).feed(lambda *shard: batches, range(1))
    state = loop(iterator, 0, 1, loop_state.first_state(run))
    np.testing.assert_allclose(sums, state.sums, rtol=1e-5)


def test_the_loss_scale_of_a_skipped_step_is_known_after_it(small_corpus):
    adapting = make_run(small_corpus, dtype="fp16")
    fixed = make_run(small_corpus, dtype="fp16", loss_scale="64")
    assert loop_state.loss_scale_before_skip(adapting, 64.0) == 128.0
    assert loop_state.loss_scale_before_skip(adapting, 1.0) == 1.0
    assert loop_state.loss_scale_before_skip(fixed, 64.0) == 64.0


def test_the_loss_scale_halves_at_an_overflow_and_the_log_tells_of_the_skipped_updates(
    small_corpus, tmp_path, monkeypatch, capsys
):
    """A window of such updates alone has null in the log, and a count in the line."""
    monkeypatch.setattr(loop_state, "FIRST_LOSS_SCALE", 2.0**40)
    monkeypatch.setattr(loop_state, "MAX_LOSS_SCALE", 2.0**40)
    run = make_run(small_corpus, [dataclasses.replace(SHORT, steps=40)], dtype="fp16")
    train(run, tmp_path, LoopOptions(log_steps=2, max_skipped_updates=100, tensorboard=True))
    tensors = final_tensors(tmp_path)
    total = tensors["optimizer/skipped_updates"]
    assert 5 < total < 40
    assert tensors["optimizer/iterations"] == 40 - total
    assert log_lines(tmp_path)[-1]["loss_scale"] == 2.0 ** (40 - total)
    assert_learned_with_float32_weights(tmp_path)

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


def test_each_evaluation_reads_every_held_out_batch_once_of_records_that_are_parsed_once(
    small_corpus, tmp_path, monkeypatch
):
    parsed, steps = [], []
    read, get_item = parsed_records.read, input_pipeline.Batches.__getitem__

    def counted(files, parse, runs):
        names = (files.name(files.first_of(run.block)) for run in runs)
        parsed.extend(name.split("/")[-1].split(",")[0] for name in names)
        return read(files, parse, runs)

    def counted_batch(self, step):
        if not self._plan.shuffle:
            steps.append(step)
        return get_item(self, step)

    monkeypatch.setattr(parsed_records, "read", counted)
    options = dataclasses.replace(QUIET, eval_files=(small_corpus.held_out,), eval_steps=2)
    begun = begin(make_run(small_corpus, [SHORT]), tmp_path, options)
    monkeypatch.setattr(input_pipeline.Batches, "__getitem__", counted_batch)
    begun.train()
    lines = [line for line in log_lines(tmp_path) if line["kind"] == "eval"]
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    blocks = RecordFiles(small_corpus.held_out.format(max_seq_length=32)).blocks
    assert parsed.count("held_out_32.tfrecord") == len(blocks)
    assert steps == [*range(begun._records.held_out(SHORT).num_batches)] * 4


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
            model = pretrainer.BertPretrainer(run.config)
        batches = input_pipeline.Batches([files], size, 32, 5, shuffle=False)
        evaluator = trainer.make_evaluator(run.task, model, TfDistribute(strategy))
        metrics = evaluator(lambda *_, batches=batches: batches)
        share = max(np.bincount(labels)) / len(labels)
        assert metrics["most_frequent_token_accuracy"] == pytest.approx(share)


def test_on_several_input_pipelines_every_held_out_record_counts_once(small_corpus, monkeypatch):
    """As on a TPU, each of whose hosts feeds its own replicas from a pipeline of one process."""
    run = make_run(small_corpus, [SHORT])
    files = small_corpus.held_out.format(max_seq_length=32)
    strategy = two_replicas()
    with strategy.scope():
        model = pretrainer.BertPretrainer(run.config)
    evaluator = trainer.make_evaluator(run.task, model, TfDistribute(strategy))

    def open_batches(shard_index, num_shards):
        shard = {"shard_index": shard_index, "num_shards": num_shards}
        return input_pipeline.Batches([files], 16, 32, 5, shuffle=False, **shard)

    alone = evaluator(open_batches)
    assert alone["examples"] == open_batches(0, 1).num_examples
    assert alone["examples"] % 16  # the last batch is not full
    feed = strategy.distribute_datasets_from_function

    def feed_from_two_hosts(for_host):
        def both(_):
            hosts = [for_host(tf.distribute.InputContext(2, host, 2)) for host in range(2)]
            return tf.data.Dataset.choose_from_datasets(hosts, tf.data.Dataset.range(2).repeat())

        return feed(both)

    monkeypatch.setattr(strategy, "distribute_datasets_from_function", feed_from_two_hosts)
    assert evaluator(open_batches) == pytest.approx(alone, rel=1e-6)


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
        record = {"loss": 1.0 / step, "step": step, "max_seq_length": 32, "records": "a"}
        checkpoints.save_best(tmp_path / "best", {"x": np.ones(1)}, record)
    parts = (".data-00000-of-00001", ".index")
    wanted = {f"ctl_step_8.ckpt-2{part}" for part in (*parts, ".json")}
    wanted |= {"best.json", "checkpoint", *(f"bert_model.ckpt-8{part}" for part in parts), *kept}
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == wanted


def test_a_kill_amid_the_removal_of_old_checkpoints_leaves_nothing_behind(
    small_corpus, copy_of_whole
):
    named = (copy_of_whole / "checkpoint").read_text()
    (copy_of_whole / "ctl_step_4.ckpt-1.json").unlink()
    (copy_of_whole / "ctl_step_4.ckpt-1.data-00000-of-00001").unlink()
    (copy_of_whole / "checkpoint").write_text('model_checkpoint_path: "ctl_step_4.ckpt-1"\n')
    train(make_run(small_corpus), copy_of_whole)
    assert not list(copy_of_whole.glob("ctl_step_4.*"))
    assert (copy_of_whole / "checkpoint").read_text() == named


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"max_seq_length": 32}', "\xff"])
def test_a_damaged_record_of_the_best_weights_is_replaced(tmp_path, text):
    (tmp_path / "best.json").write_bytes(text.encode("latin-1"))
    record = {"loss": 3.0, "step": 1, "max_seq_length": 32, "records": "a"}
    checkpoints.save_best(tmp_path, {"x": np.ones(1)}, record)
    assert json.loads((tmp_path / "best.json").read_text()) == record


class LateBatches:
    """One batch, handed out again and again; from step 4 on as soon as it may be."""

    def __init__(self, batch, element_spec):
        self.element_spec = element_spec
        self._batch, self.asked, self.may = batch, threading.Event(), threading.Event()

    def __getitem__(self, step):
        if step >= 4:
            self.asked.set()
            self.may.wait()
        return self._batch


def test_the_log_says_how_long_steps_waited_for_their_batches(small_corpus):
    run = make_run(small_corpus, [SHORT])
    strategy = tf.distribute.get_strategy()
    model = pretrainer.BertPretrainer(run.config)
    optimizer = run.optimizer.make()
    optimizer.build(model.trainable_variables)
    loop = tf_update.make_training_loop(run, model, optimizer, strategy)
    real = input_pipeline.Batches(SHORT.resolve(run.input_files), 16, 32, 5, seed=1)
    batches = LateBatches(real[0], real.element_spec)
    iterator = TfDistribute(strategy).feed(lambda *_: batches, range(5))
    state = loop(iterator, 0, 3, loop_state.first_state(run))  # traces
    batches.asked.wait()  # so that batch 3 is there
    began = time.monotonic()
    state = loop(iterator, 3, 1, dataclasses.replace(state, input_wait=0.0))
    assert state.input_wait < time.monotonic() - began
    threading.Timer(5.0, batches.may.set).start()  # long: a busy machine may begin to wait late
    state = loop(iterator, 4, 1, state)
    assert 1 < state.input_wait < time.monotonic() - began


# Early stopping


@pytest.mark.parametrize(
    ("losses", "best", "since"),
    [
        ([], None, 0),
        ([5.0, 4.0, 4.5], 1, 1),
        ([5.0, 5.0, 5.0], 0, 2),  # the same is not better
        ([np.nan, np.inf, -np.inf], None, 3),
        ([np.nan, 7.0, np.nan, 6.0], 3, 0),
    ],
)
def test_a_state_counts_the_evaluations_since_the_one_with_the_lowest_loss(losses, best, since):
    state = LoopState([1.0], [2.0], loss_scale=8.0)
    for number, loss in enumerate(losses):
        state = state.evaluated(10 * (number + 1), loss, "a")
    assert state.evaluations_since_best == since
    assert state.best_loss == (None if best is None else losses[best])
    assert state.best_step == (0 if best is None else 10 * (best + 1))
    assert (state.sums, state.sums_since_saved, state.loss_scale) == ([1.0], [2.0], 8.0)
    older = dataclasses.asdict(LoopState([1.0], [2.0], loss_scale=8.0))
    new = ("best_step", "best_loss", "evaluated_on", "evaluations_since_best")
    assert LoopState(**{name: older[name] for name in older if name not in new}).best_loss is None
    of_next_stage = state.without_best().evaluated(98, 200.0, "a")
    assert (of_next_stage.best_step, of_next_stage.evaluations_since_best) == (98, 0)
    others = state.evaluated(99, 100.0, "other examples")
    assert (others.best_step, others.best_loss, others.evaluations_since_best) == (99, 100.0, 0)


@pytest.fixture(scope="module")
def stopped_early(small_corpus, tmp_path_factory):
    """A job that stops early, its trainer and folder: the rate rises and rises."""
    first = {"steps": SHORT.steps, "learning_rate": 0.0}
    rising = {"steps": 400, "learning_rate": 10.0, "warmup_steps": 400}
    folder = tmp_path_factory.mktemp("early") / "model"
    job = jax_training.job(
        small_corpus,
        folder,
        stages=[first, rising],
        optimizer={"type": "adamw"},
        evaluates=True,
        options={"log_steps": 7, "eval_steps": 4, "early_stopping": 2, "steps_per_loop": 1},
    )
    trainer = train(jax_training.make_run(job), folder, jax_training.make_options(job))
    return job, trainer, folder


@pytest.mark.slow
def test_a_run_stops_after_evaluations_without_a_lower_loss_and_keeps_what_it_would_have(
    stopped_early, tmp_path
):
    _, trainer, folder = stopped_early
    run, options = trainer.run, trainer.options
    lines = log_lines(folder)
    held_out = {line["step"]: line["loss"] for line in lines if line["kind"] == "eval"}
    best = min(held_out, key=held_out.get)
    assert SHORT.steps < best == trainer.step - 2 * options.eval_steps
    assert [*held_out] == [*range(4, trainer.step + 1, 4)]
    first = SHORT.steps // 4 + 1
    assert not any(  # it stops at the first chance, in the last stage
        min(held_out[4 * n], held_out[4 * n + 4]) >= min(held_out[4 * m] for m in range(first, n))
        for n in range(first + 1, trainer.step // 4 - 1)
    )
    assert [line["step"] for line in lines if line["kind"] == "train"][-1] == trainer.step
    summary = json.loads((folder / "summaries" / "training_summary.txt").read_text())
    assert (summary["total_training_steps"], summary["stopped_early"]) == (trainer.step, True)
    assert (folder / f"best/bert_model.ckpt-{best}.index").exists()
    short = dataclasses.replace(run.stages[1], steps=trainer.step - SHORT.steps)
    plain = dataclasses.replace(options, early_stopping=0)
    train(dataclasses.replace(run, stages=(run.stages[0], short)), tmp_path / "plain", plain)
    assert_same(final_tensors(tmp_path / "plain"), final_tensors(folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["killed", "finished"])
def test_an_interrupted_run_stops_early_at_the_same_step_with_the_same_weights(
    stopped_early, tmp_path, capsys, kind
):
    job, trainer, folder = stopped_early
    run, options = trainer.run, trainer.options
    again = tmp_path / "again"
    if kind == "finished":
        shutil.copytree(folder, again)
    else:
        # After an evaluation without a lower loss, of a step later than the last checkpoint's.
        killed = job | {"model_dir": str(again), "killed_at": trainer.step - 3}
        ended = jax_training.run_process([killed], tmp_path, backend="tensorflow")
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    train(run, again, options)
    assert_same(final_tensors(again), final_tensors(folder))
    assert log_lines(again) == log_lines(folder)
    assert (again / "best/best.json").read_text() == (folder / "best/best.json").read_text()
    best = json.loads((folder / "best/best.json").read_text())
    assert (
        f"stopped early at step {trainer.step} of 408: 2 evaluations in a row without a lower "
        f"held-out loss than {best['loss']:.4g} of step {best['step']}; its weights: {again}/best/"
        f"bert_model.ckpt-{best['step']}\n"
    ) in capsys.readouterr().out
    if kind == "finished":
        more_patient = train(run, again, dataclasses.replace(options, early_stopping=3))
        assert more_patient.step == trainer.step + options.eval_steps


def test_a_signal_amid_a_line_that_is_being_printed_is_a_request_to_stop(monkeypatch):
    class Signals(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            os.kill(os.getpid(), signal.SIGTERM)
            return len(data)

    buffered = io.BufferedWriter(Signals())
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffered, write_through=True))
    with training_log.StopRequest() as stop:
        print("stage 1 of 1", flush=True)
    assert stop.requested


def test_the_best_weights_are_of_the_last_stage_even_if_the_one_before_was_as_good(
    small_corpus, tmp_path
):
    run = make_run(small_corpus, [SHORT, dataclasses.replace(SHORT, learning_rate=0.0)])
    options = dataclasses.replace(QUIET, eval_steps=4, eval_files=(small_corpus.held_out,))
    trainer = train(run, tmp_path, options)
    assert json.loads((tmp_path / "best/best.json").read_text())["step"] == SHORT.steps + 4
    assert (trainer._state.best_step, trainer._state.evaluations_since_best) == (SHORT.steps + 4, 1)


def test_early_stopping_needs_evaluations(small_corpus):
    for given in ({}, {"eval_steps": 4}, {"eval_files": (small_corpus.held_out,)}):
        with pytest.raises(ValueError, match="early_stopping must be 0 without evaluations"):
            LoopOptions(early_stopping=2, **given)
