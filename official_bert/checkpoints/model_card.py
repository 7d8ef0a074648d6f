"""The card of a model for a hub: a `README.md` made from the files of its run.

Fields missing from these files, such as the licence, are left for the user to fill in.
"""

import json
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from official_bert.checkpoints.model_folder import RUN
from official_bert.checkpoints.source import PRETRAINER, Source, output_names
from official_bert.system.whole_files import json_object

NAME = "README.md"
SUMMARY = "summaries/training_summary.txt"
_STEP = re.compile(r"(?:ctl_step_(\d+)\.ckpt-\d+|\.ckpt-(\d+))$")  # in a checkpoint's name
_OF_CACHE = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+?)(?:/|$)")  # of transformers' downloads
_MOST_LABELS = 20
_NO_SCORE = ("step", "stage", "global_step")


def write(folder: pathlib.Path, source: Source, library: str = "transformers") -> None:
    """Writes the card, or copies the user's own card next to the model.

    Args:
        library: What opens the folder: transformers, or sentence-transformers, whose folder has no
            head and so neither its scores nor its card.
    """
    own = own_card(source) if library == "transformers" else None
    text = own.read_bytes() if own else _card(source, library).encode("utf-8")
    (folder / NAME).write_bytes(text)


def own_card(source: Source) -> pathlib.Path | None:
    """The card next to a model or in the folder of its run: a `README.md` with front matter."""
    folders = [pathlib.Path(source.path).parent, *filter(None, [source.run_folder])]
    files = (folder / NAME for folder in folders)
    return next((file for file in files if file.is_file() and _is_card(file)), None)


def _is_card(file):
    with open(file, "rb") as opened:
        return opened.read(5).removeprefix(b"\xef\xbb\xbf").startswith(b"---")


def card_lines(folder: object, source: Source, library: str = "transformers") -> list[str]:
    """Lines on the card in `folder`, and the command that uploads it."""
    own = own_card(source) if library == "transformers" else None
    what = f"{NAME} is {own}, unchanged" if own else f"fill in the licence in {NAME}"
    return [f"card      {what}; to upload: hf upload NAME {shlex.quote(str(folder))}"]


def _card(source, library):
    run = json_object(source.run_folder / RUN) if source.run_folder else {}
    of_vectors = library == "sentence-transformers"
    facts, scores = [*_facts(source, run)], [] if of_vectors else _scores(source)
    task = "sentence-similarity" if of_vectors else _task(source)
    front = _front_matter(run, library, task)
    text = [*front, "", f"# BERT for {task or 'pre-training'}", "", *_table(facts)]
    if scores:
        step = _step(source)
        text += ["", "## Scores", "", f"After {step:,} steps, {_evaluated_on(source)}:", ""]
        text += _table(scores)
    if command := _command(source):
        text += ["", "## Command", "", f"    {command}"]
    text += ["", "## Use", "", "```python", *_use(source, library), "```"]
    return "\n".join(text) + "\n"


def _task(source):
    """The task by the hub's name; None of a next-sentence head only, which has none."""
    if source.kind is PRETRAINER and "masked_lm" not in source.parts:
        return None
    return source.kind.task


def _front_matter(run, library, task):
    yield "---"
    yield "# license: fill in the licence of the model, such as apache-2.0"
    yield "# language: fill in the language of the text, such as en"
    base = _base_model(run)
    yield (
        f"base_model: {json.dumps(base)}"
        if base
        else ("# base_model: fill in the model that training started from, if any")
    )
    yield f"library_name: {library}"
    if task:
        yield f"pipeline_tag: {task}"
    yield from ("tags:", "- bert", "- lamb_tf")
    yield "---"


def _base_model(run):
    """The name on the hub of a run's initial checkpoint, if its path contains it."""
    found = _OF_CACHE.search(str(run.get("init_checkpoint") or ""))
    return f"{found[1]}/{found[2]}" if found else None


def _facts(source: Source, run: Mapping) -> Iterator[tuple[str, str]]:
    config = source.config
    shape = f"{config.num_hidden_layers} layers of width {config.hidden_size}"
    yield "model", f"{shape}, {config.vocab_size:,} word pieces"
    if source.do_lower_case is not None:
        kept = ", accents kept" if source.do_lower_case == "keep_accents" else ""
        yield "text", ("lower-cased" if source.do_lower_case else "cased") + kept
        yield "longest text", f"{source.text_length:,} word pieces"
    names = output_names(source.labels) or []
    if names:
        more = f" and {len(names) - _MOST_LABELS} more" if len(names) > _MOST_LABELS else ""
        yield "labels", ", ".join(names[:_MOST_LABELS]) + more
    try:
        yield from [*_of_run(run)]
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # an edited run.json


def _of_run(run: Mapping) -> Iterator[tuple[str, str]]:
    """Facts about the training, from `run.json`."""
    if not run:
        return
    stages = run["stages"]
    for number, stage in enumerate(stages, 1):
        name = "training" if len(stages) == 1 else f"training, stage {number}"
        yield (
            name,
            f"{stage['steps']:,} steps of {stage['batch_size']:,} sequences of at most "
            f"{stage['max_seq_length']:,} word pieces, learning rate {stage['learning_rate']:g}",
        )
    yield "optimizer", str(run["optimizer"]["type"])
    files = [*run["input_files"], *(file for stage in stages for file in stage["input_files"])]
    names = dict.fromkeys(pathlib.PurePath(file).name for file in files)
    if names:
        yield "data", ", ".join(names)
    if run["init_checkpoint"]:
        base = _base_model(run) or pathlib.PurePath(run["init_checkpoint"]).name
        yield "started from", base
    yield "seed", str(run["seed"])


def _step(source: Source) -> int | None:
    """The step of the checkpoint: from its name, or the last one of the run's final weights."""
    if source.run_folder and pathlib.Path(source.path).parent.name == "pretrained":
        summary = json_object(source.run_folder / SUMMARY)
        last = summary.get("total_training_steps")
        return last if isinstance(last, int) else None
    found = _STEP.search(source.path)
    return int(found[1] or found[2]) if found else None


def _scores(source: Source) -> list[tuple[str, str]]:
    """The scores that the run measured at the checkpoint's step."""
    step = _step(source)
    if source.run_folder is None or step is None:
        return []
    found: dict[str, Any] = {}
    for line in _json_lines(source.run_folder / "train_log.jsonl"):
        if line.get("kind") == "eval" and line.get("step") == step:
            found = line
    of_task = _eval_results(source.run_folder / "eval_results.txt")
    if of_task.get("global_step") == step:
        found = of_task
    return [
        (name, f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}")
        for name, value in found.items()
        if isinstance(value, int | float) and name not in _NO_SCORE
    ]


def _eval_results(file):
    found = {}
    for line in _lines(file):
        name, _, value = line.partition(" = ")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


def _evaluated_on(source):
    """The evaluated examples as in `results.json`, which several seeds share."""
    folders = (source.run_folder, source.run_folder.parent)
    seeds = "seed_" in source.run_folder.name
    results = json_object(folders[seeds] / "results.json")
    named = [
        f"{name} {pathlib.PurePath(value).name}"
        for name, value in results.items()
        if isinstance(value, str)
    ]
    return f"on {', '.join(named)}" if named else "on held-out examples"


def _command(source):
    """The command of the last start of the run."""
    starts = _json_lines(source.run_folder / "starts.jsonl") if source.run_folder else []
    words = starts[-1].get("command") if starts else None
    if not isinstance(words, list) or not words:
        return None
    return " ".join(shlex.join(map(str, words)).split("\n"))


def _use(source, library):
    if library == "sentence-transformers":
        yield "from sentence_transformers import SentenceTransformer"
        yield ""
        yield 'vectors = SentenceTransformer("NAME").encode(["A text."])'
        return
    yield "import transformers"
    yield ""
    if _task(source) is None:
        yield 'model = transformers.AutoModelForNextSentencePrediction.from_pretrained("NAME")'
        yield 'tokenizer = transformers.AutoTokenizer.from_pretrained("NAME")'
    elif source.kind.task == "question-answering":  # which transformers 5 has no pipeline for
        yield 'model = transformers.AutoModelForQuestionAnswering.from_pretrained("NAME")'
        yield 'tokenizer = transformers.AutoTokenizer.from_pretrained("NAME")'
    else:
        yield f'model = transformers.pipeline("{source.kind.task}", "NAME")'


def _table(rows):
    yield from ("| | |", "|---|---|")
    for name, value in rows:
        yield f"| {_cell(name)} | {_cell(value)} |"


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _json_lines(file):
    found = []
    for line in _lines(file):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        found += [value] if isinstance(value, dict) else []
    return found


def _lines(file):
    return file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else []
