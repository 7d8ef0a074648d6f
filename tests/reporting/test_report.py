"""The HTML report of a run: the numbers of its log, for any part of a run that exists."""

import base64
import datetime
import functools
import io
import json
import math
import re
import subprocess
import sys

import browser
import in_process
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_runs import SHORT, log_lines, make_run, train

from official_bert import report
from official_bert.reporting import charts, contents, drawing, page
from official_bert.stages import LoopOptions

KERNELS = [
    "bert/embeddings/word_embeddings",
    *(f"bert/encoder/layer_{n}/attention/self/query/kernel" for n in range(2)),
]
FIXED = "bert/encoder/layer_0/output/LayerNorm/gamma"


def write_run(folder, steps=range(10, 101, 10), planned=100, held_out=True, **run):
    """A model directory as a run leaves it, with losses and ratios that follow from the step."""
    folder.mkdir(parents=True, exist_ok=True)
    stage = {"steps": planned, "warmup_steps": 0, "batch_size": 8, "max_seq_length": 32}
    described = {"config": {"num_hidden_layers": 2, "hidden_size": 64}, "stages": [stage]}
    (folder / "run.json").write_text(json.dumps(described | {"optimizer": {"type": "lamb"}} | run))
    write_log(folder / "train_log.jsonl", steps, held_out)
    return folder


def write_log(path, steps, held_out=True):
    lines = []
    for step in steps:
        line = {"step": step, "stage": 0, "loss": 8 - step / 50, "accuracy": step / 200}
        ratios = {path: 0.01 * (k + 1) * step for k, path in enumerate(KERNELS)} | {FIXED: 1.0}
        numbers = {"learning_rate": 0.1, "gradient_norm": 1 + 1 / step, "trust_ratios": ratios}
        timing = {"seconds": step / 2.0, "tokens_per_second": 5000.0 + step}
        lines.append({"kind": "train", **line, **numbers, "timing": timing})
        if held_out and step % 50 == 0:
            lines.append({"kind": "eval", **line, "majority_class_accuracy": 0.25})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def rendered(folder):
    return page.render(contents.read(folder), datetime.datetime(2026, 1, 2))


def drawn(text, title):
    (figure,) = re.findall(rf"<h3>{re.escape(title)}</h3>.*?</figure>", text, re.DOTALL)
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure)[1])


def curves(text, title):
    """{name: [(step, written value)]} of the chart with a title, as the page's script reads it."""
    data, found = drawn(text, title), {}
    for curve in data["curves"]:
        found.setdefault(curve["name"], []).extend(curve["points"])
    return {name: [(step, text) for step, _, text in points] for name, points in found.items()}


def titles(text):
    return re.findall("<h3>(.*?)</h3>", text)


def rewritten(folder, change):
    """The page after `change` has been applied to each line of the log."""
    log = folder / "train_log.jsonl"
    lines = [change(json.loads(line)) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return rendered(folder)


@pytest.fixture(scope="module")
def trained(small_corpus, tmp_path_factory):
    """The model directory of a real run, evaluated on held-out records."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    options = LoopOptions(
        log_steps=2, save_checkpoints_steps=4, eval_steps=4, eval_files=(small_corpus.train,)
    )
    train(make_run(small_corpus, (SHORT,)), folder, options)
    return folder


def test_the_report_of_a_real_run_shows_the_numbers_of_its_log(trained):
    text = rendered(trained)
    lines = log_lines(trained)
    for kind, title, name, metric in (
        ("train", "Masked LM loss (nats)", "training", "masked_lm_loss"),
        ("eval", "Masked LM loss (nats)", "held out", "masked_lm_loss"),
        ("train", "Learning rate", "value", "learning_rate"),
    ):
        logged = [line for line in lines if line["kind"] == kind]
        expected = [(line["step"], drawing.number(line[metric])) for line in logged]
        assert curves(text, title)[name] == expected
    others = {"Next sentence loss (nats)", "Gradient norm", "Throughput (tokens per second)"}
    assert others | {"Trust ratios by layer"} <= {*titles(text)}
    assert "Finished after 8 steps." in text
    for checkpoint in trained.glob("ctl_step_*.index"):
        assert checkpoint.stem in text
    (start,) = map(json.loads, (trained / "starts.jsonl").read_text().splitlines())
    assert start["step"] == 0
    assert {"python", "tensorflow", "keras"} <= start["versions"].keys()
    assert f"numpy {np.__version__}" in text


def test_the_map_has_a_row_for_each_adapted_variable_and_its_extremes_at_the_ends(tmp_path):
    text = rendered(write_run(tmp_path / "run"))
    encoded = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        pixels = np.asarray(image)
    assert pixels.shape == (len(KERNELS), 10, 4)
    assert (*pixels[0, 0, :3],) == drawing.RAMP[0]  # the first variable's ratio is the smallest
    assert (*pixels[-1, -1, :3],) == drawing.RAMP[-1]
    assert (pixels[..., 3] == 255).all()


def test_the_noise_scale_is_drawn_beside_the_batch_in_use(tmp_path):
    stages = [{"steps": 50, "warmup_steps": 0, "batch_size": size} for size in (8, 32)]
    folder = write_run(tmp_path / "run", stages=stages)

    def measured(line):
        known = line["step"] if line["step"] > 10 else None  # null: infinite
        return line | {"noise_scale": known, "noise_scales": {"head": known}}

    title = "Gradient noise scale (examples)"
    assert title not in titles(rendered(folder))
    found = curves(rewritten(folder, measured), title)
    assert found["noise scale"] == [(step, f"{step}") for step in range(20, 101, 10)]
    assert found["batch in use"] == [(0, "8"), (50, "8"), (50, "32"), (100, "32")]


def test_a_variable_that_comes_later_is_clear_until_then():
    lines = [
        {"step": 1, "trust_ratios": {"a": 0.5}},
        {"step": 2, "trust_ratios": {"a": 0.5, "b": 0.2}},
    ]
    ratios = charts.ratio_map(lines, 2)
    assert ratios.paths == ["a", "b"]
    assert ratios.rows == [[0.5, 0.5], [None, 0.2]]


def test_missing_files_are_left_out_with_a_note(tmp_path):
    text = rendered(write_run(tmp_path / "run", held_out=False))
    assert "No held-out text was evaluated" in text
    (tmp_path / "run" / "train_log.jsonl").unlink()
    text = rendered(tmp_path / "run")
    assert "no curves" in text
    assert titles(text) == []
    write_log(tmp_path / "run" / "train_log.jsonl", [10, 20])
    (tmp_path / "run" / "run.json").unlink()
    text = rendered(tmp_path / "run")
    assert "the settings of the run are unknown" in text
    assert "Gradient norm" in titles(text)


def test_a_run_in_progress_is_reported_with_its_share(tmp_path):
    folder = write_run(tmp_path / "run", steps=[10, 20], planned=80)
    with (folder / "train_log.jsonl").open("a") as log:
        log.write('{"kind": "train", "step": 30, "lo')
    text = rendered(folder)
    assert "Not finished: step 20 of 80 (25 %)." in text
    assert "1 line(s) of train_log.jsonl cannot be read" in text


def write_summary(folder, steps, loss):
    (folder / "summaries").mkdir(exist_ok=True)
    summary = {"total_training_steps": steps, "train_loss": loss, "held_out": {}}
    (folder / "summaries" / "training_summary.txt").write_text(json.dumps(summary))


def test_a_run_has_finished_when_it_came_to_its_end_whatever_its_log_says(tmp_path):
    folder = write_run(tmp_path / "run")
    assert "all 100 steps are in the log, but the run has not ended" in rendered(folder)
    write_summary(folder, 50, 7.0)  # of the shorter run that it was
    assert "Finished" not in rendered(folder)
    write_summary(folder, 100, 8 - 100 / 50)
    assert "Finished after 100 steps." in rendered(folder)
    write_log(folder / "train_log.jsonl", range(20, 101, 20))
    assert "Finished after 100 steps." in rendered(folder)
    write_summary(folder, 100, 5.9)  # of what a return has left behind
    assert "Finished" not in rendered(folder)
    (folder / "train_log.jsonl").unlink()
    assert "Finished after 100 steps." in rendered(folder)


def test_held_out_values_of_different_lengths_are_neither_joined_nor_best_together(tmp_path):
    stages = [
        {"steps": steps, "warmup_steps": 0, "batch_size": 8, "max_seq_length": length}
        for steps, length in ((50, 32), (50, 64))
    ]
    folder = write_run(tmp_path / "run", stages=stages)
    (folder / "best").mkdir()
    best = {"step": 50, "loss": 7.0, "max_seq_length": 32}
    (folder / "best" / "best.json").write_text(json.dumps(best))
    text = rewritten(folder, lambda line: line | {"stage": int(line["step"] > 50)})
    assert "best at step 50, of length 32" in text
    lines = [c for c in drawn(text, "Task loss (nats)")["curves"] if c["name"] == "held out"]
    assert [len(line["points"]) for line in lines] == [1, 1]
    (folder / "best" / "best.json").write_text(json.dumps(best | {"max_seq_length": 64}))
    assert "best at step 50<" in rendered(folder)


def test_what_a_return_has_left_behind_is_a_curve_of_its_own(tmp_path):
    change = {
        "resumed_from": "ctl_step_50.ckpt-5",
        "instead_of": "ctl_step_70.ckpt-7",
        "differences": ["stages[0].learning_rate was 0.1 and is 0.05"],
    }
    folder = write_run(tmp_path / "run", changes=[change])
    write_log(folder / "train_log.ctl_step_70.ckpt-7.jsonl", range(10, 71, 10))
    text = rendered(folder)
    left = curves(text, "Task loss (nats)")["before the return"]
    assert [step for step, _ in left] == [60, 70]
    assert "learning_rate was 0.1 and is 0.05" in text
    assert 'title="returned to step 50"' in text


def test_skipped_updates_and_losses_that_are_null_do_not_break_a_curve(tmp_path):
    def change(line):
        null = {"loss": None} if line["step"] == 40 else {}
        return line | {"skipped_updates": line["step"]} | null

    text = rewritten(write_run(tmp_path / "run"), change)
    assert "Skipped updates" in titles(text)
    steps = [step for step, _ in curves(text, "Task loss (nats)")["training"]]
    assert steps == [10, 20, 30, 50, 60, 70, 80, 90, 100]


def test_the_scores_of_fine_tuning_over_seeds_stand_in_tables(tmp_path):
    for seed in (2, 10):
        write_run(tmp_path / f"seed_{seed}", task="classification", optimizer={"type": "adamw"})
    metrics = [{"eval_accuracy": 0.75}, {"eval_accuracy": 0.85}]
    runs = [{"seed": seed, "metrics": found} for seed, found in zip((2, 10), metrics)]
    over = {"mean": 0.8, "standard_deviation": 0.0707, "median": 0.8, "best": 0.85}
    results = {"task": "SST-2", "runs": runs, "summary": {"eval_accuracy": over}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    text = rendered(tmp_path)
    assert "Scores: SST-2" in text
    for cell in ("0.8000", "0.0707", "0.7500", "0.8500"):
        assert f"<td>{cell}</td>" in text
    assert len(curves(text, "Task loss (nats)")["training"]) == 20
    assert "Sentence classification" in text


def test_an_optimizer_that_adapts_nothing_gets_a_sentence_instead_of_a_map(tmp_path):
    text = rewritten(
        write_run(tmp_path / "run"),
        lambda line: line | {"trust_ratios": dict.fromkeys(KERNELS, 1.0)},
    )
    assert "Trust ratios by layer" not in titles(text)
    assert "adapts no layer" in text


def test_text_of_a_run_is_no_markup_in_the_page(tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = write_run(tmp_path / "<b>run", labels=[evil], init_checkpoint=evil)
    text = (folder / "train_log.jsonl").read_text().replace("word_embeddings", "</script><i>")
    (folder / "train_log.jsonl").write_text(text)
    shown = rendered(folder)
    assert "<b>run" not in shown
    assert "alert(1)</script>" not in shown
    assert "<i>" not in shown


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: None, "must be the model_dir or output_dir"),
        (lambda folder: folder.mkdir(), "got a folder with neither run.json"),
        (lambda folder: write_run(folder / "inner"), "did you mean"),
        (lambda folder: (folder.mkdir(), (folder / "run.json").write_text("{")), "is damaged"),
    ],
    ids=["no folder", "an empty one", "one above", "a damaged run.json"],
)
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, make, reason, capsys):
    make(tmp_path / "folder")
    assert in_process.call(report, report.Report, [str(tmp_path / "folder")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("report: error: ")
    assert reason in line


def test_the_command_writes_one_file_without_loading_tensorflow(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    script = (
        "import sys; from official_bert import report; report.write_report(sys.argv[1]);"
        "print({'tensorflow', 'keras', 'numpy', 'matplotlib'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
    call = functools.partial(in_process.call, report, report.Report)
    assert call([str(folder), f"--output={tmp_path / 'mine.html'}"]) == 0
    assert capsys.readouterr().out.strip().endswith("mine.html")
    assert (tmp_path / "mine.html").read_text().startswith("<!DOCTYPE html>")
    assert call([]) == 2
    assert "the argument must be one model directory" in capsys.readouterr().err


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.booleans())
def test_a_linear_scale_has_few_round_ticks_around_the_values(values, from_zero):
    values = [abs(value) for value in values] if from_zero else values
    scale = drawing.linear(values, from_zero)
    slack = 1e-9 * max(map(abs, scale.ticks))
    assert scale.low <= min(values) + slack
    assert scale.high >= max(values) - slack
    assert 2 <= len(scale.ticks) <= 9
    assert scale.ticks == tuple(sorted({*scale.ticks}))
    assert all(0 <= scale.place(value) <= 1 for value in values)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1))
def test_a_logarithmic_scale_gives_equal_factors_equal_lengths(values):
    scale = drawing.logarithmic(values)
    assert scale.low < min(values)
    assert scale.high > max(values)
    middle = math.sqrt(scale.low * scale.high)
    assert scale.place(middle) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=3000))
def test_long_curves_are_thinned_between_their_ends(values):
    points = list(enumerate(values))
    thin = drawing.thinned(points)
    assert len(thin) <= drawing.MAX_POINTS
    assert thin[0] == points[0]
    assert thin[-1] == points[-1]
    assert [step for step, _ in thin] == sorted({step for step, _ in thin})
    assert min(values) <= min(v for _, v in thin) + 1e-9
    assert max(values) >= max(v for _, v in thin) - 1e-9


@pytest.mark.parametrize(
    ("form", "value", "written"),
    [
        (drawing.number, 12340.0, "12,340"),
        (drawing.number, 0.00152, "0.00152"),
        (drawing.number, 1.5e-7, "1.5e-07"),
        (drawing.number, 3.0812345, "3.081"),
        (drawing.number, 10500, "10,500"),
        (drawing.number, None, "–"),
        (drawing.number, 0.0, "0"),
        (drawing.duration, 35.2, "35 s"),
        (drawing.duration, 291, "4 min 51 s"),
        (drawing.duration, 12000, "3 h 20 min"),
        (drawing.duration, 187200, "2 d 4 h"),
    ],
)
def test_numbers_have_four_digits_and_durations_two_units(form, value, written):
    assert form(value) == written


@pytest.fixture(scope="module")
def opened():
    with browser.open_browser() as opened:
        yield opened


@pytest.mark.slow
def test_the_page_works_in_a_browser_on_a_desktop_and_on_a_phone(trained, tmp_path, opened):
    path = report.write_report(trained, tmp_path / "report.html")
    for size in (browser.DESKTOP, browser.PHONE):
        opened.open(path.as_uri(), size)
        assert opened.hidden_width() == 0
        assert opened.run("return document.querySelectorAll('figure.chart').length") >= 7
        assert all(width > 0 for width in opened.images().values())
        fetched = "return performance.getEntriesByType('resource').map((one) => one.name)"
        assert [name for name in opened.run(fetched) if not name.startswith("data:")] == []
        assert opened.errors() == []


@pytest.mark.slow
def test_pointing_at_a_chart_shows_the_value_there_and_the_button_changes_the_colours(
    tmp_path, opened
):
    path = report.write_report(write_run(tmp_path / "run"))
    point = (
        "const plot = document.querySelectorAll('.plot')[arguments[0]];"
        "const box = plot.getBoundingClientRect();"
        "plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width *"
        " arguments[1], clientY: box.top + 1}));"
        "return plot.querySelector('.tip').innerText.split('\\n');"
    )
    opened.open(path.as_uri())
    shown = opened.driver.execute_script(point, 0, 0.5)
    assert "training, step 50: 7" in shown
    assert "held out, step 50: 7" in shown
    last = opened.run("return document.querySelectorAll('.plot').length - 1")
    assert opened.driver.execute_script(point, last, 0.999) == ["word", "step 100: 1"]
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = opened.run(ground)
    opened.run("document.getElementById('theme').click()")
    assert opened.run(ground) != light
    opened.run("document.getElementById('theme').click()")
    assert opened.run(ground) == light
    assert opened.errors() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": [1.0]},
        {"loss": 1e308},
        {"timing": {"seconds": "8"}},
        {"trust_ratios": 3},
        {"step": 10**400},
    ],
    ids=str,
)
def test_a_line_with_another_kind_of_value_is_left_out_and_counted(tmp_path, wrong):
    folder = write_run(tmp_path / "run")
    line = {"kind": "train", "step": 110, "stage": 0, "loss": 1.0} | wrong
    with (folder / "train_log.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
    text = rendered(folder)
    assert "1 line(s) of train_log.jsonl cannot be read" in text
    assert [step for step, _ in curves(text, "Task loss (nats)")["training"]][-1] == 100


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("results.json", {"task": [], "runs": []}),
        ("results.json", {"summary": {"accuracy": 3}}),
        ("best/best.json", {"step": "8"}),
        ("known_good.json", {"checkpoint": ["a"]}),
    ],
)
def test_a_file_with_another_kind_of_value_is_left_out_with_a_note(tmp_path, file, wrong):
    folder = write_run(tmp_path / "run")
    (folder / "best").mkdir()
    (folder / file).write_text(json.dumps(wrong))
    assert f"{file.rpartition('/')[2]} is damaged and left out" in rendered(folder)


def test_a_damaged_run_json_is_refused_by_the_name_of_the_value(tmp_path):
    stage = {"steps": 20, "warmup_steps": 0, "batch_size": [8]}
    with pytest.raises(ValueError, match=r"stages\[0\]\.batch_size as a run writes it; got "):
        rendered(write_run(tmp_path / "run", stages=[stage]))


def test_a_time_that_is_not_finite_and_a_return_without_its_checkpoint_are_left_out(tmp_path):
    folder = write_run(tmp_path / "run", changes=[{"differences": ["seed"]}])
    with (folder / "train_log.jsonl").open("a") as log:
        line = {"kind": "train", "step": 110, "stage": 0, "timing": {"seconds": float("inf")}}
        log.write(json.dumps(line) + "\n")
    text = rendered(folder)
    assert "training time" not in text
    assert "the start" in text


def test_ratios_that_no_colour_can_show_leave_the_map_out(tmp_path):
    folder = write_run(tmp_path / "run", steps=())
    line = {"kind": "train", "step": 10, "stage": 0, "loss": 1.0}
    ratios = {"a": -1.0, "c": float("nan"), "d": None}
    (folder / "train_log.jsonl").write_text(json.dumps(line | {"trust_ratios": ratios}) + "\n")
    assert "no map of trust ratios" in rendered(folder)
