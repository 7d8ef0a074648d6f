"""A model directory: whose it is, what is changed on purpose, and that nothing is written over."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from bert_shapes import tiny
from small_runs import (
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

from official_bert.data import records
from official_bert.data.record_files import RecordFiles
from official_bert.model.config import BertConfig
from official_bert.training import checkpoints, model_directory, model_state
from official_bert.training.run_files import Abandoned
from official_bert.training.trainer import Trainer

CONFIG = tiny(vocab_size=300)
DESCRIPTION = {"stages": [{"steps": 8, "warmup_steps": 2}], "seed": 1, "records": ["0a"]}
TENSORS, STATE = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
LONGER = dataclasses.replace(SHORT, steps=12)
SLOWER = dataclasses.replace(SHORT, learning_rate=1e-3)


@pytest.fixture(scope="module")
def whole(small_corpus, tmp_path_factory):
    """The model directory of a run of 8 steps with checkpoints of 4 and 8."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    train(make_run(small_corpus, [SHORT]), folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def changes(model_dir):
    return json.loads((model_dir / "run.json").read_text())["changes"]


def test_a_run_is_lengthened_by_more_steps_which_log_and_run_json_tell(
    small_corpus, folder, capsys
):
    longer = make_run(small_corpus, [LONGER])
    train(longer, folder)
    difference = "stages[0].steps was 8 and is 12"
    assert changes(folder) == [{"resumed_from": "ctl_step_8.ckpt-2", "differences": [difference]}]
    lines = log_lines(folder)
    assert [(line["kind"], line["step"]) for line in lines] == [
        *(("train", 4), ("train", 8), ("change", 8), ("train", 12))
    ]
    assert lines[2]["differences"] == [difference]
    assert f"{difference}; next learning rate 0.00222" in capsys.readouterr().out
    expected = final_tensors(folder)
    forget_after(folder, 8)
    train(longer, folder)
    assert_same(final_tensors(folder), expected)
    assert len(changes(folder)) == 1
    with pytest.raises(ValueError, match=r"stages\[0\].steps was 12 and is 8"):
        begin(make_run(small_corpus, [SHORT]), folder)


def test_a_run_returns_to_a_checkpoint_with_another_rate_only_if_told_to(
    small_corpus, folder, capsys
):
    slower = make_run(small_corpus, [SLOWER])
    with pytest.raises(ValueError, match=r"learning_rate was 0.005 and is 0.001.*--resume_from"):
        begin(slower, folder)
    before = (folder / "train_log.jsonl").read_text()
    begin(slower, folder, resume_from=4).train()
    difference = "stages[0].learning_rate was 0.005 and is 0.001"
    names = {"resumed_from": "ctl_step_4.ckpt-1", "instead_of": "ctl_step_8.ckpt-2"}
    assert changes(folder) == [names | {"differences": [difference]}]
    said = capsys.readouterr().out
    assert "ctl_step_4.ckpt-1 instead of ctl_step_8.ckpt-2, settings changed: " + difference in said
    assert [(line["kind"], line["step"]) for line in log_lines(folder)] == [
        *(("train", 4), ("change", 4), ("train", 8))
    ]
    assert log_lines(folder)[2]["learning_rate"] == pytest.approx(1e-3 / 5)
    assert (folder / "train_log.ctl_step_8.ckpt-2.jsonl").read_text() == before
    assert tf.train.latest_checkpoint(folder) == str(folder / "ctl_step_8.ckpt-3")
    expected = final_tensors(folder)
    begin(slower, folder, resume_from=4).train()  # the same command, once more
    assert (
        "resume_from has no effect: the run has already returned there" in capsys.readouterr().out
    )
    begin(slower, folder).train()
    assert len(changes(folder)) == 1
    assert_same(final_tensors(folder), expected)


def test_a_run_killed_right_after_its_return_resumes_where_it_returned_to(
    small_corpus, folder, monkeypatch
):
    slower = make_run(small_corpus, [SLOWER])
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_stage", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            begin(slower, folder, resume_from=4).train()
    assert begin(slower, folder)._checkpoint.step == 4
    assert begin(slower, folder, resume_from=4)._checkpoint.step == 4
    assert len(changes(folder)) == 1


@pytest.mark.parametrize(
    ("changed", "step", "message"),
    [
        ({}, 5, r"a complete checkpoint in .*; got 5\. Steps with a checkpoint: 4, 8\."),
        ({"batch_size": 8}, 4, r"batch_size was 16 and is 8\. Use that run's settings, or choose"),
        ({"steps": 6}, 4, "steps was 8 and is 6"),
    ],
)
def test_a_return_changes_neither_shapes_nor_what_is_behind(
    small_corpus, whole, changed, step, message
):
    with pytest.raises(ValueError, match=message):
        begin(
            make_run(small_corpus, [dataclasses.replace(SHORT, **changed)]), whole, resume_from=step
        )


def test_there_is_no_return_in_an_empty_directory(small_corpus, tmp_path):
    with pytest.raises(
        ValueError, match=r"resume_from must be .*; got 4, but no run has begun there"
    ):
        begin(make_run(small_corpus, [SHORT]), tmp_path / "new", resume_from=4)


def test_records_replaced_under_the_same_names_are_noticed_and_taken_if_told_to(
    small_corpus, whole, folder, tmp_path
):
    for length in (32, 64):
        shutil.copytree(small_corpus.folder, tmp_path / str(length))
    for path in (tmp_path / "64").glob("train_32.*"):
        path.unlink()
    shutil.copy(tmp_path / "64/held_out_32.tfrecord", tmp_path / "64/train_32.tfrecord")
    found = [
        RecordFiles(str(tmp_path / name / "train_32.tfrecord*")).fingerprint()
        for name in ("32", "64")
    ]
    description = json.loads((whole / "run.json").read_text())
    assert description["records"] == [found[0]] != [found[1]]
    others = description | {"records": [found[1]]}
    message = "the records of stage 1 have changed.*--resume_from=STEP"
    with pytest.raises(ValueError, match=message):
        model_directory.check(whole, small_corpus.config, others)
    assert model_directory.check(whole, small_corpus.config, others, resume_from=4).differences


def test_the_same_records_are_the_same_run_however_they_are_spelled(
    small_corpus, whole, folder, tmp_path, monkeypatch
):
    """Relative, moved, and without a manifest."""
    monkeypatch.chdir(small_corpus.folder)
    moved, bare = tmp_path / "moved", tmp_path / "bare"
    shutil.copytree(small_corpus.folder, moved)
    shutil.copytree(small_corpus.folder, bare, ignore=shutil.ignore_patterns("*.manifest.json"))
    for pattern in "./train_32.tfrecord-*", f"{moved}/train_32.*-*", f"{bare}/train_32.*-*":
        run = dataclasses.replace(make_run(small_corpus, [SHORT]), input_files=(pattern,))
        assert not begin(run, whole)._claim.differences
        of_stage = dataclasses.replace(SHORT, input_files=(pattern,))
        assert not begin(make_run(small_corpus, [of_stage]), whole)._claim.differences
    train(run, folder)  # to its end, which it has reached
    assert json.loads((folder / "run.json").read_text())["input_files"] == [pattern]
    assert "changes" not in json.loads((folder / "run.json").read_text())


def test_other_records_are_another_run_whatever_their_name_and_size(small_corpus, whole, tmp_path):
    """One record is changed in the middle of a file: not a byte more, its checksums correct."""
    for path in small_corpus.folder.glob("train_32.*"):
        shutil.copy(path, tmp_path)
    shard = sorted(tmp_path.glob("train_32.tfrecord-*"))[0]
    payloads = list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator())
    middle = len(payloads) // 2 + 1
    payloads[middle] = payloads[middle - 1][: len(payloads[middle])]
    ids = tf.train.Example.FromString(payloads[middle - 1])
    ids.features.feature["input_ids"].int64_list.value[2] ^= 1
    payloads[middle - 1] = ids.SerializeToString()
    payloads[middle] = list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator())[middle]
    shard.write_bytes(b"".join(map(records.frame, payloads)))
    pattern = str(tmp_path / "train_32.tfrecord-*")
    run = dataclasses.replace(make_run(small_corpus, [SHORT]), input_files=(pattern,))
    with pytest.raises(ValueError, match="the records of stage 1 have changed"):
        begin(run, whole)


def test_initial_weights_are_known_by_their_content(small_corpus, whole, tmp_path, monkeypatch):
    prefix = tmp_path / "a" / "bert.ckpt-1"
    checkpoints.write_bundle(prefix, final_tensors(whole))
    run = make_run(small_corpus, [SHORT], init_checkpoint=str(prefix))
    train(run, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    for path in ("a/bert.ckpt-1", "./a/bert.ckpt-1", "moved", str(tmp_path / "moved")):
        again = dataclasses.replace(run, init_checkpoint=path)
        assert not begin(again, tmp_path / "model")._claim.differences
    other = final_tensors(whole) | {"bert/pooler/dense/bias": np.ones(32, np.float32)}
    checkpoints.write_bundle(prefix, other)
    with pytest.raises(ValueError, match=r"init_checkpoint holds other weights.*--resume_from"):
        begin(run, tmp_path / "model")
    shutil.rmtree(tmp_path / "a")  # no longer needed
    forget_after(tmp_path / "model", 4)
    monkeypatch.setattr(model_state, "load_weights", None)
    resumed = begin(run, tmp_path / "model")
    assert not resumed._claim.differences
    resumed._restore()
    assert resumed.step == 4
    with pytest.raises(ValueError, match="init_checkpoint was .* and is"):
        begin(dataclasses.replace(run, init_checkpoint="gone/b"), tmp_path / "model")
    described = json.loads((tmp_path / "model" / "run.json").read_text())
    assert len(described["init_weights"]) == 64


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.keras", "model-00002-of-2.safetensors"]
)
def test_initial_weights_of_every_format_have_a_digest_of_their_content(tmp_path, name):
    def digest(folder, content):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model-00001-of-2.safetensors").write_bytes(b"first")
        (tmp_path / folder / "model.safetensors.index.json").write_text("{}")
        (tmp_path / folder / name).write_bytes(content)
        file = "model.safetensors.index.json" if "-of-" in name else name
        return model_state.digest(tmp_path / folder / file)

    found = [digest(*each) for each in (("a", b"one"), ("b", b"one"), ("c", b"two"))]
    assert found[0] == found[1] != found[2]
    assert model_state.digest(tmp_path / "none") is None


def test_workers_may_name_the_same_files_by_other_paths():
    mine = {"stages": [{"input_files": ["/a/x"], "steps": 8}], "input_files": ["/a/y"], "seed": 1}
    theirs = {"stages": [{"input_files": ["b"], "steps": 8}], "init_checkpoint": "c", "seed": 1}
    assert model_directory.deciding(mine) == model_directory.deciding(theirs)
    assert model_directory.deciding(mine) != model_directory.deciding(mine | {"seed": 2})


def evaluated_on(*files):
    return dataclasses.replace(QUIET, eval_steps=4, eval_files=files)


STILL = dataclasses.replace(SHORT, learning_rate=0.0)  # its loss stays the same


def best_of(folder):
    return json.loads((folder / "best" / "best.json").read_text())


def test_the_best_weights_are_not_chosen_by_losses_on_other_held_out_records(
    small_corpus, tmp_path, capsys
):
    run, folder = make_run(small_corpus, [STILL]), tmp_path / "model"
    train(run, folder, evaluated_on(small_corpus.held_out))
    assert best_of(folder)["step"] == 4  # the same is not better
    shutil.copytree(small_corpus.folder, tmp_path / "moved")
    same = str(tmp_path / "moved" / "held_out_32.tfrecord")
    forget_after(folder, 4)
    train(run, folder, evaluated_on(same))
    assert best_of(folder)["step"] == 4
    capsys.readouterr()
    forget_after(folder, 4)
    train(run, folder, evaluated_on(small_corpus.train))
    assert "the held-out records have changed since step 4" in capsys.readouterr().out
    assert best_of(folder)["step"] == 8
    assert [path.stem for path in (folder / "best").glob("*.index")] == ["bert_model.ckpt-8"]


@pytest.fixture(scope="module")
def evaluated(small_corpus, tmp_path_factory):
    """A run of 8 steps that was evaluated at 4 and 8, where it is best."""
    folder = tmp_path_factory.mktemp("evaluated") / "model"
    train(make_run(small_corpus, [SHORT]), folder, evaluated_on(small_corpus.held_out))
    assert best_of(folder)["step"] == 8
    return folder


def test_a_return_leaves_the_best_weights_behind_that_are_of_what_it_undoes(
    small_corpus, evaluated, tmp_path
):
    folder = shutil.copytree(evaluated, tmp_path / "model")
    left, run = best_of(folder), make_run(small_corpus, [STILL])
    begin(run, folder, evaluated_on(small_corpus.held_out), resume_from=4).train()
    assert best_of(folder)["step"] == 8  # its loss is that of 4, whose weights are gone
    assert best_of(folder)["loss"] > left["loss"]
    assert json.loads((folder / "best" / "best.ctl_step_8.ckpt-2.json").read_text()) == left


@pytest.mark.parametrize(
    ("last_step", "older", "step", "best_step"),
    [
        (8, False, 8, 8),
        (4, False, 8, 0),  # it was killed after step 8, and makes that step again
        (8, False, None, 0),
        (8, True, 8, 8),
        (4, True, 8, 0),
        (8, True, 0, 0),  # of a stage before
        (8, True, None, 0),
    ],
)
def test_the_state_of_a_checkpoint_is_made_to_agree_with_the_best_weights(
    small_corpus, evaluated, tmp_path, last_step, older, step, best_step
):
    folder = shutil.copytree(evaluated, tmp_path / "model")
    forget_after(folder, last_step)
    record = best_of(folder)
    text = "damaged" if step is None else json.dumps(record | {"step": step})
    (folder / "best" / "best.json").write_text(text)
    run, options = make_run(small_corpus, [SHORT]), evaluated_on(small_corpus.held_out)
    trainer = begin(run, folder, options)
    if older:
        for name in ("best_step", "best_loss", "evaluated_on", "evaluations_since_best"):
            del trainer._checkpoint.state["loop"][name]
    trainer._restore()
    trainer._find_best()
    state = trainer._state
    loss = record["loss"] if best_step else None
    assert (state.best_step, state.best_loss, state.evaluations_since_best) == (best_step, loss, 0)
    if best_step:
        examples = f"{record['max_seq_length']}-{record['records'].rpartition('-')[2]}"
        assert state.evaluated_on == examples


def names_of_tensorflow(path, names):
    """What of a folder is left behind if it is copied by the names that TensorFlow gives."""
    return [n for n in names if n.startswith("ctl_step_") and n.endswith(".json")]


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("resume_from", [None, 4])
@pytest.mark.parametrize("left", ["all without", "newest without", "only data", "no checkpoints"])
def test_a_directory_that_cannot_be_judged_is_refused_and_keeps_every_byte(
    small_corpus, whole, tmp_path, left, resume_from
):
    folder = shutil.copytree(whole, tmp_path / "model", ignore=names_of_tensorflow)
    if left == "newest without":
        shutil.copy(whole / "ctl_step_4.ckpt-1.json", folder)
    elif left == "only data":
        for path in folder.glob("*.index"):
            path.unlink()
    elif left == "no checkpoints":
        forget_after(folder, 0)
    before = everything(folder)
    expected = r"holds ctl_step_8\.ckpt-2 without ctl_step_8\.ckpt-2\.json"
    if left == "no checkpoints":
        expected = "step of a complete checkpoint" if resume_from else r"\(ctl_step_\*\) of the run"
    with pytest.raises(ValueError, match=expected):
        begin(make_run(small_corpus, [SHORT]), folder, resume_from=resume_from).train()
    assert everything(folder) == before


@pytest.mark.parametrize(
    "file", ["train_log.jsonl", "best/bert_model.ckpt-8.index", "model.ckpt-5.index"]
)
def test_what_a_run_left_is_not_written_over_if_its_run_json_is_gone(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("the user's")
    with pytest.raises(ValueError, match="must hold the run.json of its"):
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)


def test_the_checkpoint_that_is_resumed_stays_until_another_is_whole(tmp_path):
    """Those after it may be damaged, and fewer are kept than before."""
    for step in (2, 4):
        checkpoints.CheckpointStore(tmp_path, keep=2).save(TENSORS, step, STATE)
    (tmp_path / "ctl_step_4.ckpt-2.index").write_text("damaged")
    store = checkpoints.CheckpointStore(tmp_path, keep=1)
    resumed = store.latest(lambda said: None).name
    store.prune(resumed)
    assert resumed == store.latest(lambda said: None).name == "ctl_step_2.ckpt-1"


def test_what_is_kept_without_a_json_stays_where_all_are_kept(tmp_path):
    for keep in (0, 2):
        store = checkpoints.CheckpointStore(tmp_path, keep)
        for step in (2, 4):
            store.save(TENSORS, step, STATE)
        (tmp_path / "ctl_step_2.ckpt-1.json").unlink(missing_ok=True)
        store.prune()
        assert (tmp_path / "ctl_step_2.ckpt-1.index").exists() == (keep == 0)


@pytest.mark.parametrize("saved", [0, 1])
def test_a_kill_between_a_checkpoint_and_its_json_is_known_for_one(tmp_path, saved):
    """Also of the first, which leaves nothing to resume."""
    store = checkpoints.CheckpointStore(tmp_path)
    for step in range(1, saved + 1):
        store.save(TENSORS, step, STATE)
    child = os.fork()
    if child == 0:
        try:
            checkpoints.write_text = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            store.save(TENSORS, 8, STATE)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    name = f"ctl_step_8.ckpt-{saved + 1}"
    assert (tmp_path / f"{name}.index").exists()
    assert (store.latest() or checkpoints.Checkpoint("", 0, {})).step == saved
    store.prune()
    assert not list(tmp_path.glob(f"{name}.*"))


@pytest.mark.parametrize("resume_from", [None, 4])
def test_a_save_cut_short_is_passed_over_where_no_mark_of_it_was_left(
    small_corpus, whole, tmp_path, capsys, resume_from
):
    """A copy made meanwhile may lack it."""
    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "ctl_step_8.ckpt-2.json").unlink()
    (folder / "checkpoint").write_text('model_checkpoint_path: "ctl_step_4.ckpt-1"\n')
    trainer = begin(make_run(small_corpus, [SHORT]), folder, resume_from=resume_from)
    assert "Passed over: ctl_step_8.ckpt-2, without its .json" in capsys.readouterr().out
    trainer._write_claim()
    assert (folder / "ctl_step_8.ckpt-2.index").exists()  # until a newer one is there
    trainer.train()
    assert_same(final_tensors(folder), final_tensors(whole))


def test_a_write_that_fails_leaves_nothing_that_cannot_be_judged(tmp_path, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    store = checkpoints.CheckpointStore(tmp_path)
    store.save(TENSORS, 2, STATE)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            store.save(TENSORS, 4, STATE)
    assert (tmp_path / "ctl_step_4.ckpt-2.index").exists()
    assert store.latest().step == 2
    store.prune()
    assert not list(tmp_path.glob("ctl_step_4.*"))
    assert store.save(TENSORS, 4, STATE).endswith("ctl_step_4.ckpt-2")
    assert not list(tmp_path.glob(".writing-*"))


def test_xla_decides_the_weights_so_it_is_kept(small_corpus, whole):
    with pytest.raises(ValueError, match="enable_xla was false and is true"):
        begin(make_run(small_corpus, [SHORT], enable_xla=True), whole)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"stages": 3}', "\xff", '{"changes": [1]}'])
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{tmp_path}/run.json is damaged") as error:
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)
    assert "\n" not in str(error.value)


def test_a_file_is_no_model_directory(small_corpus, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(ValueError, match="The folder of a run must be a directory"):
            begin(make_run(small_corpus, [SHORT]), path)


def test_a_finished_run_whose_log_is_gone_ends_well(small_corpus, folder):
    (folder / "train_log.jsonl").unlink()
    train(make_run(small_corpus, [SHORT]), folder)
    (folder / "train_log.jsonl").write_text('[]\n7\n{"step": "x"}\n{"step": 2}\n\xff\n')
    train(make_run(small_corpus, [SHORT]), folder)
    summary = json.loads((folder / "summaries" / "training_summary.txt").read_text())
    assert summary["total_training_steps"] == 8


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda manifest: manifest | {"state": {}},
        lambda manifest: manifest | {"sha256": 3},
        lambda manifest: manifest | {"state": manifest["state"] | {"seconds": 0.0}},
        lambda manifest: without(manifest, "state"),
        lambda manifest: without(manifest, "sha256"),
        lambda manifest: manifest | {"sha256": without(manifest["sha256"], ".index")},
        lambda manifest: manifest | {"state": without(manifest["state"], "loop")},
    ],
)
def test_a_checkpoint_whose_manifest_is_damaged_is_named_and_passed_over(whole, tmp_path, change):
    folder = shutil.copytree(whole, tmp_path / "model")
    path = folder / "ctl_step_8.ckpt-2.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    said = []
    assert checkpoints.CheckpointStore(folder).latest(said.append).step == 4
    assert said[0].startswith(f"Checkpoint {folder}/ctl_step_8.ckpt-2 is damaged (its ")


def test_the_users_own_bert_config_in_the_directory_stays_as_it_is(tmp_path):
    own = json.dumps(json.loads(CONFIG.to_json()) | {"directionality": "bidi"})
    (tmp_path / "bert_config.json").write_text(own)
    model_directory.check(tmp_path, CONFIG, DESCRIPTION).write(tmp_path, CONFIG)
    assert (tmp_path / "bert_config.json").read_text() == own


@pytest.mark.parametrize("content", ['{"vocab_size": 301}', "{}", "no JSON"])
def test_a_bert_config_of_another_model_is_not_written_over(tmp_path, content):
    (tmp_path / "bert_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"bert_config\.json must describe the run's model"):
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)


def test_an_empty_directory_gets_the_configuration(tmp_path):
    model_directory.check(tmp_path, CONFIG, DESCRIPTION).write(tmp_path, CONFIG)
    assert BertConfig.from_json_file(tmp_path / "bert_config.json") == CONFIG
    assert not model_directory.check(tmp_path, CONFIG, DESCRIPTION).differences


def describe_with(**optimizer):
    return DESCRIPTION | {"optimizer": {"type": "adamw", **optimizer}}


DEFAULTS = {"layer_decay": 1.0, "freeze": []}


def test_a_return_may_change_the_layer_wise_rates_and_not_what_is_frozen(tmp_path):
    description = describe_with(**DEFAULTS)
    model_directory.check(tmp_path, CONFIG, description).write(tmp_path, CONFIG)
    slower = describe_with(layer_decay=0.9, freeze=[])
    claim = model_directory.check(tmp_path, CONFIG, slower, resume_from=4)
    assert claim.differences == ("optimizer.layer_decay was 1.0 and is 0.9",)
    frozen = describe_with(layer_decay=1.0, freeze=["embeddings/"])
    with pytest.raises(ValueError, match="optimizer.freeze was"):
        model_directory.check(tmp_path, CONFIG, frozen, resume_from=4)


def test_what_a_return_left_behind_is_not_resumed_and_goes_first(tmp_path):
    for step in (2, 4, 6):
        checkpoints.CheckpointStore(tmp_path, keep=0).save(TENSORS, step, STATE)
    left = Abandoned.between("ctl_step_2.ckpt-1", "ctl_step_6.ckpt-3")
    store = checkpoints.CheckpointStore(tmp_path, keep=2, abandoned=[left])
    kept = {"ctl_step_2.ckpt-1", "ctl_step_6.ckpt-3"}
    for newest in ("ctl_step_2.ckpt-1", "ctl_step_4.ckpt-4", "ctl_step_6.ckpt-5"):
        store.prune()
        assert {path.stem for path in tmp_path.glob("ctl_step_*.json")} == kept
        assert store.latest().name == store.newest_name() == newest
        assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / newest)
        name = store.save(TENSORS, store.latest().step + 2, STATE).rpartition("/")[2]
        kept = {newest, name}
