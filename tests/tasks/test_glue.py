"""GLUE's tasks: their files as published, the official script's labels, the leaderboard's form."""

import lzma
import sys
import types

import numpy as np
import peers
import pytest
from small_text import SHARED

from official_bert.data import table_files
from official_bert.tasks import glue, metrics
from official_bert.tasks.labels import Classes, Numbers

GLUE = SHARED / "glue"
needs_glue = pytest.mark.skipif(not GLUE.exists(), reason="needs ../shared/data/glue")

# The first line of the published files: of train and dev sets, of test sets.
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse "
    "sentence1_parse sentence2_parse sentence1 sentence2"
)
STS = "index genre filename year old_index source1 source2 sentence1 sentence2"
HEADERS = {
    "CoLA": (None, "index sentence"),
    "SST-2": ("sentence label", "index sentence"),
    "MRPC": ("Quality,#1 ID,#2 ID,#1 String,#2 String", "index,#1 ID,#2 ID,#1 String,#2 String"),
    "STS-B": (f"{STS} score", STS),
    "QQP": ("id qid1 qid2 question1 question2 is_duplicate", "id question1 question2"),
    "MNLI": (f"{MNLI} label1 gold_label", MNLI),
    "QNLI": ("index question sentence label", "index question sentence"),
    "RTE": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
    "WNLI": ("index sentence1 sentence2 label", "index sentence1 sentence2"),
}
# What the official script takes from a line, by the number of the column: sentences and label.
PLACES = {
    "CoLA": ([3], 1),
    "SST-2": ([0], 1),
    "MRPC": ([3, 4], 0),
    "STS-B": ([7, 8], -1),
    "QQP": ([3, 4], 5),
    "MNLI": ([8, 9], -1),
    "QNLI": ([1, 2], -1),
    "RTE": ([1, 2], -1),
    "WNLI": ([1, 2], -1),
}


def header(name, is_test):
    line = HEADERS[name][is_test]
    return line and line.split("," if "," in line else " ")


def label_of(task, row):
    return str(row % 6) if isinstance(task.labels, Numbers) else task.labels.names[row % 2]


def write_set(task, folder, split, rows=4):
    """A file as the benchmark's: the cells name row and column, but for label and index."""
    is_test = split in task.test_splits
    names = header(task.name, is_test) or task.header
    lines = [names] if header(task.name, is_test) else []
    for row in range(rows):
        cells = {name: f'"{row} {name}' for name in names}
        cells |= {task.columns.label: label_of(task, row)} if not is_test else {}
        cells |= {task.columns.index: str(row)} if is_test else {}
        lines.append([cells[name] for name in names])
    text = "".join("\t".join(line) + "\n" for line in lines)
    (folder / f"{split}.tsv").write_text(text, encoding="utf-8-sig")
    return [line for line in lines if line != names]


@pytest.mark.parametrize("task", glue.TASKS, ids=lambda task: task.name)
def test_every_set_is_read_as_the_official_script_reads_it(tmp_path, task):
    places, label_place = PLACES[task.name]
    for split in ("train", *task.dev_splits):
        rows = write_set(task, tmp_path, split)
        examples = glue.read(task, str(tmp_path), split)
        sentences = [examples.sentences1, examples.sentences2][: len(places)]
        assert sentences == [[row[place] for row in rows] for place in places]
        assert (examples.sentences2 is None) == (len(places) == 1)
        assert examples.labels == [row[label_place] for row in rows]
        assert len(task.labels.encode(examples)) == 4
    for split in task.test_splits:
        rows = write_set(task, tmp_path, split)
        examples = glue.read(task, str(tmp_path), split)
        names = header(task.name, True)
        assert examples.sentences1 == [row[names.index(task.columns.sentence1)] for row in rows]
        assert examples.labels is None
        assert examples.index == ["0", "1", "2", "3"]


def test_classes_stand_in_the_order_of_the_official_script(monkeypatch):
    # The library imports, and some constructors call, what downloads data sets; labels do not.
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("tensorflow_datasets"))
    library = peers.module_alone("official.nlp.data.classifier_data_lib")
    ours = {task.name: task.labels for task in glue.TASKS}
    assert ours.pop("STS-B") == Numbers(0.0, 5.0)
    assert len(ours) == 8
    for name, found in ours.items():
        processor = getattr(library, f"{name.removesuffix('-2').capitalize()}Processor")
        assert found == Classes(tuple(processor.get_labels(None))), name


def test_metrics_are_those_of_the_benchmark():
    assert {task.name: set(task.metrics) for task in glue.TASKS} == {
        "CoLA": {"matthews_correlation"},
        "SST-2": {"accuracy"},
        "MRPC": {"accuracy", "f1"},
        "STS-B": {"pearson", "spearman"},
        "QQP": {"accuracy", "f1"},
        "MNLI": {"accuracy"},
        "QNLI": {"accuracy"},
        "RTE": {"accuracy"},
        "WNLI": {"accuracy"},
    }
    assert {m for task in glue.TASKS for m in task.metrics} <= set(metrics.METRICS)


def test_predictions_go_to_the_files_that_the_leaderboard_takes():
    files = [task.submission(split) for task in glue.TASKS for split in task.test_splits]
    single = {f"{name}.tsv" for name in HEADERS if name != "MNLI"}
    assert len(files) == 10
    assert set(files) == single | {"MNLI-m.tsv", "MNLI-mm.tsv"}


@pytest.mark.parametrize("name", ["sst2", "SST-2", "sst-2", "stsb", "cola", "MNLI"])
def test_a_task_is_found_by_any_spelling_of_its_name(name):
    assert glue.task(name).name.lower().replace("-", "") == name.lower().replace("-", "")


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="task_name must be one of CoLA, SST-2.*; got 'squad'"):
        glue.task("squad")


def test_a_folder_without_the_file_is_refused_with_the_folder_that_may_be_meant(tmp_path):
    with pytest.raises(ValueError, match=r"without train\.tsv .* Download the whole folder"):
        glue.read(glue.task("rte"), str(tmp_path), "train")
    (tmp_path / "RTE").mkdir()
    with pytest.raises(ValueError, match="Did you mean '.*RTE'?"):
        glue.read(glue.task("rte"), str(tmp_path), "train")


def test_broken_rows_are_skipped_in_the_labelled_sets_of_qqp_alone(tmp_path, capsys):
    task = glue.task("QQP")
    for split in "train", "test":
        write_set(task, tmp_path, split)
        with open(tmp_path / f"{split}.tsv", "a") as file:
            file.write("7\t8\t9\tHalf a\n question\tAnother?\t0\n")
    examples = glue.read(task, str(tmp_path), "train")
    assert (len(examples), examples.skipped) == (4, [6, 7])
    glue.read(task, str(tmp_path), "train")  # again: it is told once
    assert capsys.readouterr().out == (
        f"{tmp_path}/train.tsv: left out 2 of 6 rows, because they have more or "
        "fewer columns than the header (lines 6, 7)\n"
    )
    with pytest.raises(ValueError, match=r"test\.tsv, line 6 must have 3 columns .*; got 4"):
        glue.read(task, str(tmp_path), "test")
    write_set(glue.task("RTE"), tmp_path, "train")
    with open(tmp_path / "train.tsv", "a") as file:
        file.write("7\tHalf a\n")
    with pytest.raises(ValueError, match=r"train\.tsv, line 6 must have 4 columns .*; got 2"):
        glue.read(glue.task("RTE"), str(tmp_path), "train")


def test_predictions_are_written_as_the_leaderboard_takes_them(tmp_path):
    path = tmp_path / "RTE.tsv"
    task = glue.task("RTE")
    glue.write_submission(str(path), ["0", "1"], task.labels.decode(np.array([1, 0])))
    assert path.read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    numbers = glue.task("STS-B").labels.decode(np.array([5.3, -0.2, 2.5]))
    glue.write_submission(str(path), ["0", "1", "2"], numbers)
    assert table_files.read_columns(str(path), ["prediction"]).columns["prediction"] == [
        "5.0",
        "0.0",
        "2.5",
    ]


def test_predictions_that_a_tsv_file_cannot_hold_are_refused(tmp_path):
    path = str(tmp_path / "p.tsv")
    with pytest.raises(ValueError, match="must have no tab or line break in a cell"):
        glue.write_submission(path, ["0"], ["a\tb"])
    assert not (tmp_path / "p.tsv").exists()


@needs_glue
@pytest.mark.parametrize(
    ("name", "split", "rows", "of_label_1"),
    [
        ("CoLA", "train", 8551, 6023),
        ("CoLA", "dev", 1043, 721),
        ("MRPC", "train", 3668, 2474),
        ("MRPC", "dev", 408, 279),
        ("RTE", "train", 2490, 1241),
        ("RTE", "dev", 277, 131),
        ("SST-2", "train", 67349, 37569),
        ("SST-2", "dev", 872, 444),
        ("STS-B", "train", 5749, None),
        ("STS-B", "dev", 1500, None),
        ("CoLA", "test", 1063, None),
        ("MRPC", "test", 1725, None),
        ("RTE", "test", 3000, None),
    ],
)
def test_the_published_files_have_their_numbers_of_rows_and_labels(name, split, rows, of_label_1):
    task = glue.task(name)
    examples = glue.read(task, str(GLUE / name), split)
    assert len(examples) == rows
    assert not examples.skipped
    if split == "test":
        assert examples.labels is None
        assert examples.index == [str(row) for row in range(rows)]
    elif of_label_1 is None:
        encoded = task.labels.encode(examples)
        assert (encoded.min(), encoded.max()) == (0.0, 5.0)
    else:
        assert task.labels.encode(examples).sum() == of_label_1


@needs_glue
@pytest.mark.parametrize("name", ["CoLA", "MRPC", "RTE", "STS-B"])
def test_the_published_dev_sets_are_read_as_tabs_and_newlines_say(name):
    task = glue.task(name)
    (path,) = (GLUE / name).glob("dev.tsv*")
    raw = path.read_bytes()
    raw = lzma.decompress(raw) if path.suffix == ".xz" else raw
    rows = [line.split("\t") for line in raw.decode("utf-8-sig").rstrip("\n").split("\n")]
    rows = rows if name == "CoLA" else rows[1:]
    examples = glue.read(task, str(GLUE / name), "dev")
    places, label_place = PLACES[name]
    sentences = [examples.sentences1, examples.sentences2][: len(places)]
    assert sentences == [[row[place] for row in rows] for place in places]
    assert examples.labels == [row[label_place] for row in rows]
