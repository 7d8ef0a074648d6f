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
from small_runs import QUIET, SHORT, final_tensors, forget_after, log_lines, make_run, train

from official_bert.data import records
from official_bert.data.record_files import RecordFiles
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.system import locks
from official_bert.training import checkpoints, model_directory, model_state
from official_bert.training.checkpoint_names import Abandoned
from official_bert.training.trainer import Trainer

CONFIG = tiny(vocab_size=300)
DESCRIPTION = {"stages": [{"steps": 8, "warmup_steps": 2}], "seed": 1, "records": ["0a"]}
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


def make(run, model_dir, resume_from=None):
    return Trainer(run, QUIET, TfDistribute(tf.distribute.get_strategy()), model_dir, resume_from)


def changes(model_dir):
    return json.loads((model_dir / "run.json").read_text())["changes"]


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


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
        make(make_run(small_corpus, [SHORT]), folder)


def test_a_run_returns_to_a_checkpoint_with_another_rate_only_if_told_to(
    small_corpus, folder, capsys
):
    slower = make_run(small_corpus, [SLOWER])
    with pytest.raises(ValueError, match=r"learning_rate was 0.005 and is 0.001.*--resume_from"):
        make(slower, folder)
    before = (folder / "train_log.jsonl").read_text()
    make(slower, folder, resume_from=4).train()
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
    make(slower, folder, resume_from=4).train()  # the same command, once more
    assert (
        "resume_from has no effect: the run has already returned there" in capsys.readouterr().out
    )
    make(slower, folder).train()
    assert len(changes(folder)) == 1
    assert_same(final_tensors(folder), expected)


def test_a_run_killed_right_after_its_return_resumes_where_it_returned_to(
    small_corpus, folder, monkeypatch
):
    slower = make_run(small_corpus, [SLOWER])
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_stage", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make(slower, folder, resume_from=4).train()
    assert make(slower, folder)._checkpoint.step == 4
    assert make(slower, folder, resume_from=4)._checkpoint.step == 4
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
        make(make_run(small_corpus, [dataclasses.replace(SHORT, **changed)]), whole, step)


def test_there_is_no_return_in_an_empty_directory(small_corpus, tmp_path):
    with pytest.raises(
        ValueError, match=r"resume_from must be .*; got 4, but no run has begun there"
    ):
        make(make_run(small_corpus, [SHORT]), tmp_path / "new", resume_from=4)


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


def spelled(small_corpus, folder, monkeypatch):
    """The records of `small_corpus` under three spellings: relative, moved, without a manifest."""
    monkeypatch.chdir(small_corpus.folder)
    moved, bare = folder / "moved", folder / "bare"
    shutil.copytree(small_corpus.folder, moved)
    shutil.copytree(small_corpus.folder, bare, ignore=shutil.ignore_patterns("*.manifest.json"))
    return ["./train_32.tfrecord-*", str(moved / "train_32.*-*"), str(bare / "train_32.*-*")]


def test_the_same_records_are_the_same_run_however_they_are_spelled(
    small_corpus, whole, folder, tmp_path, monkeypatch
):
    for pattern in spelled(small_corpus, tmp_path, monkeypatch):
        run = dataclasses.replace(make_run(small_corpus, [SHORT]), input_files=(pattern,))
        assert not make(run, whole)._claim.differences
        of_stage = dataclasses.replace(SHORT, input_files=(pattern,))
        assert not make(make_run(small_corpus, [of_stage]), whole)._claim.differences
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
        make(run, whole)


def test_a_run_from_before_the_digest_of_the_content_resumes_with_its_own_records_only(
    small_corpus, folder, tmp_path, monkeypatch
):
    """`run.json` had the first part of the digest, and no digest of the initial weights."""
    described = json.loads((folder / "run.json").read_text())
    described["records"] = [digest.partition("-")[0] for digest in described["records"]]
    assert [len(digest) for digest in described["records"]] == [64]
    (folder / "run.json").write_text(json.dumps(described))
    relative, moved, _ = spelled(small_corpus, tmp_path, monkeypatch)
    for pattern in (relative, moved):
        run = dataclasses.replace(make_run(small_corpus, [SHORT]), input_files=(pattern,))
        assert not make(run, folder)._claim.differences
    other = dataclasses.replace(run, input_files=(small_corpus.held_out,))
    with pytest.raises(ValueError, match="the records of stage 1 have changed"):
        make(other, folder)


def test_initial_weights_are_known_by_their_content(small_corpus, whole, tmp_path, monkeypatch):
    prefix = checkpoints.write_bundle(tmp_path / "a" / "bert.ckpt-1", final_tensors(whole))
    prefix = tmp_path / "a" / "bert.ckpt-1"
    run = make_run(small_corpus, [SHORT], init_checkpoint=str(prefix))
    train(run, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    for path in ("a/bert.ckpt-1", "./a/bert.ckpt-1", "moved", str(tmp_path / "moved")):
        again = dataclasses.replace(run, init_checkpoint=path)
        assert not make(again, tmp_path / "model")._claim.differences
    other = final_tensors(whole) | {"bert/pooler/dense/bias": np.ones(32, np.float32)}
    checkpoints.write_bundle(prefix, other)
    with pytest.raises(ValueError, match=r"init_checkpoint holds other weights.*--resume_from"):
        make(run, tmp_path / "model")
    shutil.rmtree(tmp_path / "a")  # no longer needed
    assert not make(run, tmp_path / "model")._claim.differences
    with pytest.raises(ValueError, match="init_checkpoint was .* and is"):
        make(dataclasses.replace(run, init_checkpoint="gone/b"), tmp_path / "model")
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


def test_the_best_weights_are_not_chosen_by_losses_on_other_held_out_records(
    small_corpus, folder, tmp_path, capsys
):
    best = folder / "best" / "best.json"
    run = make_run(small_corpus, [SHORT])
    forget_after(folder, 4)
    train(run, folder, evaluated_on(small_corpus.held_out))
    first = json.loads(best.read_text())
    best.write_text(json.dumps(first | {"loss": 0.5}))  # as of very easy records
    shutil.copytree(small_corpus.folder, tmp_path / "moved")
    same = str(tmp_path / "moved" / "held_out_32.tfrecord")
    forget_after(folder, 4)
    train(run, folder, evaluated_on(same))
    assert json.loads(best.read_text())["loss"] == 0.5
    capsys.readouterr()
    forget_after(folder, 4)
    train(run, folder, evaluated_on(small_corpus.train))
    assert "the held-out records have changed" in capsys.readouterr().out
    assert json.loads(best.read_text())["loss"] > 0.5
    assert (folder / "best" / "bert_model.ckpt-8.index").exists()


def test_a_return_leaves_the_best_weights_behind_that_are_of_what_it_undoes(small_corpus, folder):
    best, options = folder / "best", evaluated_on(small_corpus.held_out)
    forget_after(folder, 4)
    train(make_run(small_corpus, [SHORT]), folder, options)
    left = json.loads((best / "best.json").read_text()) | {"loss": 0.5}
    (best / "best.json").write_text(json.dumps(left))
    engine = TfDistribute(tf.distribute.get_strategy())
    Trainer(make_run(small_corpus, [SLOWER]), options, engine, folder, 4).train()
    found = json.loads((best / "best.json").read_text())
    assert (found["step"], found["loss"] > 0.5) == (8, True)
    aside = json.loads((best / "best.ctl_step_8.ckpt-2.json").read_text())
    assert aside == left


def test_a_best_loss_of_an_earlier_version_counts_as_of_the_same_records(tmp_path):
    for loss in (2.0, 3.0):
        record = {"loss": loss, "step": int(loss), "max_seq_length": 32, "records": "a"}
        checkpoints.save_best(tmp_path, lambda: {"x": np.ones(1)}, record)
        earlier = {k: v for k, v in record.items() if k != "records"} | {"loss": 2.0, "step": 2}
        (tmp_path / "best.json").write_text(json.dumps(earlier))
    assert (tmp_path / "bert_model.ckpt-2.index").exists()


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
        make(make_run(small_corpus, [SHORT]), folder, resume_from).train()
    assert everything(folder) == before


@pytest.mark.parametrize("file", ["train_log.jsonl", "best/bert_model.ckpt-8.index"])
def test_what_a_run_left_is_not_written_over_if_its_run_json_is_gone(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("the user's")
    with pytest.raises(ValueError, match="but no run.json"):
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)


def test_the_checkpoint_that_is_resumed_stays_until_another_is_whole(tmp_path):
    """Those after it may be damaged, and fewer are kept than before."""
    tensors, state = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
    for step in (2, 4):
        checkpoints.CheckpointStore(tmp_path, keep=2).save(tensors, step, state)
    (tmp_path / "ctl_step_4.ckpt-2.index").write_text("damaged")
    store = checkpoints.CheckpointStore(tmp_path, keep=1)
    resumed = store.latest(lambda said: None).name
    store.prune(resumed)
    assert resumed == store.latest(lambda said: None).name == "ctl_step_2.ckpt-1"


def test_what_is_kept_without_a_json_stays_where_all_are_kept(tmp_path):
    tensors, state = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
    for keep in (0, 2):
        store = checkpoints.CheckpointStore(tmp_path, keep)
        for step in (2, 4):
            store.save(tensors, step, state)
        (tmp_path / "ctl_step_2.ckpt-1.json").unlink(missing_ok=True)
        store.prune()
        assert (tmp_path / "ctl_step_2.ckpt-1.index").exists() == (keep == 0)


@pytest.mark.parametrize("saved", [0, 1])
def test_a_kill_between_a_checkpoint_and_its_json_is_known_for_one(tmp_path, saved):
    """Also of the first, which leaves nothing to resume."""
    tensors, state = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
    store = checkpoints.CheckpointStore(tmp_path)
    for step in range(1, saved + 1):
        store.save(tensors, step, state)
    child = os.fork()
    if child == 0:
        try:
            checkpoints.write_text = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            store.save(tensors, 8, state)
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
    """Earlier versions left none, and a copy made meanwhile may lack it."""
    folder = shutil.copytree(whole, tmp_path / "model")
    (folder / "ctl_step_8.ckpt-2.json").unlink()
    (folder / "checkpoint").write_text('model_checkpoint_path: "ctl_step_4.ckpt-1"\n')
    trainer = make(make_run(small_corpus, [SHORT]), folder, resume_from)
    assert "Passed over: ctl_step_8.ckpt-2, without its .json" in capsys.readouterr().out
    trainer._write_claim()
    assert (folder / "ctl_step_8.ckpt-2.index").exists()  # until a newer one is there
    trainer.train()
    assert_same(final_tensors(folder), final_tensors(whole))


def test_a_write_that_fails_leaves_nothing_that_cannot_be_judged(tmp_path, monkeypatch):
    tensors, state = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
    store = checkpoints.CheckpointStore(tmp_path)
    store.save(tensors, 2, state)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            store.save(tensors, 4, state)
    assert (tmp_path / "ctl_step_4.ckpt-2.index").exists()
    assert store.latest().step == 2
    store.prune()
    assert not list(tmp_path.glob("ctl_step_4.*"))
    assert store.save(tensors, 4, state).endswith("ctl_step_4.ckpt-2")
    assert not list(tmp_path.glob(".writing-*"))


def test_xla_decides_the_weights_so_it_is_kept(small_corpus, whole):
    with pytest.raises(ValueError, match="enable_xla was false and is true"):
        make(make_run(small_corpus, [SHORT], enable_xla=True), whole)


def test_a_run_json_of_version_0_1_0_is_read(small_corpus, folder):
    contents = json.loads((folder / "run.json").read_text())
    del contents["records"], contents["enable_xla"]
    (folder / "run.json").write_text(json.dumps(contents))
    train(make_run(small_corpus, [SHORT]), folder)
    assert {"records", "enable_xla"} <= json.loads((folder / "run.json").read_text()).keys()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"stages": 3}', "\xff", '{"changes": [1]}'])
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"{tmp_path}/run.json is damaged") as error:
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)
    assert "\n" not in str(error.value)


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    second = locks.exclusive(tmp_path)
    message = f"Another process works in {tmp_path}"
    with locks.exclusive(tmp_path), pytest.raises(ValueError, match=message):
        second.__enter__()
    with locks.exclusive(tmp_path):
        """It was let go."""


def test_a_file_is_no_model_directory(small_corpus, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "model"):
        with pytest.raises(ValueError, match="The folder of a run must be a directory"):
            make(make_run(small_corpus, [SHORT]), path)


def test_a_run_that_is_resumed_needs_its_init_checkpoint_no_more(
    small_corpus, whole, tmp_path, monkeypatch
):
    prefix = tmp_path / "start.ckpt-1"
    checkpoints.write_bundle(prefix, final_tensors(whole))
    run = make_run(small_corpus, [SHORT], init_checkpoint=str(prefix))
    train(run, tmp_path / "model")
    for path in tmp_path.glob("start.*"):
        path.unlink()
    forget_after(tmp_path / "model", 4)
    monkeypatch.setattr(model_state, "load_weights", None)
    resumed = make(run, tmp_path / "model")
    resumed._restore()
    assert resumed.step == 4


def test_a_finished_run_whose_log_is_gone_ends_well(small_corpus, folder):
    (folder / "train_log.jsonl").unlink()
    train(make_run(small_corpus, [SHORT]), folder)
    (folder / "train_log.jsonl").write_text('[]\n7\n{"step": "x"}\n{"step": 2}\n\xff\n')
    train(make_run(small_corpus, [SHORT]), folder)
    summary = json.loads((folder / "summaries" / "training_summary.txt").read_text())
    assert summary["total_training_steps"] == 8


def without(*keys):
    def change(manifest):
        inner = manifest
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        return manifest

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda manifest: manifest | {"state": {}},
        lambda manifest: manifest | {"sha256": 3},
        lambda manifest: manifest | {"state": manifest["state"] | {"seconds": 0.0}},
        without("state"),
        without("sha256"),
        without("sha256", ".index"),
        without("state", "loop"),
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
    with pytest.raises(ValueError, match=r"bert_config\.json describes another model"):
        model_directory.check(tmp_path, CONFIG, DESCRIPTION)


def test_a_loss_scale_that_a_run_has_no_use_for_is_no_difference(tmp_path):
    """Earlier versions noted down that of a flag; it is now set to its default, with a warning."""
    for dtype in "bf16", "fp16":
        was = DESCRIPTION | {"dtype": dtype, "loss_scale": "128"}
        model_directory.check(tmp_path / dtype, CONFIG, was)
        (tmp_path / dtype).mkdir()
        (tmp_path / dtype / "run.json").write_text(json.dumps(was))
    now = was | {"loss_scale": "dynamic"}
    model_directory.check(tmp_path / "bf16", CONFIG, now | {"dtype": "bf16"})
    with pytest.raises(ValueError, match='loss_scale was "128" and is "dynamic"'):
        model_directory.check(tmp_path / "fp16", CONFIG, now)


def test_an_empty_directory_gets_the_configuration(tmp_path):
    model_directory.check(tmp_path, CONFIG, DESCRIPTION).write(tmp_path, CONFIG)
    assert BertConfig.from_json_file(tmp_path / "bert_config.json") == CONFIG
    assert not model_directory.check(tmp_path, CONFIG, DESCRIPTION).differences


def describe_with(**optimizer):
    return DESCRIPTION | {"optimizer": {"type": "adamw", **optimizer}}


DEFAULTS = {"layer_decay": 1.0, "freeze": []}


def test_a_run_from_before_layer_wise_rates_is_resumed_without_them_only(tmp_path):
    model_directory.check(tmp_path, CONFIG, describe_with()).write(tmp_path, CONFIG)
    assert not model_directory.check(tmp_path, CONFIG, describe_with(**DEFAULTS)).differences
    for name, value in (("layer_decay", 0.9), ("freeze", ["embeddings/"])):
        with pytest.raises(ValueError, match=rf"optimizer\.{name} was .* and is "):
            model_directory.check(tmp_path, CONFIG, describe_with(**DEFAULTS | {name: value}))


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
    tensors, state = {"kernel": np.ones(1, np.float32)}, {"loop": {}, "seconds": 0.0}
    for step in (2, 4, 6):
        checkpoints.CheckpointStore(tmp_path, keep=0).save(tensors, step, state)
    left = Abandoned.between("ctl_step_2.ckpt-1", "ctl_step_6.ckpt-3")
    store = checkpoints.CheckpointStore(tmp_path, keep=2, abandoned=[left])
    kept = {"ctl_step_2.ckpt-1", "ctl_step_6.ckpt-3"}
    for newest in ("ctl_step_2.ckpt-1", "ctl_step_4.ckpt-4", "ctl_step_6.ckpt-5"):
        store.prune()
        assert {path.stem for path in tmp_path.glob("ctl_step_*.json")} == kept
        assert store.latest().name == store.newest_name() == newest
        assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / newest)
        name = store.save(tensors, store.latest().step + 2, state).rpartition("/")[2]
        kept = {newest, name}
