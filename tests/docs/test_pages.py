"""The pages of docs/ keep their word: their commands run, one after the other, and their Python."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import peers
import pytest
import warm_python
from bert_checkpoints import CONFIG, assert_same_bytes, make_source, weights_of, write_objects
from bert_shapes import tiny
from model_kinds import CLASSES, make_kind
from small_squad import paragraphs, qa, write_squad
from small_tags import make_tags
from small_text import make_corpus, topics

from official_bert import convert_checkpoint, run_squad
from official_bert.data import tokenization
from official_bert.tasks import glue
from official_bert.training.checkpoints import CheckpointStore

ROOT = Path(__file__).parents[2]
START = "import sys; from official_bert.commands.command_line import main; sys.exit(main())"


def text(page):
    return (ROOT / f"docs/{page}.md").read_text()


def blocks(page, *languages):
    """[(language, block)] of a page, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    return [(language, block) for language, block in found if language in languages]


def run_page(page, changes=()):
    """Runs the blocks of a page in this folder; the names of its Python, and what each printed.

    Args:
        page: Its name.
        changes: (old, new) of its commands, for a test to be quick.
    """
    names, said = {}, []
    for language, block in blocks(page, "bash", "python"):
        for old, new in changes:
            block = block.replace(old, new)
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(block, f"docs/{page}.md", "exec"), names)
            said.append(printed.getvalue())
        else:
            said.append("".join(run(command) for command in commands(block)))
    return names, said


def commands(block):
    """The words of each `lamb-bert` in a block of bash, which runs all the rest of the block."""
    script = f"lamb-bert() {{ printf '%s\\0' \"$@\" $'\\n'; }}\n{block}"
    printed = subprocess.check_output(["bash", "-euc", script], text=True)
    return [command.split("\0")[:-1] for command in printed.split("\n\0")[:-1]]


def test_attention_by_heads_has_the_summary_that_the_page_shows():
    section = text("algorithm").split("## A ratio per slice")[1].split("\n## ")[0]
    _, example, table = re.findall(r"^```(?:python)?\n(.*?)^```", section, re.M | re.S)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, "docs/algorithm.md", "exec"), {})
    assert printed.getvalue() == table


def run(words, code=START):
    """What a `lamb-bert` with these words prints, or a process of other code."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", code, *words]
    done = warm_python.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown_metrics(page):
    """The beginnings of the lines of metrics that a page shows."""
    found = re.findall(r"^    (\S+ = )[\d.]+$", text(page), re.M)
    assert found
    return found


def shown_files(page):
    """The files of an output folder that a page lists, but for those whose names vary."""
    rows = re.findall(r"^\| (`[^`…]+\.\w+`(?:, `[^`]+`)*) \|", text(page), re.M)
    return [name for row in rows for name in re.findall("`(.*?)`", row)]


def write_google_bert(positions, layers=1):
    config = tiny(max_position_embeddings=positions, num_hidden_layers=layers)
    make_source(Path("google_bert"), config)


def write_reviews(*names):
    for name in names:
        rows = [f'"the cat, {"!" * n}",{n % 5 + 1}' for n in range(40)]
        Path(f"{name}.csv").write_text("\n".join(("text,stars", *rows)) + "\n")


# What the pages' commands read, and what comes out


def write_posts():
    rows = [(f"the cat{'!' * n}", ["joy", "surprise"][: n % 3]) for n in range(40)]
    lines = [json.dumps({"text": text, "feelings": names}) for text, names in rows]
    Path("posts.jsonl").write_text("\n".join(lines) + "\n")
    table = [f"{text},{'|'.join(names)}" for text, names in rows]
    Path("posts_dev.csv").write_text("\n".join(("text,feelings", *table)) + "\n")


def of_classification():
    write_google_bert(128)
    Path("glue_data/MRPC").mkdir(parents=True)
    columns = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for split in "train", "dev":
        rows = [f"{n % 2}\t1\t2\tThe cat sat.\tA mat{' unaffable' * (n % 2)}!" for n in range(32)]
        Path(f"glue_data/MRPC/{split}.tsv").write_text("\n".join((columns, *rows)) + "\n")
    row = "0\t1\t2\tThe cat.\tA cat."
    Path("glue_data/MRPC/test.tsv").write_text(f"index{columns[7:]}\n{row}\n")
    write_reviews("reviews", "reviews_dev", "new_reviews")
    write_posts()
    names, said = run_page("classification", [("--num_seeds=3", "--num_seeds=2")])
    assert all(f"\n{metric}" in said[0] for metric in shown_metrics("classification"))
    for metric in re.findall(r"^\| `(eval_\w+)` \|", text("classification"), re.MULTILINE):
        assert f"\n{metric} = " in Path("feelings/eval_results.txt").read_text()
    assert [*names["found"].probabilities] == ["joy", "surprise"]
    files = shown_files("classification")
    assert len(files) == 8
    assert all((Path("mrpc") / name).exists() for name in files)
    assert "median" in "".join(said)
    assert len(json.loads(Path("mrpc_seeds/results.json").read_text())["runs"]) == 2
    predictions = Path("reviews/predictions.tsv").read_text()
    assert len(predictions.splitlines()) == 41
    assert set(re.findall(r"\t(\d)$", predictions, re.MULTILINE)) <= set("12345")
    assert names["answer"] in "12345"
    config = json.loads(Path("reviews_hf/config.json").read_text())
    assert list(config["id2label"].values()) == list("12345")


def of_squad():
    write_google_bert(384)
    for folder in "squad", "output":
        Path(folder).mkdir()
    write_squad(Path("new_questions.json"), *paragraphs(range(2), labelled=False))
    Path("bert_ensemble.json").write_text('{"6-Anna": "Rome"}')
    for split, numbers in ("train", range(6)), ("dev", range(6, 9)):
        write_squad(Path(f"squad/{split}-v1.1.json"), *paragraphs(numbers))
        write_squad(Path(f"squad/{split}-v2.0.json"), *paragraphs(numbers, version_2=True))
    logits = "start_logits = end_logits = __import__('numpy').zeros((len(features), 384))\n"
    answers = blocks("squad", "python")[2][1]
    names, said = run_page("squad", [(answers, logits + answers)])
    trained, answered, _, converted, version_2, thresholded, scored, *_ = said
    assert all(f"\n{metric}" in trained for metric in shown_metrics("squad"))
    assert "answered 8 questions" in answered
    assert "(encoder, pooler, question_answering)" in converted
    assert names["answer"].text in "Anna lives in Rome. Ben lives in Oslo."
    assert "--null_score_diff_threshold=" in version_2
    assert "best_f1 = " in thresholded
    assert json.loads(scored)["unanswered"] == 11
    files = shown_files("squad")
    assert len(files) == 7
    assert all((Path("squad_2") / name).exists() for name in files)
    written = sorted(path.name for path in Path("output").iterdir())
    assert written == sorted(re.findall(r"\w+\.json", answers))


def of_tagging():
    write_google_bert(128)
    files = make_tags(Path())
    Path("vocab.txt").unlink()  # the page's model has its own
    Path(files.unlabelled).rename("new_sentences.txt")
    names, said = run_page("tagging", [("--num_seeds=3", "--num_seeds=2")])
    trained, tagged, *_, converted, seeds = said
    assert all(f"\n{metric}" in trained for metric in shown_metrics("tagging"))
    assert "tagged 26 sentences: names/predictions.txt" in tagged
    lines = [line.split() for line in Path("names/predictions.txt").read_text().splitlines()]
    asked = Path("new_sentences.txt").read_text().splitlines()
    assert [line[0] if line else "" for line in lines] == asked
    assert {len(line) for line in lines} == {0, 2}
    assert names["model"].classes.names[0] == "O"
    assert "(encoder, pooler, tagger)" in converted
    assert "best f1: " in seeds
    assert set(json.loads(Path("names_seeds/results.json").read_text())["best"]) == {
        "seed",
        "output_dir",
    }
    files = shown_files("tagging")
    assert len(files) == 5
    assert all((Path("names") / name).exists() for name in files)


def of_vectors():
    peers.load("sentence_transformers")
    write_google_bert(128, layers=2)  # the page writes the vectors of both
    Path("sentences.txt").write_text("The cat sat. ||| A mat!\n\nun able\n")
    names, said = run_page("vectors")
    assert names["vectors"].shape == (3, CONFIG.hidden_size)
    assert names["one"].shape == (1, CONFIG.hidden_size)
    assert "left out  cls/predictions/" in "".join(said)
    assert "vectors.jsonl: the vectors of 3 lines" in "".join(said)
    shown = json.loads(
        re.search(r"^    ({\"linex.*})$", text("vectors"), re.M)[1].replace("…", "0")
    )
    assert list(shown) == list(names["first"])


def of_runs():
    """Its runs are of six steps, by number instead of minutes."""
    Path("records").mkdir()
    corpus = make_corpus(Path("records"))
    Path("bert_config.json").write_text(corpus.config.to_json())
    short = "--max_seq_length=32 --max_predictions_per_seq=5 --num_steps_per_epoch=6"
    changes = [
        ("records/train-*", "records/train_32.tfrecord-*"),
        ("records/held_out-*", "records/held_out_32.tfrecord"),
        ("--minutes=60", f"{short} --num_train_epochs=1"),
        ("--eval_steps=500", "--eval_steps=2"),
        ("_batch_size=256", "_batch_size=8"),
        ("--warmup_steps=100", "--warmup_steps=1"),
    ]
    names, said = run_page("runs", changes)
    head, *lines = said[1].splitlines()
    shown = re.search(r"^    (run  .*\n)((?:    rate_.*\n)+)", text("runs"), re.M)
    assert head.split() == shown[1].split()
    runs = [line.split()[:2] for line in lines[:-1]]
    assert runs == [line.split()[:2] for line in shown[2].splitlines()]
    assert lines[-1] == "sweep.png"
    assert Path("sweep.png").read_bytes().startswith(b"\x89PNG")
    before, after = (names[name].model.get_weights() for name in ("before", "after"))
    assert not np.array_equal(before[0], after[0])


def of_using():
    make_kind("blanks", Path("google_bert"))
    for kind, folder in ("classes", "reviews"), ("answers", "squad"):
        make_kind(kind, Path(folder))
        convert_checkpoint.convert(folder, f"{folder}_hf", "huggingface")
    names, _ = run_page("using")
    assert {answer.label for answer in names["answers"]} <= {*CLASSES}
    assert Path("model.keras").exists()


def of_continue_pretraining():
    torch, transformers = peers.load("torch"), peers.load("transformers")
    torch.manual_seed(0)
    texts = [paragraph for document in topics(40) for paragraph in document]
    size = tokenization.learn(texts, "learned.txt", 800)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=size, intermediate_size=64, max_position_embeddings=128, **shape
    )
    start = "google-bert/bert-base-uncased"  # a tiny model under the name of the large one
    transformers.BertForPreTraining(config).save_pretrained(start)
    vocabulary = tokenization.read_vocabulary("learned.txt")
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(start)
    Path("texts").mkdir()
    documents = ("\n".join(document) for document in topics(40))
    Path("texts/topics.txt").write_text("\n\n".join(documents) + "\n")
    write_reviews("reviews", "reviews_dev")
    names, said = run_page("continue_pretraining", [("_epoch=1000", "_epoch=2")])
    assert not Path("bert/vocab.txt").exists()  # as transformers 5 saves it
    assert "(Hugging Face): weights: carried 30 of 30" in "".join(said)
    assert "fresh: output_weights, output_bias" in "".join(said)
    assert names["tokenizer"].get_vocab() == vocabulary
    model = names["model"]
    before = names["transformers"].AutoModelForPreTraining.from_pretrained("bert").state_dict()
    assert model.config.hidden_act == "gelu"
    assert not any(torch.equal(model.state_dict()[name], before[name]) for name in before)
    largest = max((model.state_dict()[name] - before[name]).abs().max() for name in before)
    assert largest < 1e-3  # two steps at a low rate: it is still that model


def of_conversion():
    for name in "torch", "transformers", "keras_hub":
        peers.load(name)
    arrays = make_source(Path("google_bert"))
    CheckpointStore("model").save(arrays | {"global_step": np.int64(5)}, step=5, state={})
    for part in "bert_config.json", "vocab.txt":
        shutil.copy(f"google_bert/{part}", "model")
    Path("tf_models").mkdir()
    write_objects("tf_models/pretrainer-1", arrays)
    names, said = run_page("conversion")
    assert "".join(said).count("read      ") == text("conversion").count("\nlamb-bert convert ")
    assert_same_bytes(weights_of("out/tf1"), arrays)
    assert names["answer"]["masked_lm_logits"].shape == (1, 1, CONFIG.vocab_size)
    assert len(names["tokenizer"]) == len(Path("google_bert/vocab.txt").read_text().split())
    for name in re.findall(r"`(out/[^`]+)`", text("conversion")):
        assert list(Path().glob(f"{name}*")), name


def of_exporting():
    for name in "torch", "transformers", "tf2onnx", "onnxruntime", "ai_edge_litert":
        peers.load(name)
    make_kind("classes", Path("reviews"))
    names, (said, *_) = run_page("exporting")
    assert said.count("written   ") == 4
    assert re.search(r"^hf upload .*$", text("exporting"), re.M)[0] in said
    served = {name: tensor.numpy() for name, tensor in names["answers"].items()}
    np.testing.assert_allclose(names["logits"], served["logits"], atol=1e-4)
    np.testing.assert_allclose(names["on_device"], served["logits"], atol=1e-4)
    assert names["label"] == served["label"][0].decode()


TINY = """
import dataclasses

from official_bert import recipes


def tiny():
    small = recipes.small()
    stages = [dataclasses.replace(s, steps=2, warmup_steps=1, batch_size=4) for s in small.stages]
    return dataclasses.replace(small, stages=tuple(stages))
"""


def of_whole_way():
    """Its articles are a few, its recipe two updates per stage."""
    for name in "torch", "transformers":
        peers.load(name)
    documents = [half for text in topics(100) for half in (text[::2], text[1::2])]
    articles = [
        {"id": str(n), "title": f"T{n}", "text": "\n\n".join(paragraphs)}
        for n, paragraphs in enumerate(documents)
    ]
    Path("datasets.py").write_text(f"def load_dataset(*_, **__):\n    return {articles!r}\n")
    ((_, download),) = blocks("whole_way", "py")
    run([], download)
    Path("datasets.py").unlink()  # transformers would find it
    Path("tiny.py").write_text(TINY)
    Path("glue_data/SST-2").mkdir(parents=True)
    Path("squad").mkdir()
    for split in "train", "dev":
        rows = [f"the {'string' if n % 2 else 'list'} object {'!' * n}\t{n % 2}" for n in range(80)]
        table = "\n".join(("sentence\tlabel", *rows)) + "\n"
        Path(f"glue_data/SST-2/{split}.tsv").write_text(table)
        questions = [qa(f"{split}{n}", ("the old list", 9)) for n in range(40)]
        context = "It shows the old list of an object."
        write_squad(Path(f"squad/{split}-v1.1.json"), (context, questions))
    changes = [
        ("--recipe=small", "--recipe=tiny.py:tiny"),
        ('"hidden_size": 256, "num_hidden_layers": 4', '"hidden_size": 32, "num_hidden_layers": 2'),
        ('"intermediate_size": 1024', '"intermediate_size": 64'),
    ]
    _, said = run_page("whole_way", changes)
    everything = "\n".join(said)
    assert re.search(r"trained 4 steps", everything)
    assert "eval_accuracy" in everything
    assert "exact_match" in everything
    used, taken = said[-3], said[-1]
    assert len(used.splitlines()) == 3
    assert len(taken.splitlines()) == 2
    assert all(Path(name).exists() for name in ("model_hf", "sst2_hf", "answers_hf"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        of_classification,
        of_squad,
        of_tagging,
        of_vectors,
        of_runs,
        of_using,
        of_continue_pretraining,
        of_conversion,
        of_exporting,
        of_whole_way,
    ],
    ids=lambda check: check.__name__.removeprefix("of_"),
)
def test_every_block_of_the_page_runs_and_leaves_what_the_page_says(check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check()


def test_the_table_of_metrics_of_classification_is_that_of_the_tasks():
    rows = re.findall(r"^\| ([A-Z][^|]+) \| (`eval_[^|]+) \|$", text("classification"), re.M)
    shown = {
        name.strip(): re.findall(r"`(eval_\w+)`", metrics)
        for names, metrics in rows
        for name in names.split(",")
    }
    assert shown == {
        task.name: [
            f"{split.replace('dev', 'eval')}_{metric}"
            for split in task.dev_splits
            for metric in task.metrics
        ]
        for task in glue.TASKS
    }


def test_the_line_of_the_page_of_squad_has_the_fields_that_are_printed(tmp_path):
    path = write_squad(tmp_path / "a.json", ("past an old mill", [qa("1", ("old mill", 8))]))
    (tmp_path / "b.json").write_text('{"1": "mill"}')
    shown = json.loads(re.search(r"^    ({.*})$", text("squad"), re.M)[1])
    assert list(run_squad.evaluate(path, str(tmp_path / "b.json"))) == list(shown)
