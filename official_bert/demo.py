"""One command from text to a pre-trained BERT, in minutes, on a machine without a GPU.

    python -m official_bert.demo [--corpus=my_texts/] [--output_dir=demo_output]

text → documents (some held out) → vocabulary → records → pre-training with LAMB in two stages →
held-out scores, filled blanks, plots. Each step calls what a larger run would call; what a step has
finished is found by the next start, so an interrupted demo goes on where it stopped.
"""

import importlib.util
import json
import pathlib
import sys

from absl import app, flags

from official_bert import (
    child_commands,
    corpus,
    plots,
    quiet_tensorflow,
    stdlib_text,
    tokenization,
    whole_files,
)
from official_bert.config import BertConfig
from official_bert.demo_folder import DemoFolder, alone_in, clock, whole_file

FLAGS = flags.FLAGS

RECIPE = "demo"
VOCAB_SIZE = 4096
HELD_OUT_SHARE = 12  # one document of so many is held out …
HELD_OUT_CHARACTERS = 300_000  # … up to this much text

# Asked at the end of a run on the text that comes with Python; of other texts, held-out sentences.
BLANKS = (
    "Return [MASK] if the file exists.",
    "If the object is not found, a KeyError is [MASK].",
    "The first [MASK] of the function is the name of the file.",
    "Convert a string to an [MASK].",
)


def main(arguments):
    if len(arguments) > 1:
        return _fail(f"unexpected argument {arguments[1]!r}; flags begin with --")
    child_commands.raise_on_signals()
    folder = pathlib.Path(FLAGS.output_dir)
    try:
        run(folder, FLAGS.corpus, FLAGS.corpus_format, FLAGS.recipe)
    except child_commands.Interrupted:
        print(f"\nStopped. The same command goes on from what is in {folder}.", flush=True)
        return 130
    except child_commands.ChildFailed as failed:
        return failed.code
    except (ValueError, OSError) as error:
        return _fail(error)
    return 0


def run(folder, corpus_patterns=(), corpus_format="auto", recipe=RECIPE):
    """The whole demo; returns what `results.json` then holds.

    Args:
        folder: Where everything is left, and where an earlier start is gone on with.
        corpus_patterns: The user's own text: files, globs or folders. None: what comes with Python.
        corpus_format: How that text is laid out; see `corpus.documents`.
        recipe: The stages of the pre-training, by their name in `recipes.RECIPES`.

    Raises:
        ValueError: if the corpus cannot be used, or `folder` holds a demo with other settings.
        OSError: if the disk is full or not writable.
    """
    if not importlib.util.find_spec("matplotlib"):
        raise ValueError('the plots need matplotlib; pip install "lamb_tf[plot]" brings it.')
    paths = corpus.find_files(corpus_patterns) if corpus_patterns else []
    layout = DemoFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder), clock(layout, paths, corpus_format, recipe) as seconds:
        _step(1, "text", write_text, layout, paths, corpus_format)
        _step(2, "vocabulary", _learn_vocabulary, layout)
        _step(3, "records", _write_records, layout, recipe)
        _step(4, "pre-training with LAMB", _pretrain, layout, recipe)
        _step(5, "plots", _draw, layout)
        _step(6, "filling blanks", _fill_blanks, layout, bool(paths))
        results = _held_out_results(layout, recipe)
        results["seconds"] = round(seconds(), 1)
        whole_files.write_text(layout.results, json.dumps(results, indent=1) + "\n")
    print(report(results, layout), flush=True)
    return results


# The steps


def write_text(layout, paths, corpus_format):
    """Documents with one sentence a line; some whole documents, spread evenly, are held out."""
    if layout.text("train").exists():
        return "already there"
    if paths:
        documents = corpus.documents(paths, corpus_format)
    else:
        documents = (corpus.Document(lines, split=True) for _, lines in stdlib_text.documents())
    layout.text("train").parent.mkdir(exist_ok=True)
    counts = {"train": [0, 0], "held_out": [0, 0]}  # documents, characters
    with whole_file(layout.text("train")) as train, whole_file(layout.text("held_out")) as held:
        for index, document in enumerate(documents):
            split = "train"
            if index % HELD_OUT_SHARE == 1 and counts["held_out"][1] < HELD_OUT_CHARACTERS:
                split = "held_out"
            text = "\n".join(map(str.strip, corpus.sentences(document))) + "\n\n"
            (train if split == "train" else held).write(text)
            counts[split][0] += 1
            counts[split][1] += len(text)
        if not counts["held_out"][0]:
            raise ValueError(
                f"The corpus has {counts['train'][0]} documents; at least two are needed, because "
                "whole ones are held out. Blank lines separate documents in a file with a sentence "
                "a line; --corpus_format names other forms."
            )
    return "; ".join(
        f"{split.replace('_', ' ')}: {count} documents, {size / 1e6:.2f} MB"
        for split, (count, size) in counts.items()
    )


def _learn_vocabulary(layout):
    """A WordPiece vocabulary of the training text, and the small BERT's shape that goes with it."""
    if not layout.vocab.exists():
        with open(layout.text("train"), encoding="utf-8") as lines:
            tokenization.learn(lines, str(layout.vocab), VOCAB_SIZE)
    size = len(tokenization.read_vocabulary(str(layout.vocab)))
    whole_files.write_text(layout.config, model_config(size).to_json())
    return f"{size} word pieces"


def model_config(vocab_size):
    """A BERT that two CPU cores train in minutes.

    LAMB's steps are relative to the weights, so a narrow model that has no time to grow its
    weights starts with 1/√128 ≈ 0.08 instead of 0.02. Nothing is dropped: few updates on masked
    text leave little to learn by heart.
    """
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=128,
        initializer_range=0.08,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def _write_records(layout, recipe):
    """Records of the official schema for the lengths of the recipe."""
    quiet_tensorflow.import_tensorflow()  # what follows needs it
    from official_bert import recipes

    for stage in recipes.find(recipe).stages:
        for split, passes, shards in ("train", 8, 4), ("held_out", 2, 1):
            child_commands.call(
                "create_pretraining_data",
                f"--input_file={layout.text(split)}",
                f"--output_file={layout.records(split, stage.max_seq_length)}",
                f"--vocab_file={layout.vocab}",
                f"--max_seq_length={stage.max_seq_length}",
                f"--max_predictions_per_seq={stage.max_predictions_per_seq}",
                f"--dupe_factor={passes}",  # over the text, with other masks and other pairs
                f"--num_shards={shards}",
            )


def _pretrain(layout, recipe):
    """The command that a larger run would use, too."""
    if (layout.model / "summaries" / "training_summary.txt").exists():  # written last
        return "already there"
    patterns = {
        split: layout.records(split, "{max_seq_length}").with_suffix(".tfrecord*")
        for split in ("train", "held_out")
    }
    child_commands.call(
        "run_pretraining",
        f"--recipe={recipe}",
        "--optimizer_type=lamb",
        f"--input_files={patterns['train']}",
        f"--eval_files={patterns['held_out']}",
        f"--bert_config_file={layout.config}",
        f"--model_dir={layout.model}",
        "--log_steps=50",
        "--eval_steps=600",
        "--eval_batch_size=128",
        "--save_checkpoints_steps=300",
        "--keep_checkpoint_max=2",
    )


def _draw(layout):
    return ", ".join(str(path) for path in plots.plot_log(layout.log, layout.plots))


def _fill_blanks(layout, own_text):
    from official_bert.fill_blanks import BlankFiller, describe

    filler = BlankFiller(layout.model, layout.vocab)
    sentences = held_out_blanks(layout) if own_text else BLANKS
    return "".join(f"\n{describe(s, filler.guesses(s))}" for s in sentences)


def held_out_blanks(layout, count=4):
    """Sentences of the held-out text, spread over it, each with its middle word blanked."""
    with open(layout.text("held_out"), encoding="utf-8") as file:
        sentences = [line.split() for line in file if 6 <= len(line.split()) <= 20]
    chosen = sentences[:: max(1, len(sentences) // count)][:count]
    return [
        " ".join([*words[: len(words) // 2], "[MASK]", *words[len(words) // 2 + 1 :]])
        for words in chosen
    ]


def _held_out_results(layout, recipe):
    """What `results.json` says: the scores of the last held-out evaluation, and of guessing."""
    lines = [json.loads(line) for line in layout.log.read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    names = ("masked_lm_loss", "masked_lm_accuracy", "most_frequent_token_accuracy")
    names += ("next_sentence_loss", "next_sentence_accuracy")
    return {
        **{name: last[name] for name in names},
        "most_frequent_label_accuracy": _most_frequent_label(layout, recipe),
        "steps": last["step"],
    }


def _most_frequent_label(layout, recipe):
    """The share of the commoner next-sentence label: where a sequence holds hardly more than one
    sentence, most second parts are random."""
    from official_bert import input_pipeline, recipes

    stage = recipes.find(recipe).stages[-1]
    batches = input_pipeline.Batches(
        [str(layout.records("held_out", stage.max_seq_length))],
        128,
        stage.max_seq_length,
        stage.max_predictions_per_seq,
        seed=0,
        shuffle=False,
    )
    random = count = 0.0
    for step in range(batches.num_batches):
        batch = batches[step]
        random += float((batch["next_sentence_labels"] * batch["example_weights"]).sum())
        count += float(batch["example_weights"].sum())
    return max(random, count - random) / count


def report(results, layout):
    """What the user reads at the end."""
    rows = [
        ("masked-LM accuracy", f"{results['masked_lm_accuracy']:.1%}"),
        ("  always the most frequent token", f"{results['most_frequent_token_accuracy']:.1%}"),
        ("masked-LM loss", f"{results['masked_lm_loss']:.3f} nats"),
        ("next-sentence accuracy", f"{results['next_sentence_accuracy']:.1%}"),
        ("  always the most frequent label", f"{results['most_frequent_label_accuracy']:.1%}"),
        ("time", f"{results['seconds']:.0f} s, {results['steps']} updates"),
    ]
    table = "\n".join(f"  {name:<34}{value:>12}" for name, value in rows)
    return f"""
On held-out text
{table}

checkpoint  {layout.model}/pretrained/bert_model.ckpt-1
            (with {layout.config} and {layout.vocab})
results     {layout.results}
plots       {layout.plots}

What to try next
  your own text        python -m official_bert.demo --corpus=FOLDER --output_dir=my_output
  your own blanks      python -m official_bert.fill_blanks --model_dir={layout.model} \\
                           --vocab_file={layout.vocab} "Your sentence with a [MASK]."
  a larger model       python -m official_bert.run_pretraining --help"""


# How the steps run


def _step(number, title, function, *arguments):
    print(f"[{number}/6] {title}", flush=True)
    outcome = function(*arguments)
    if outcome:
        print(f"      {outcome}", flush=True)


def _fail(reason):
    print(f"demo: error: {reason}", file=sys.stderr)
    return 2


def _define_flags():
    flags.DEFINE_string("output_dir", "demo_output", "Where everything is left.")
    flags.DEFINE_list(
        "corpus", [], "Your own text: files, globs or folders. Default: what comes with Python."
    )
    flags.DEFINE_enum("corpus_format", "auto", corpus.FORMS, "How that text is laid out.")
    flags.DEFINE_string("recipe", RECIPE, "The stages of the pre-training, by name.")


if __name__ == "__main__":
    _define_flags()
    app.run(main)
