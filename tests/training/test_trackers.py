"""Experiment trackers, the real libraries offline: they get the numbers of the log, and no more."""

import importlib.util
import json
import re
import shutil
import struct
import types

import in_process
import peers
import pytest
from small_runs import forget_after, log_lines

from official_bert import run_classifier
from official_bert.commands import fine_tuning, training
from official_bert.system import messages
from official_bert.training import trackers
from official_bert.training.trackers import Trackers


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Both trackers write into this test's folder."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name, value in {
        "MODE": "offline",
        "DIR": tmp_path,
        "SILENT": "true",
        "CONSOLE": "off",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    return tmp_path


def flags(sentences, folder, *more):
    (folder / "bert_config.json").write_text(sentences.config.to_json())
    return [
        f"--bert_config_file={folder / 'bert_config.json'}",
        f"--vocab_file={sentences.vocab_file}",
        f"--train_file={sentences.train}",
        f"--dev_file={sentences.dev}",
        f"--output_dir={folder / 'model'}",
        *("--do_train", "--do_eval", "--max_seq_length=32", "--train_batch_size=10"),
        *("--eval_steps=3", "--log_steps=2", "--save_checkpoints_steps=4"),
        *("--distribution_strategy=off", *more),
    ]


def call(arguments):
    return in_process.call(run_classifier, run_classifier.Classify, arguments)


def mlflow_run(folder):
    """The client, and the only run."""
    import mlflow

    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    return client, run


def curve(client, run, name):
    """[(step, value)] of a curve, in the order in which they were sent."""
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


def wandb_rows(folder):
    """The rows of a run that has been written offline, as dictionaries."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("run-*.wandb")
    rows = []
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            names = ["/".join(item.nested_key) or item.key for item in items]
            rows.append({n: json.loads(item.value_json) for n, item in zip(names, items)})
    return rows


def wandb_records(data):
    """The records of a log in LevelDB's format: blocks of 32 KB, records may span several."""
    place, whole = 7, b""  # after the file's header
    while place < len(data):
        if 2**15 - place % 2**15 < 7:  # padding
            place += 2**15 - place % 2**15
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)  # full, first, middle, last
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def logged(folder, kind, name):
    return [(line["step"], line[name]) for line in log_lines(folder) if line["kind"] == kind]


@pytest.mark.slow
def test_trackers_get_the_log_the_settings_the_report_and_the_weights_and_go_on_after_a_kill(
    small_sentences, stores, capsys
):
    for name in "wandb", "mlflow":
        peers.load(name)
    arguments = flags(small_sentences, stores, "--report_to=wandb,mlflow")
    assert call(arguments) == 0
    folder, client_and_run = stores / "model", mlflow_run(stores)
    client, run = client_and_run
    assert run.info.status == "FINISHED"
    for kind, name in (("train", "loss"), ("train", "learning_rate"), ("eval", "accuracy")):
        found = curve(client, run, f"{kind}/{name}")
        assert found == [(step, pytest.approx(v)) for step, v in logged(folder, kind, name)]
    described = json.loads((folder / "run.json").read_text())
    assert run.data.params["stages.0.learning_rate"] == str(described["stages"][0]["learning_rate"])
    scores = json.loads((folder / "results.json").read_text())["runs"][0]["metrics"]
    assert run.data.metrics["scores/eval_accuracy"] == pytest.approx(scores["eval_accuracy"])
    assert "eval_accuracy" in (folder / "report.html").read_text()
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept >= {"report.html", "pretrained", "run.json", "vocab.txt", "labels.json"}
    weights = [file.path for file in client.list_artifacts(run.info.run_id, "pretrained")]
    assert "pretrained/bert_model.ckpt-1.index" in weights

    ids = json.loads((folder / "trackers.json").read_text())
    assert ids["mlflow"] == run.info.run_id
    (offline,) = stores.glob("wandb/offline-run-*")
    assert offline.name.endswith(ids["wandb"])
    rows = wandb_rows(offline)
    for kind, name in (("train", "loss"), ("train", "learning_rate"), ("eval", "accuracy")):
        found = [(row["step"], row[f"{kind}/{name}"]) for row in rows if f"{kind}/{name}" in row]
        assert found == logged(folder, kind, name)

    before = curve(client, run, "train/loss")
    forget_after(folder, 4)  # as a kill leaves it that came just before the end
    shutil.rmtree(folder / "pretrained")
    assert call(arguments) == 0
    client, run = mlflow_run(stores)  # the same
    after = curve(client, run, "train/loss")
    assert after == before + [point for point in before if point[0] > 4]
    assert json.loads((folder / "trackers.json").read_text()) == ids
    assert "cannot be reached" not in capsys.readouterr().err


def test_a_tracker_that_is_out_ends_no_run_and_gets_its_rows_when_it_is_back(stores, capsys):
    peers.load("mlflow")
    blocked = stores / "mlruns"
    blocked.write_text("no folder")
    reporting = Trackers(["mlflow"], stores / "model")
    (stores / "model").mkdir()
    reporting.begin({"seed": 3})
    for step in range(5):
        reporting.write("train", step, {"loss": 1.0 / (step + 1)})
    said = capsys.readouterr().err
    assert said.startswith("warning: mlflow cannot be reached, so the run continues without it")
    assert said.count("warning") == 1
    blocked.unlink()
    reporting.end(130)
    client, run = mlflow_run(stores)
    assert curve(client, run, "train/loss") == [(step, 1.0 / (step + 1)) for step in range(5)]
    assert (run.info.status, run.data.params) == ("KILLED", {"seed": "3"})
    assert capsys.readouterr().err == ""


def test_a_server_that_is_away_costs_one_try_and_one_warning(tmp_path, monkeypatch, capsys):
    peers.load("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    reporting = Trackers(["mlflow"], tmp_path)
    reporting.begin({})
    tries = []
    monkeypatch.setattr(trackers._Mlflow, "begin", lambda *_: tries.append(1))
    for step in range(100):
        reporting.write("train", step, {"loss": 1.0})
    assert not tries
    assert capsys.readouterr().err.count("warning: mlflow cannot be reached") == 1
    assert not (tmp_path / "trackers.json").exists()


class Fake:
    """A tracker that keeps what it gets, and raises the error that `raises` names for a call."""

    def __init__(self):
        self.got, self.raises = [], {}

    def _call(self, name, value):
        if name in self.raises:
            raise self.raises[name]
        self.got.append((name, value))

    def begin(self, run_id, name, settings):
        self._call("begin", name)
        return "id"

    def write(self, row):
        if row[0] == "odd":
            raise ValueError("no such name")
        self._call("write", row[1])

    def keep(self, files):
        self._call("keep", [file.name for file in files])

    def end(self, code):
        self._call("end", code)

    def refuses(self, error):
        return isinstance(error, ValueError)


@pytest.fixture
def fake(monkeypatch):
    """The tracker that is named mlflow; it is tried again at once."""
    made = Fake()
    monkeypatch.setitem(trackers._TRACKERS, "mlflow", lambda: made)
    monkeypatch.setattr(trackers, "FIRST_PAUSE", 0.0)
    return made


def test_a_row_that_is_refused_is_named_and_holds_up_no_other(tmp_path, fake, capsys):
    reporting = Trackers(["mlflow"], tmp_path)
    for step in range(4):
        reporting.write("odd" if step % 2 else "train", step, {"loss": 1.0})
    assert [value for name, value in fake.got if name == "write"] == [0, 2]
    assert capsys.readouterr().err == (
        "warning: mlflow refuses the row 'odd' of step 1, so it is left out: no such name\n"
    )
    reporting.end(0)
    assert "mlflow did not get 2 rows (no such name). They are in" in capsys.readouterr().err


def test_a_run_ends_even_if_its_files_cannot_be_kept(tmp_path, fake, capsys):
    reporting = Trackers(["mlflow"], tmp_path)
    reporting.begin({})
    fake.raises = {"keep": OSError("it is full")}
    reporting.end(3, [tmp_path / "a", tmp_path / "b"])
    reporting.end(0)  # it is over
    assert fake.got == [("begin", tmp_path.name), ("end", 3)]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: mlflow did not get 2 files or folders (it is full). They are")


def test_each_outage_is_told_and_at_the_end_what_was_lost(tmp_path, fake, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "MAX_WAITING", 3)
    reporting, away = Trackers(["mlflow"], tmp_path), {"write": OSError("away")}
    for errors in away, {}, away:
        fake.raises = errors
        for step in range(2):
            reporting.write("train", step, {"loss": 1.0})
    said = capsys.readouterr().err
    assert said.count("warning: mlflow cannot be reached") == 2
    for step in range(2):
        reporting.write("train", step, {"loss": 1.0})
    fake.raises["end"] = OSError("gone")
    reporting.end(0, [tmp_path])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "warning: mlflow did not get 4 rows, 1 files or folders, the end of the run (gone). They "
        f"are in {tmp_path}, the rows in train_log.jsonl. Run the same command again"
    )


def test_mlflow_gets_every_name_in_its_own_letters_and_all_rows_but_those_it_refuses(
    stores, capsys
):
    peers.load("mlflow")
    reporting = Trackers(["mlflow"], stores / "model")
    (stores / "model").mkdir()
    reporting.begin({"labels": {"R&D": 1}})
    reporting.write("train", 1, {"loss": "none"})
    scores = {"R&D": 0.1, "R%D": 0.2, "..": 0.3, "": 0.4, "größe 漢": 0.5}
    reporting.write("scores", 2, {f"f1/{label}": score for label, score in scores.items()})
    assert "mlflow refuses the row 'train' of step 1, so it is left out" in capsys.readouterr().err
    reporting.end(0)
    _, run = mlflow_run(stores)
    names = [f"scores/f1/{label}" for label in ("R_26_D", "R_25_D", "_", "größe 漢")]
    assert run.data.metrics == dict(zip(names, (0.1, 0.2, 0.4, 0.5)))
    assert run.data.params == {"labels.R_26_D": "1"}


def test_mlflow_leaves_no_run_open_whose_settings_it_did_not_get(stores, monkeypatch):
    mlflow = peers.load("mlflow")
    (stores / "model").mkdir()
    monkeypatch.setattr(mlflow, "log_params", lambda *_: 1 / 0)
    Trackers(["mlflow"], stores / "model").begin({"seed": 1})
    assert mlflow.active_run() is None


def test_where_mlflow_lacks_the_run_that_began_a_new_one_begins(stores, monkeypatch, capsys):
    mlflow = peers.load("mlflow")
    folder = stores / "model"
    folder.mkdir()
    found = []
    for store in "mlruns", "others", "others":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{stores / store}")
        mlflow.set_tracking_uri(None)
        reporting = Trackers(["mlflow", "mlflow"], folder)  # named twice, it is one
        reporting.begin({"seed": 1})
        reporting.write("train", len(found), {"loss": 1.0})
        reporting.end(0)
        found.append(json.loads((folder / "trackers.json").read_text())["mlflow"])
        warned = f"warning: mlflow has no run {found[0]}, which trackers.json names, so a new one"
        assert (warned in capsys.readouterr().err) == (len(found) == 2)
    first, *others = found
    assert len({*others}) == 1
    assert first not in others
    client, run = mlflow_run(stores)
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 2


def test_the_first_failure_is_told_with_what_to_do(tmp_path, fake, capsys):
    fake.raises = {"begin": OSError("x" * 999 + ".")}
    Trackers(["mlflow", "mlflow"], tmp_path).write("train", 1, {"loss": 1.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(
        r"rows wait: x{300}…\. If this is not a passing outage, set MLFLOW_TRACKING_URI", line
    )


def test_wandb_is_waited_for_a_little_and_ends_a_run_that_is_still_open(
    tmp_path, monkeypatch, capsys
):
    wandb = peers.load("wandb")
    calls = []

    def init(**settings):
        calls.append(settings)
        raise OSError("away")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "teardown", lambda: calls.append("teardown"))
    monkeypatch.setattr(trackers, "FIRST_PAUSE", 0.0)
    reporting = Trackers(["wandb"], tmp_path)
    reporting.begin({})
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "60")
    reporting.write("train", 1, {"loss": 1.0})
    first, _, second, _ = calls
    assert calls[1] == calls[3] == "teardown"  # else its process refuses the second try
    assert (first["settings"].init_timeout, first["settings"].finish_timeout) == (10, 120)
    assert "init_timeout" not in second["settings"].model_fields_set
    assert first["reinit"] == "finish_previous"
    assert first["id"] == second["id"]


def test_a_run_that_never_began_opens_no_tracker(stores):
    peers.load("mlflow")
    Trackers(["mlflow"], stores).end(2)
    assert not (stores / "mlruns").exists()


def run_of_one_seed(folder, monkeypatch, use, trained):
    """Calls `fine_tuning` for a seed whose training is done, with these `Trackers`."""
    trainer = types.SimpleNamespace(model=None, step=8, model_dir=folder, trackers=trained)
    monkeypatch.setattr(fine_tuning, "_trainer", lambda *_: trainer)
    monkeypatch.setattr(training, "train", lambda _: 0)
    args = types.SimpleNamespace(do_train=True, do_eval=True)
    engine = types.SimpleNamespace(is_chief=True)
    job = fine_tuning.FineTuningJob(task=None, config=None, use=use)
    return fine_tuning._run_seed(args, job, engine, 3, str(folder))


def test_the_report_that_is_published_has_the_scores(tmp_path, fake, monkeypatch):
    (tmp_path / "train_log.jsonl").touch()
    scores = {"eval_f1": 0.625}
    trained = Trackers(["mlflow"], tmp_path)
    code, results = run_of_one_seed(tmp_path, monkeypatch, lambda *_: scores, trained)
    assert (code, results["metrics"]) == (0, scores)
    assert "0.625" in (tmp_path / "report.html").read_text()
    assert fake.got[1:] == [("write", 8), ("keep", ["pretrained", "report.html"]), ("end", 0)]
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == [results]


def test_a_report_that_cannot_be_made_is_a_warning(tmp_path, fake, monkeypatch, capsys):
    trained = Trackers(["mlflow"], tmp_path)  # the folder holds no run
    assert run_of_one_seed(tmp_path, monkeypatch, lambda *_: {"eval_f1": 0.5}, trained)[0] == 0
    assert fake.got[2:] == [("keep", ["pretrained"]), ("end", 0)]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path / 'report.html'} could not be made, so no tracker")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("x"), 2), (messages.Failed("x", 3), 3), (KeyboardInterrupt(), 130)],
)
def test_trackers_learn_that_the_evaluation_after_training_failed(
    tmp_path, fake, monkeypatch, error, code
):
    def use(*_):
        raise error

    trained = Trackers(["mlflow"], tmp_path)
    trained.begin({})
    with pytest.raises(type(error)):
        run_of_one_seed(tmp_path, monkeypatch, use, trained)
    assert fake.got[1:] == [("end", code)]


def test_without_its_library_a_tracker_is_refused_in_one_line(
    small_sentences, tmp_path, monkeypatch, capsys
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else found(name, *a)
    )
    assert call(flags(small_sentences, tmp_path, "--report_to=wandb")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        '--report_to: wandb is not installed here: `pip install "lamb_tf[wandb]"`.'
    )
    assert not (tmp_path / "model").exists()
