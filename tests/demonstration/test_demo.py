"""The demo on little text and with few steps: its output, its resumption, its refusals."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from pydoc_data.topics import topics

import in_process
import numpy as np
import pytest
import warm_python

from official_bert import demo, recipes
from official_bert.commands import machine
from official_bert.data import corpus
from official_bert.demonstration import demo_folder, stdlib_text
from official_bert.system import child_commands, locks

ROOT = Path(__file__).parents[2]
RECIPE = """
from official_bert.recipes import Recipe
from official_bert.stages import Stage

def quick():
    return Recipe(stages=(
        Stage(steps=120, batch_size=8, max_seq_length=32, max_predictions_per_seq=5,
              learning_rate=1e-2, warmup_steps=10),
        Stage(steps=20, batch_size=4, max_seq_length=64, max_predictions_per_seq=10,
              learning_rate=5e-3, warmup_steps=5),
    ))
"""
LEFT_BEHIND = [
    "bert_config.json",
    "vocab.txt",
    "results.json",
    "baselines.json",
    "blanks.md",
    "model/train_log.jsonl",
    "model/pretrained/bert_model.ckpt-1.index",
    "plots/loss.png",
    "plots/accuracy.png",
    "plots/learning_rate.png",
    "plots/trust_ratios.png",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with 60 documents, one paragraph a line."""
    folder = tmp_path_factory.mktemp("text")
    documents = [stdlib_text.prose_paragraphs(topics[name]) for name in sorted(topics)]
    documents = [d for d in documents if len(d) > 3][:60]
    (folder / "topics.txt").write_text("\n\n".join("\n".join(d) for d in documents) + "\n")
    return folder


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "recipe.py"
    path.write_text(RECIPE)
    return f"{path}:quick"


@pytest.fixture(scope="module")
def command(text, recipe, tmp_path_factory):
    """The command of a demo; its last word names a new folder."""
    return [
        *(sys.executable, "-m", "official_bert.demo", f"--corpus={text}"),
        *("--corpus_format=paragraphs", f"--recipe={recipe}"),
        f"--output_dir={tmp_path_factory.mktemp('demo') / 'output'}",
    ]


@pytest.fixture(scope="module")
def resumed(command):
    """A demo that was interrupted, killed and then finished: its output, and its folder."""
    with started(command, r"^step +50/") as process:
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()  # until the last process of the demo has ended
    assert process.wait() == 130
    assert "Traceback" not in rest
    assert re.search(r"Stopped\. Run the same command again", rest.splitlines()[-1])
    with started(command, r"^step ") as process:
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    assert process.wait() == -signal.SIGKILL
    command = [*command, "--engine=jax"]  # which resumes the other engine's run
    ended = warm_python.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout, Path(command[-2].partition("=")[2])


def settings_of(folder, text, **more):
    """The settings of a demo on this text."""
    where = {"output_dir": str(folder), "corpus": (str(text),)}
    return demo.Demo(**where, corpus_format="paragraphs", **more)


@contextlib.contextmanager
def started(command, pattern):
    """The demo as a process, from when a line of its output matches `pattern`."""
    with warm_python.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert any(re.search(pattern, line) for line in process.stdout), "no such line"
        yield process


@pytest.mark.slow
def test_a_demo_that_was_interrupted_and_killed_leaves_what_it_promises_and_nothing_to_do(
    resumed, text, recipe, capfd
):
    shown, output = resumed
    assert shown.count("step ") < 5  # of 140 steps, 50 were done at least
    for name in LEFT_BEHIND:
        assert (output / name).stat().st_size > 0, name
    results = json.loads((output / "results.json").read_text())
    for guess in ("masked_lm", "neighbours", "word_frequencies", "most_frequent_token"):
        assert 0 < results[f"{guess}_accuracy"] < 1
        assert f"{results[f'{guess}_accuracy']:.1%}" in shown
    for guess in ("masked_lm", "neighbours", "word_frequencies"):
        assert 0 < results[f"{guess}_loss"] < np.log(5000)
        assert f"{results[f'{guess}_loss']:.3f}" in shown
    for task in ("next_sentence", "most_frequent_label"):  # this recipe trains pairs
        assert f"{results[f'{task}_accuracy']:.1%}" in shown
    assert results["seconds"] > 1
    assert "examples/s" in shown
    assert "left" in shown
    blanks = (output / "blanks.md").read_text().splitlines()[2:]
    assert len(blanks) == results["blanks"] == 20
    for row in blanks:
        sentence, word, after, before = row.strip("| ").split(" | ")
        assert sentence.count("[MASK]") == 1
        assert f"{word}: {after}   (before: {before})".replace("**", "") in shown
        assert after.count("%") == before.count("%") == 3
        assert after != before
    assert sum("**" in row.split(" | ")[2] for row in blanks) == results["blanks_right_in_top_3"]
    for noise in ("WARNING", "retracing", "Traceback"):
        assert noise not in shown
    assert str(output / "model/pretrained/bert_model.ckpt-1") in shown
    log = [json.loads(s) for s in (output / "model/train_log.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in log} == {0, 1}
    assert results["dtype"] == machine.fastest_dtype("tensorflow")  # as the run began

    checkpoint = output / "model/pretrained/bert_model.ckpt-1.index"
    before = checkpoint.stat().st_mtime_ns
    demo.run(settings_of(output, text, recipe=recipe))
    again = capfd.readouterr().out
    assert checkpoint.stat().st_mtime_ns == before
    assert "examples/s" not in again
    assert json.loads((output / "results.json").read_text()) == results
    assert shown[shown.index("On held-out text") :] == again[again.index("On held-out text") :]


@pytest.mark.parametrize(
    ("begun", "fastest", "expected"),
    [(None, "bf16", "bf16"), ("fp32", "bf16", "fp32"), ("bf16", "fp32", "bf16")],
)
def test_a_run_that_has_begun_keeps_its_data_type(tmp_path, monkeypatch, begun, fastest, expected):
    layout, called = demo_folder.DemoFolder(tmp_path), []
    layout.model.mkdir()
    if begun:
        (layout.model / "run.json").write_text(json.dumps({"stages": [], "dtype": begun}))
    monkeypatch.setattr(machine, "fastest_dtype", lambda engine: fastest)
    monkeypatch.setattr(child_commands, "call", lambda *command: called.extend(command))
    demo._pretrain(layout, "demo", "jax")
    assert f"--dtype={expected}" in called


@pytest.mark.slow
def test_counting_is_evaluated_at_the_positions_of_the_model(resumed, recipe):
    layout = demo_folder.DemoFolder(resumed[1])
    log = [json.loads(line) for line in layout.log.read_text().splitlines()]
    for index, stage in enumerate(recipes.find(recipe).stages):
        labels = np.concatenate(
            [
                batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
                for batch in demo_folder.held_out_batches(layout, stage, demo.EVAL_BATCH_SIZE)
            ]
        )
        evaluated = [line for line in log if line["kind"] == "eval" and line["stage"] == index]
        share = np.bincount(labels).max() / len(labels)
        assert evaluated[-1]["most_frequent_token_accuracy"] == pytest.approx(share, rel=1e-6)


def test_whole_documents_are_held_out_and_always_the_same(text, tmp_path):
    documents = list(corpus.Corpus([str(text / "topics.txt")], "paragraphs").documents())
    splits = []
    for attempt in ("one", "two"):
        layout = demo_folder.DemoFolder(tmp_path / attempt)
        layout.folder.mkdir()
        demo.write_text(layout, [str(text / "topics.txt")], "paragraphs")
        splits.append([layout.text(split).read_text() for split in ("train", "held_out")])
    assert splits[0] == splits[1]
    train, held_out = (part.strip().split("\n\n") for part in splits[0])
    whole = sorted("\n".join(map(str.strip, corpus.sentences(d))) for d in documents)
    assert sorted(train + held_out) == whole
    assert 1 <= len(held_out) < len(train) / 4


def test_a_document_that_is_read_in_pieces_is_held_out_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 100)
    sentences = [f"This is sentence {n} of a document." for n in range(20)]
    documents = ["\n".join(sentences), "Another document.", "\n".join(sentences)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    layout = demo_folder.DemoFolder(tmp_path)
    said = demo.write_text(layout, [str(tmp_path / "a.txt")], "sentences")
    assert layout.text("held_out").read_text().strip() == "Another document."
    assert layout.text("train").read_text().strip().split("\n\n") == documents[::2]
    assert said.startswith("train: 2 documents")
    assert "held out: 1 documents" in said


def test_a_corpus_too_small_to_hold_something_out_is_refused(tmp_path):
    (tmp_path / "one.txt").write_text("One sentence.\nAnother.\n")
    with pytest.raises(ValueError, match="at least two documents, .*; got 1. "):
        demo.write_text(demo_folder.DemoFolder(tmp_path), [str(tmp_path / "one.txt")], "sentences")
    assert not list(tmp_path.glob("text/*.txt"))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ["--corpus=missing.txt"],
            "demo: error: corpus must match at least one file; got 'missing.txt'",
        ),
        (["--corpus=latin1.txt"], "must be UTF-8"),
        (["--corpus=page.html"], "got HTML. Extract its text, for example with trafilatura; if"),
        (["--corpus=page.html"], "give --corpus_format=sentences"),
        (["--corpus=no_text.jsonl"], "got the fields 'words'. The demo reads no other field."),
        (["--corpus=text", "--corpus_format=paragraphs", "--recipe=none"], "recipe must be"),
        (["leftover"], "The arguments must be flags; got 'leftover'"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(text, tmp_path, flags, reason, capsys, monkeypatch):
    (tmp_path / "text").symlink_to(text)
    (tmp_path / "latin1.txt").write_bytes("caf\xe9\n".encode("latin1"))
    (tmp_path / "page.html").write_text("<html><body>Text</body></html>\n")
    (tmp_path / "no_text.jsonl").write_text('{"words": "Text"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(child_commands, "raise_on_signals", lambda: None)  # of this process
    assert in_process.call(demo, demo.Demo, flags) not in (0, 130)
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert "skip_bad_lines" not in line  # the demo has no such flag


@pytest.mark.parametrize(
    ("name", "reason", "made"),
    [
        ("smal", r"one of demo, small,.*; got 'smal'", False),
        (
            "bert_base",
            r"small model; got 'bert_base'\. max_seq_length of stage 2 .* got 512.*=demo",
            True,
        ),
    ],
)
def test_a_recipe_that_cannot_be_run_is_refused_and_does_not_block_the_folder(
    text, tmp_path, name, reason, made
):
    for recipe in (name, name + "_mslt"):  # no start before has bound the second
        with pytest.raises(ValueError, match=reason if recipe == name else f"'{recipe}'"):
            demo.run(settings_of(tmp_path / "output", text, recipe=recipe))
    assert (tmp_path / "output").exists() == made
    assert not (tmp_path / "output/vocab.txt").exists()


def test_settings_bind_a_folder_from_when_something_is_made_with_them(tmp_path):
    layout = demo_folder.DemoFolder(tmp_path)

    def start(corpus_format="auto", recipe="demo", vocab_size=9):
        with demo_folder.clock(layout, ["a.html"], corpus_format, recipe, vocab_size):
            pass

    start()
    start("sentences", "small", 8)  # as the error of the first start proposes
    layout.text("train").parent.mkdir()
    layout.text("train").touch()
    start("sentences", "demo", 9)
    with pytest.raises(ValueError, match="corpus_format must be 'sentences'.*got 'auto'"):
        start("auto")
    layout.vocab.touch()
    with pytest.raises(ValueError, match="vocab_size must be 9.*got 8"):
        start("sentences", vocab_size=8)
    (tmp_path / "records").mkdir()
    with pytest.raises(ValueError, match="recipe must be 'demo'.*got 'small'"):
        start("sentences", "small")
    start("sentences")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *[(name, "") for name in ("vocab.txt", "bert_config.json", "model", "results.json")],
        *[("demo.json", content) for content in ("", "[]", "{}", "3", '{"corpus": 1}')],
    ],
)
def test_a_folder_of_something_else_is_not_taken_for_output(text, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    reason = (
        rf"output_dir must be a new folder.*; got {tmp_path}, whose {name} was not made by a demo"
    )
    with pytest.raises(ValueError, match=reason):
        demo.run(settings_of(tmp_path, text))
    assert {path.name for path in tmp_path.iterdir()} <= {name, ".lock"}
    assert (tmp_path / name).read_text() == content


def test_a_second_demo_waits_for_the_first(command, tmp_path):
    output = tmp_path
    command = [*command[:-1], f"--output_dir={output}"]
    with locks.exclusive(output), started(command, "waiting until it ends") as process:
        time.sleep(0.2)
        assert not (output / "demo.json").exists()
        process.terminate()
        assert "Traceback" not in process.stdout.read()
        assert process.wait() == 130


def test_the_readme_shows_a_run_whose_results_are_kept():
    results = json.loads((ROOT / "benchmarks/results/demo_cpu2_202611.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert textwrap.dedent(demo_folder.table(results)) in readme
