"""Scores of tagging code names in the documentation of Python's standard library.

    python benchmarks/stdlib_tags.py    # in the root of a clone

Four steps into build/stdlib_tags: sentences with tags, and text without the held-out modules; its
vocabulary and records; a small BERT pre-trained on it; and `fine_tuning_scores.py --task=tags`,
with and without pre-training, whose records are the results. A step that is done is not repeated.

A sentence is a paragraph of a docstring. The source beside it gives the tags, in IOB2: a parameter
of the documented function is PARAMETER, a class of the module or a built-in exception CLASS, and a
function of the module FUNCTION if its name has an underscore or brackets follow. The model does not
see the source: it has to know names by their form and by the sentence. Every fifth module is held
out, from pre-training, too.
"""

import ast
import builtins
import dataclasses
import itertools
import json
import pathlib
import re
import sys
import sysconfig

from official_bert import demo, recipes
from official_bert.data import tokenization
from official_bert.demonstration import stdlib_text

FOLDER = pathlib.Path("build/stdlib_tags")
HELD_OUT = 5  # every fifth module
SIZES = {"train": 1400, "dev": 600}  # paragraphs with a name, spread evenly
_NAME = re.compile(r"\w+(?:\.\w+)*|[^\w\s]")
_PARTS = re.compile(r"\w+|[^\w\s]")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def recipe() -> recipes.Recipe:
    """The recipe of the demo with 3,000 steps of 2,048 tokens."""
    whole = recipes.demo()
    first, second = whole.stages
    rates = {"learning_rate": 4e-3}
    stages = (
        dataclasses.replace(first, steps=1_000, batch_size=128, end_learning_rate=2e-3, **rates),
        dataclasses.replace(second, steps=2_000, batch_size=32, **rates),
    )
    return dataclasses.replace(whole, stages=stages)


# Sentences and tags


def modules():
    """The source of each module of the standard library, in order."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if stdlib_text._SKIPPED_FOLDERS.isdisjoint(path.relative_to(library).parts):
            try:
                source = path.read_text("utf-8")
                yield source, ast.parse(source)
            except (SyntaxError, ValueError):
                continue


def sentences(tree):
    """The paragraphs of the docstrings of a module as words and tags."""
    nodes = [*ast.walk(tree)]
    functions = {node.name for node in nodes if isinstance(node, _FUNCTION)}
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)} | _exceptions()
    for node in nodes:
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        names = {"FUNCTION": functions, "CLASS": classes, "PARAMETER": parameters(node)}
        for paragraph in stdlib_text.prose_paragraphs(text or ""):
            yield tagged(paragraph, names)


def _exceptions():
    values = vars(builtins).items()
    return {n for n, v in values if isinstance(v, type) and issubclass(v, BaseException)}


def parameters(node):
    if not isinstance(node, _FUNCTION):
        return set()
    given = node.args
    several = given.posonlyargs, given.args, given.kwonlyargs, (given.vararg, given.kwarg)
    return {one.arg for one in itertools.chain(*several) if one} - {"self", "cls"}


def tagged(paragraph, names):
    """The words of a paragraph, and their tags; a dotted name is of the kind of its last part."""
    words, tags = [], []
    for match in _NAME.finditer(paragraph):
        parts = _PARTS.findall(match[0])
        kind = kind_of(parts, paragraph[match.end() :], names)
        words += parts
        tags += [f"{'I' if n else 'B'}-{kind}" if kind else "O" for n in range(len(parts))]
    return tuple(words), tuple(tags)


def kind_of(parts, after, names):
    last = parts[-1]
    if len(parts) == 1 and last in names["PARAMETER"]:
        return "PARAMETER"
    if last in names["CLASS"]:
        return "CLASS"
    is_name = "_" in last.strip("_") or after.startswith("(")
    return "FUNCTION" if is_name and last in names["FUNCTION"] else None


# The steps


def write_data():
    """Writes train.jsonl, dev.jsonl and text.txt, whose documents are modules."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    seen, sets, documents = set(), {"train": [], "dev": []}, []
    for number, (source, tree) in enumerate(modules()):
        held_out = number % HELD_OUT == 0
        for words, tags in sentences(tree):
            if words not in seen:  # a sentence is in one set only
                seen.add(words)
                sets["dev" if held_out else "train"].append({"tokens": words, "tags": tags})
        if not held_out:
            texts = stdlib_text.docstrings(source) + stdlib_text.comments(source)
            documents.append([p for text in texts for p in stdlib_text.prose_paragraphs(text)])
    for name, rows in sets.items():
        rows = [row for row in rows if {*row["tags"]} != {"O"}]
        step = len(rows) / SIZES[name]
        rows = [rows[int(step * n)] for n in range(SIZES[name])]
        (FOLDER / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = "\n\n".join("\n".join(paragraphs) for paragraphs in documents if paragraphs)
    (FOLDER / "text.txt").write_text(f"{text}\n")


def write_records(run_child):
    lines = (FOLDER / "text.txt").read_text().splitlines()
    size = tokenization.learn(lines, str(FOLDER / "vocab.txt"), demo.VOCAB_SIZE)
    (FOLDER / "bert_config.json").write_text(demo.model_config(size).to_json())
    for stage in recipe().stages:
        length, predictions = stage.max_seq_length, stage.max_predictions_per_seq
        run_child(
            *("-m", "official_bert.create_pretraining_data", "--dynamic_masking"),
            f"--input_file={FOLDER / 'text.txt'}",
            f"--output_file={FOLDER / f'text_{length}.tfrecord'}",
            f"--vocab_file={FOLDER / 'vocab.txt'}",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={predictions}",
            f"--masked_lm_prob={predictions / length}",
        )


def pretrain(run_child):
    run_child(
        *("-m", "official_bert.run_pretraining", f"--recipe={__file__}:recipe"),
        f"--input_files={FOLDER / 'text_{max_seq_length}.tfrecord'}",
        f"--bert_config_file={FOLDER / 'bert_config.json'}",
        f"--model_dir={FOLDER / 'model'}",
        "--steps_per_loop=50",
        "--save_checkpoints_steps=500",
        "--log_steps=100",
    )


def main():
    import trials

    def run_child(*command):
        if code := trials.run_child(command):
            raise SystemExit(code)

    if not (FOLDER / "text.txt").exists():
        write_data()
    if not (FOLDER / "text_64.tfrecord").exists():
        write_records(run_child)
    if not (FOLDER / "model/summaries/training_summary.txt").exists():
        pretrain(run_child)
    run_child(
        *("benchmarks/fine_tuning_scores.py", "--task=tags", f"--data_dir={FOLDER}"),
        f"--data={FOLDER / 'train.jsonl'},{FOLDER / 'dev.jsonl'}",
        f"--pretrained={FOLDER / 'model'}",
        f"--vocab_file={FOLDER / 'vocab.txt'}",
        *sys.argv[1:],
    )


if __name__ == "__main__":
    main()
