"""The table over runs, and their curves in one picture."""

import json
import re

import in_process
import pytest
from PIL import Image
from small_runs import SHORT, make_run, train

from official_bert.commands import compare
from official_bert.commands.compare import Compare
from official_bert.stages import LoopOptions

STAGE = {"steps": 100, "warmup_steps": 0, "batch_size": 8, "learning_rate": 0.1}


def write_run(folder, losses, planned=100, scores=None, **run):
    """A folder with a line each 10 steps, and an evaluation whose loss is 0.5 more each 20."""
    folder.mkdir(parents=True)
    lines = []
    for step, loss in enumerate(losses, 1):
        line = {"step": 10 * step, "stage": 0, "loss": loss, "accuracy": loss / 10}
        lines.append({"kind": "train", **line, "timing": {"seconds": 6.0 * step}})
        if step % 2 == 0:
            lines.append({"kind": "eval", **line, "loss": loss + 0.5})
    described = {"stages": [STAGE | {"steps": planned}], "optimizer": {"type": "lamb"}} | run
    (folder / "run.json").write_text(json.dumps(described))
    (folder / "train_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if scores:
        (folder / "results.json").write_text(json.dumps(scores))
    return folder


def call(*arguments):
    """The exit code of the command; stages that another test can read are not printed."""
    return in_process.call(compare, Compare, [str(argument) for argument in arguments])


def rows(text):
    """The cells of a table, {run: {column: text}}."""
    head, *lines = text.splitlines()
    starts = [found.start() for found in re.finditer(r"\S+(?: \S+)*", head)]
    cells = [
        [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None])] for line in (head, *lines)
    ]
    return {name: dict(zip(cells[0][1:], others)) for name, *others in cells[1:]}


def test_a_line_has_what_differs_and_what_came_out(tmp_path, capsys):
    write_run(tmp_path / "a", [5, 4, 3, 3.5, 3.25, 3.125, 3, 3, 3, 2.875], seed=1, dtype="fp32")
    write_run(tmp_path / "b", [5, 4, 3, 2], seed=1, dtype="bf16", freeze=["x", "y"])
    assert call(tmp_path / "a", tmp_path / "b") == 0
    assert rows(capsys.readouterr().out) == {
        "a": {
            "dtype": "fp32",
            "freeze": "–",
            "held-out loss": "3.375",
            "held-out accuracy": "0.2875",
            "at step": "100",
            "training loss": "2.875",
            "steps": "100",
            "time": "1 min 0 s",
        },
        "b": {
            "dtype": "bf16",
            "freeze": "x, y",
            "held-out loss": "2.5",
            "held-out accuracy": "0.2",
            "at step": "40",
            "training loss": "2",
            "steps": "40 of 100",
            "time": "24 s",
        },
    }


def test_settings_of_one_stage_have_short_names_and_files_are_compared_by_content(tmp_path, capsys):
    digests = {"a": "x-1234567890", "b": "y-1234567890", "c": "x-abcdef0123"}
    for name, digest in digests.items():
        stage = STAGE | {"learning_rate": len(name) * 0.25, "batch_size": ord(name)}
        files = {"input_files": [f"{name}.records"], "records": [digest]}
        write_run(tmp_path / name, [1], stages=[stage], optimizer={"type": name}, **files)
    assert call(tmp_path / "a", tmp_path / "b") == 0
    of_equal = rows(capsys.readouterr().out)
    assert [*of_equal["a"]][:2] == ["batch_size", "type"]
    assert "input_files" not in of_equal["a"]
    assert call(tmp_path / "a", tmp_path / "c") == 0
    found = rows(capsys.readouterr().out)
    assert {name: row["input_files"] for name, row in found.items()} == {
        "a": "a.records (123456)",
        "c": "c.records (abcdef)",
    }


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("learning_rate", 1e-3, 1.00001e-3),
        (
            "class_weights",
            [0.9523809523809523, 1.1111111111111112, 0.98],
            [9.5, 1.1111111111111112, 0.98],
        ),
        ("freeze", ["a" * 50], ["b", "a" * 50]),
    ],
)
def test_settings_that_differ_where_the_table_shortens_them_are_told_apart(
    tmp_path, capsys, name, one, other
):
    for folder, value in (("a", one), ("b", other)):
        write_run(tmp_path / folder, [1], stages=[STAGE], optimizer={name: value})
    assert call(tmp_path / "a", tmp_path / "b") == 0
    found = rows(capsys.readouterr().out)
    assert found["a"][name] != found["b"][name]


def test_steps_that_minutes_gave_are_no_setting_and_other_ones_are_told_from_those_done(
    tmp_path, capsys
):
    for name, steps in {"a": 20, "b": 30}.items():
        stage = STAGE | {"steps": steps, "warmup_steps": steps // 10}
        write_run(tmp_path / name, [2, 1], stages=[stage])
        write_run(tmp_path / "timed" / name, [2, 1], stages=[stage], minutes=5.0, seed=steps)
    assert call(tmp_path / "a", tmp_path / "b") == 0
    found = rows(capsys.readouterr().out)["b"]
    assert {name: found[name] for name in ("steps", "warmup_steps", "steps done")} == {
        "steps": "30",
        "warmup_steps": "3",
        "steps done": "20 of 30",
    }
    assert call(tmp_path / "timed/a", tmp_path / "timed/b") == 0
    found = rows(capsys.readouterr().out)["b"]
    assert [*found][:2] == ["seed", "held-out loss"]
    assert found["steps"] == "20 of 30"


def test_of_several_seeds_the_means_are_shown(tmp_path, capsys):
    for seed, losses in (1, [4, 3]), (2, [4, 2]):
        write_run(tmp_path / f"tuned/seed_{seed}", losses, planned=20)
    values = {"mean": 0.75, "standard_deviation": 0.0125, "median": 0.7, "best": 0.8}
    summary = {"eval_f1": values, "eval_f1/O": values, "eval_loss": {"mean": None}}
    scores = {"summary": summary, "runs": []}
    (tmp_path / "tuned/results.json").write_text(json.dumps(scores))
    assert call(tmp_path / "tuned") == 0
    assert rows(capsys.readouterr().out) == {
        "tuned": {
            "seeds": "2",
            "eval_f1": "0.7500 ± 0.0125",
            "eval_loss": "–",
            "held-out loss": "3",
            "held-out accuracy": "0.25",
            "training loss": "2.5",
            "steps": "20",
            "time": "24 s",
        }
    }


def test_folders_without_a_run_or_a_log_are_named_and_the_others_shown(tmp_path, capsys):
    write_run(tmp_path / "a", [1.0])
    (write_run(tmp_path / "new", [1.0]) / "train_log.jsonl").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.png").write_text("x")
    assert call(*sorted(tmp_path.iterdir())) == 0
    found = capsys.readouterr()
    assert [*rows(found.out)] == ["a", "new"]
    assert rows(found.out)["new"]["steps"] == "0 of 100"
    warned = found.err.splitlines()
    assert [line for line in warned if line.startswith("warning: ")] == warned
    for words in "empty must be the model_dir", "file.png", "new has no line in its log yet":
        assert sum(words in line for line in warned) == 1
    assert call(tmp_path / "empty") == 2
    assert "the arguments must be folders of runs; got none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the arguments must be folders of runs; got none. Usage: lamb-bert compare DIR…"),
        (["a", "--plot=x.gif"], "--plot must end in .png, .svg, .pdf; got 'x.gif'."),
        (["a", "--plot="], "plot must be the path of a file to write; got ''"),
        (["gs://a/b"], "must be a path on this machine; got the address 'gs://a/b'"),
    ],
)
def test_what_cannot_be_compared_ends_with_one_line(capsys, arguments, message):
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_of_one_name_are_told_apart_by_their_paths_and_odd_names_are_printed(tmp_path, capsys):
    for name in "x/model", "y/model":
        write_run(tmp_path / name, [1.0])
    write_run(tmp_path / "é\n模", [1.0], seed=float("inf"), note="a" * 99)
    assert call(tmp_path / "x/model", tmp_path / "y/model", tmp_path / "x/model/") == 0
    assert [*rows(capsys.readouterr().out)] == [str(tmp_path / f"{n}/model") for n in "xy"]
    assert call(tmp_path / "é\n模", tmp_path / "x/model") == 0
    shown = rows(capsys.readouterr().out)["é?模"]
    assert shown["note"] == "…" + 39 * "a"


def test_the_picture_has_a_colour_per_run_and_a_panel_per_loss_and_accuracy(tmp_path, capsys):
    runs = {}
    for name, losses in {"a": [3, 2], "b": [5, 4, 3], "c": [4]}.items():
        runs[name] = write_run(tmp_path / name, losses)
    panels, backdrop = compare.charts.compared(compare.read(runs.values()))
    assert [panel.metric for panel in panels] == ["loss", "accuracy"]
    found = {curve.style: curve.points for curve in panels[0].curves}
    assert found == {
        "training a": [(10, 3), (20, 2)],
        "held-out a": [(20, 2.5)],
        "training b": [(10, 5), (20, 4), (30, 3)],
        "held-out b": [(20, 4.5)],
        "training c": [(10, 4)],
    }
    assert backdrop.last_step == 30
    for name in "new/one.png", "two.svg":
        assert call(*runs.values(), f"--plot={tmp_path / name}") == 0
        assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / name)
    with Image.open(tmp_path / "new/one.png") as picture:
        assert picture.width > 2 * picture.height
    assert (tmp_path / "two.svg").read_text().startswith("<?xml")


def test_real_runs_are_compared_by_their_own_files(small_corpus, tmp_path, capsys):
    options = LoopOptions(log_steps=4, eval_steps=4, eval_files=(small_corpus.held_out,))
    for seed in 1, 2:
        train(make_run(small_corpus, [SHORT], seed=seed), tmp_path / f"seed{seed}", options)
    capsys.readouterr()
    assert call(tmp_path / "seed1", tmp_path / "seed2") == 0
    found = rows(capsys.readouterr().out)
    assert {name: row["seed"] for name, row in found.items()} == {"seed1": "1", "seed2": "2"}
    for name, row in found.items():
        best = json.loads((tmp_path / name / "best/best.json").read_text())
        assert float(row["held-out loss"]) == pytest.approx(best["loss"], rel=1e-3)
        assert row["at step"] == str(best["step"])
        assert row["steps"] == "8"
    assert len(found["seed1"]) == 7
