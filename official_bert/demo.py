"""One command from text to a pre-trained BERT, in minutes, on a machine without a GPU.

    lamb-bert demo --output_dir=demo_output

Text → documents (some held out) → vocabulary → records → pre-training in two stages → held-out
scores next to simple baselines, plots, filled blanks. Each step runs the command that a
larger run would use. Run the same command again to resume an interrupted demo: finished steps are
not repeated. Use --corpus for text of your own.
"""

import dataclasses
import importlib.util
import pathlib
import shutil
import sys
from collections.abc import Sequence

from official_bert import recipes, stacking
from official_bert.commands import commands, machine
from official_bert.commands.arguments import apply, contradiction, idle
from official_bert.data import corpus, tokenization
from official_bert.demonstration import demo_folder, stdlib_text
from official_bert.demonstration.demo_folder import DemoFolder
from official_bert.model.config import BertConfig
from official_bert.system import (
    child_commands,
    local_paths,
    locks,
    messages,
    quiet_tensorflow,
    whole_files,
)
from official_bert.system.settings import documented, setting
from official_bert.training import model_directory

RECIPE = "demo"
VOCAB_SIZE = 2048
HELD_OUT_SHARE = 12  # one document in this number is held out …
HELD_OUT_CHARACTERS = 300_000  # … up to this much text
MASKED_SHARE = 0.15  # of held-out tokens; for training text see `_write_records`
EVAL_BATCH_SIZE = 128


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo(machine.OfEngine):
    """The settings of the command."""

    output_dir: str = setting(
        "Folder for all output. An existing demo in it is resumed.", "demo_output"
    )
    corpus_format: str = setting("Format of --corpus.", "auto", choices=corpus.FORMS)
    corpus: tuple[str, ...] = setting(
        "Training text: comma-separated files, globs or folders. Default: the documentation that "
        "comes with Python.",
        (),
    )
    recipe: str = setting(
        "Recipe from official_bert/recipes.py; it sets the stages of the run.", RECIPE
    )


RULES = (
    idle(["corpus_format"], lambda args: not args.corpus, "without --corpus."),
    contradiction(
        ["corpus"],
        lambda args: not any(args.corpus),
        "it names no file; leave it out for Python's documentation. Is a variable of the shell "
        "empty?",
    ),
)


def main(args: Demo) -> int:
    args = apply(args, RULES)
    child_commands.raise_on_signals()
    try:
        run(args)
    except child_commands.Interrupted:
        folder = pathlib.Path(args.output_dir)
        print(f"\nStopped. Run the same command again to resume from {folder}.", flush=True)
        return 130
    except child_commands.ChildFailed as failed:
        return failed.code
    except ValueError as error:
        # Readers of text name flags of other commands.
        reason = str(error).replace("--input_format", "--corpus_format")
        reason = reason.replace("Name one with --text_field", "The demo reads no other field")
        reason = reason.replace(", or name another field with --text_field", "")
        raise messages.Failed(reason) from error
    return 0


def run(args: Demo) -> dict:
    """Runs the whole demo; returns the content of `results.json`.

    Raises:
        ValueError: if the corpus cannot be used or is inside the output, the recipe does not fit
            the model, or the output folder holds a demo with other settings or files not made by a
            demo.
        OSError: if the disk is full or not writable.
    """
    if not importlib.util.find_spec("matplotlib"):
        raise ValueError('matplotlib must be installed for the plots: pip install "lamb_tf[plot]".')
    folder = pathlib.Path(args.output_dir)
    local_paths.require_local(output_dir=folder)
    local_paths.require_local(corpus=args.corpus)
    paths = corpus.find_files(args.corpus, "corpus") if args.corpus else []
    layout = DemoFolder(folder)
    local_paths.require_apart({"output_dir": layout.written}, {"corpus": paths})
    corpus.require_outside({"output_dir": layout.written}, {"corpus": args.corpus})
    recipes.named(args.recipe)
    machine.set_backend(args.engine)
    folder.mkdir(parents=True, exist_ok=True)
    settings = (paths, args.corpus_format, args.recipe, VOCAB_SIZE)
    wait = f"Another demo is running in {folder}; waiting until it ends …"
    with (  # child commands hold the lock too
        locks.exclusive(folder, wait, with_children=True),
        demo_folder.clock(layout, *settings) as seconds,
    ):
        _step(1, "text", write_text, layout, paths, args.corpus_format)
        found = _checked(args.recipe, args.engine)
        _step(2, "vocabulary", _learn_vocabulary, layout)
        _step(3, "records", _write_records, layout, found)
        _step(4, "pre-training", _pretrain, layout, args.recipe, args.engine)
        _step(5, "baselines", demo_folder.write_baselines, layout, found.stages, EVAL_BATCH_SIZE)
        _step(6, "plots", demo_folder.draw, layout)
        _step(7, "blanks in held-out sentences", demo_folder.fill_blanks, layout)
        results = demo_folder.write_results(layout, found.stages[-1], EVAL_BATCH_SIZE, seconds())
    print(report(results, layout), flush=True)
    return results


def _step(number, title, function, *arguments):
    print(f"[{number}/7] {title}", flush=True)
    if outcome := function(*arguments):
        print(f"      {outcome}", flush=True)


# The steps


def write_text(layout: DemoFolder, paths: Sequence[str], corpus_format: str) -> str:
    """Writes documents with one sentence per line, and holds out some, spread evenly."""
    if layout.text("train").exists():
        return "already there"
    if paths:
        documents = corpus.Corpus([*paths], corpus_format).documents()
    else:
        documents = (corpus.Document(lines, split=True) for _, lines in stdlib_text.documents())
    layout.text("train").parent.mkdir(exist_ok=True)
    counts = {"train": [0, 0], "held_out": [0, 0]}  # documents, characters
    with (  # `train` appears last: it shows that both are complete
        whole_files.whole_file(layout.text("train")) as train,
        whole_files.whole_file(layout.text("held_out")) as held,
    ):
        for document in documents:
            if not document.continues:
                index = counts["train"][0] + counts["held_out"][0]
                turn = index % HELD_OUT_SHARE == 1
                few = counts["held_out"][1] < HELD_OUT_CHARACTERS
                split = "held_out" if turn and few else "train"
                counts[split][0] += 1
            blank = "" if document.continues else "\n"
            text = blank + "\n".join(map(str.strip, corpus.sentences(document))) + "\n"
            (train if split == "train" else held).write(text.encode("utf-8"))
            counts[split][1] += len(text)
        if not counts["held_out"][0]:
            raise ValueError(
                "--corpus must contain at least two documents, because complete documents are held "
                f"out; got {counts['train'][0]}. In a file with one sentence per line, separate "
                "documents with blank lines; for other formats see --corpus_format."
            )
    return "; ".join(
        f"{split.replace('_', ' ')}: {count} documents, {size / 1e6:.2f} MB"
        for split, (count, size) in counts.items()
    )


def _learn_vocabulary(layout):
    """Writes a WordPiece vocabulary of the training text, and the small BERT's configuration."""
    if not layout.vocab.exists():
        with open(layout.text("train"), encoding="utf-8") as lines:
            tokenization.learn(lines, str(layout.vocab), VOCAB_SIZE)
    size = len(tokenization.read_vocabulary(str(layout.vocab)))
    whole_files.write_text(layout.config, model_config(size).to_json())
    return f"{size} word pieces"


def model_config(vocab_size: int) -> BertConfig:
    """A BERT that two CPU cores train in minutes.

    A narrow model without time to grow its weights starts with 0.06 instead of 0.02. There is no
    dropout: few steps on text that is masked again in every epoch hardly overfit.
    """
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=128,
        initializer_range=0.06,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def _checked(recipe, engine):
    """The recipe, checked against the demo's model."""
    if engine == "jax":  # before the recipe's imports
        quiet_tensorflow.import_keras()
    else:
        quiet_tensorflow.import_tensorflow()
    found = recipes.find(recipe)
    try:
        stacking.check(model_config(VOCAB_SIZE), found.stages)
    except ValueError as error:
        raise ValueError(
            f"recipe must be one for the demo's small model; got {recipe!r}. {error} Give "
            f"--recipe={RECIPE}, or a FILE.py:FUNCTION of your own."
        ) from None
    return found


def _write_records(layout, recipe):
    """Writes records for dynamic masking, of the recipe's lengths.

    Training text gets one masked token per prediction of a stage, and full rows if there are no
    pairs to train on; held-out text the usual 15 %, and a document per row.
    """
    rows = "documents" if recipe.use_next_sentence_label else "full"
    for stage in recipe.stages:
        most = stage.max_predictions_per_seq / stage.max_seq_length
        for split, share, filling in (
            ("train", most, rows),
            ("held_out", MASKED_SHARE, "documents"),
        ):
            child_commands.call(
                "create_pretraining_data",
                f"--input_file={layout.text(split)}",
                f"--output_file={layout.records(split, stage.max_seq_length)}",
                f"--vocab_file={layout.vocab}",
                f"--max_seq_length={stage.max_seq_length}",
                f"--max_predictions_per_seq={stage.max_predictions_per_seq}",
                f"--masked_lm_prob={share}",
                f"--row_filling={filling}",
                "--dynamic_masking",
            )


def _pretrain(layout, recipe, engine):
    if (layout.model / "summaries" / "training_summary.txt").exists():  # written last
        return "already there"
    patterns = {split: layout.records(split, "{max_seq_length}") for split in ("train", "held_out")}
    # A run that has begun keeps its data type, on another machine and by JAX.
    begun = model_directory.read_run_json(layout.model) or {}
    dtype = begun.get("dtype", machine.fastest_dtype(engine))
    child_commands.call(
        "run_pretraining",
        f"--recipe={recipe}",
        f"--engine={engine}",
        f"--dtype={dtype}",
        f"--input_files={patterns['train']}",
        f"--eval_files={patterns['held_out']}",
        f"--bert_config_file={layout.config}",
        f"--model_dir={layout.model}",
        f"--eval_batch_size={EVAL_BATCH_SIZE}",
        "--eval_steps=500",
        "--log_steps=50",
        "--steps_per_loop=50",
        "--save_checkpoints_steps=500",
        "--keep_checkpoint_max=2",
    )


def report(results: dict, layout: DemoFolder) -> str:
    """The summary printed at the end."""
    lamb_bert = _program()
    return f"""
On held-out text
{demo_folder.table(results)}

checkpoint  {layout.model}/pretrained/bert_model.ckpt-1
            (with {layout.config} and {layout.vocab})
results     {layout.results}
blanks      {layout.blanks_table}
plots       {layout.plots}

What to try next
  your own text        {lamb_bert} demo --corpus=FOLDER --output_dir=my_output
  your own blanks      {lamb_bert} fill-blanks --model_dir={layout.model} \\
                           "Your sentence with a [MASK]."
  the run as a page    {lamb_bert} report {layout.model}
  a larger model       {lamb_bert} pretrain --help"""


def _program():
    """The path of `lamb-bert` for the user: `make demo` installs it outside of the PATH."""
    path = pathlib.Path(sys.executable).parent / "lamb-bert"
    if not path.exists() or shutil.which("lamb-bert") == str(path):
        return "lamb-bert"
    here = pathlib.Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    commands.run(main, Demo)
