"""The quality of a demo's model: its held-out scores beside those of counting, and its blanks.

Each function reads the results of the steps before it from the demo's folder, and writes its own
results there.
"""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from official_bert import plots
from official_bert.data import tokenization
from official_bert.demonstration import held_out_blanks, neighbour_baseline
from official_bert.demonstration.demo_folder import DemoFolder
from official_bert.system import whole_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from official_bert.data.input_pipeline import Batches
    from official_bert.stages import Stage

NUM_BLANKS = 20
MORE_BLANKS = 300  # chosen in the same way, for a less random share
GUESSES = 3


def write_baselines(layout: DemoFolder, stages: "Sequence[Stage]", eval_batch_size: int) -> str:
    """The scores of counting at the masked positions of the held-out records, for each stage."""
    tokenizer = tokenization.load(str(layout.vocab))
    counts = neighbour_baseline.NeighbourCounts(
        documents(layout.text("train"), tokenizer), tokenizer.get_vocab_size()
    )
    mask_id = tokenizer.get_vocab()[tokenization.MASK]
    baselines = []
    for stage in stages:
        batches = _all(held_out_batches(layout, stage, eval_batch_size))
        baselines.append(neighbour_baseline.evaluate(counts, batches, mask_id))
    whole_files.write_text(layout.baselines, json.dumps(baselines, indent=1) + "\n")
    return ", ".join(
        f"{name} {scores['accuracy']:.1%}, {scores['loss']:.3f} nats"
        for name, scores in baselines[-1].items()
    )


def documents(text_file: pathlib.Path, tokenizer: "Tokenizer") -> Iterator[list[int]]:
    """The documents of a text as lists of ids."""
    encode = tokenization.SentenceEncoder(tokenizer)
    for document in text_file.read_text(encoding="utf-8").strip().split("\n\n"):
        yield [token for sentence in encode(document.split("\n")) for token in sentence]


def held_out_batches(layout: DemoFolder, stage: "Stage", eval_batch_size: int) -> "Batches":
    """The batches that the run was evaluated on in a stage, its masks included."""
    from official_bert.data import input_pipeline

    run = json.loads((layout.model / "run.json").read_text())
    return input_pipeline.Batches(
        [str(layout.records("held_out", stage.max_seq_length))],
        eval_batch_size,
        stage.max_seq_length,
        stage.max_predictions_per_seq,
        seed=run["seed"],
        shuffle=False,
        use_next_sentence=run["use_next_sentence_label"],
    )


def _all(batches):
    return (batches[step] for step in range(batches.num_batches))


def draw(layout: DemoFolder) -> str:
    baselines = json.loads(layout.baselines.read_text())
    return ", ".join(map(str, plots.plot_log(layout.log, layout.plots, baselines)))


def fill_blanks(layout: DemoFolder) -> str:
    """Lets the model, after and before training, predict words of the held-out text."""
    from official_bert.prediction import loading

    text, vocab = str(layout.text("held_out")), str(layout.vocab)
    blanks = held_out_blanks.choose(text, vocab, NUM_BLANKS)
    more = held_out_blanks.choose(text, vocab, MORE_BLANKS)
    loaders: dict[str, Callable] = {"before": loading.load_untrained, "after": loading.load}
    fillers = {when: load(layout.model, layout.vocab) for when, load in loaders.items()}

    def answer(filler, asked):
        sentences = [blank.sentence for blank in asked]
        return [blanks[0] for blanks in filler.predict(sentences, GUESSES, words_only=True)]

    answers = {when: answer(filler, blanks) for when, filler in fillers.items()}
    more_answers = answer(fillers["after"], more)
    figures = {
        "blanks": len(blanks),
        "blanks_right_in_top_3": held_out_blanks.hits(blanks, answers["after"]),
        "blanks_right_in_top_3_before_training": held_out_blanks.hits(blanks, answers["before"]),
        "more_blanks": len(more),
        "more_blanks_right_in_top_3": held_out_blanks.hits(more, more_answers),
    }
    whole_files.write_text(layout.blanks, json.dumps(figures, indent=1) + "\n")
    table = held_out_blanks.table(blanks, answers["before"], answers["after"])
    whole_files.write_text(layout.blanks_table, table)
    return held_out_blanks.describe(blanks, answers["before"], answers["after"])


def results(layout: DemoFolder, stages: "Sequence[Stage]", eval_batch_size: int) -> dict:
    """The content of `results.json`, as a dictionary."""
    lines = [json.loads(line) for line in layout.log.read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    baselines = json.loads(layout.baselines.read_text())
    train = [line for line in lines if line["kind"] == "train"]
    found = {
        "masked_lm_accuracy": last["masked_lm_accuracy"],
        "neighbours_accuracy": baselines[-1]["neighbours"]["accuracy"],
        "word_frequencies_accuracy": baselines[-1]["word frequencies"]["accuracy"],
        "most_frequent_token_accuracy": last["most_frequent_token_accuracy"],
        "masked_lm_loss": last["masked_lm_loss"],
        "neighbours_loss": baselines[-1]["neighbours"]["loss"],
        "word_frequencies_loss": baselines[-1]["word frequencies"]["loss"],
        "plateau_left_after": plots.plateau_end(train, baselines),
        **json.loads(layout.blanks.read_text()),
        "steps": last["step"],
    }
    if "next_sentence_accuracy" in last:
        batches = held_out_batches(layout, stages[-1], eval_batch_size)
        found |= {
            "next_sentence_accuracy": last["next_sentence_accuracy"],
            "most_frequent_label_accuracy": _most_frequent_label(batches),
        }
    return found


def _most_frequent_label(batches):
    """The share of the more frequent next-sentence label."""
    random = count = 0.0
    for batch in _all(batches):
        random += float((batch["next_sentence_labels"] * batch["example_weights"]).sum())
        count += float(batch["example_weights"].sum())
    return max(random, count - random) / count


def table(results: dict) -> str:
    """The metrics of `results.json` for the screen."""
    rows = [
        ("masked-LM accuracy", f"{results['masked_lm_accuracy']:.1%}"),
        ("  by counts of the two neighbours", f"{results['neighbours_accuracy']:.1%}"),
        ("  by word frequencies", f"{results['word_frequencies_accuracy']:.1%}"),
        ("  always the most frequent token", f"{results['most_frequent_token_accuracy']:.1%}"),
        ("masked-LM loss", f"{results['masked_lm_loss']:.3f} nats"),
        ("  by counts of the two neighbours", f"{results['neighbours_loss']:.3f} nats"),
        ("  by word frequencies", f"{results['word_frequencies_loss']:.3f} nats"),
    ]
    if "next_sentence_accuracy" in results:
        rows += [
            ("next-sentence accuracy", f"{results['next_sentence_accuracy']:.1%}"),
            ("  always the most frequent label", f"{results['most_frequent_label_accuracy']:.1%}"),
        ]
    left = results["plateau_left_after"]
    rows += [
        (
            "right word among the first three words",
            f"{results['blanks_right_in_top_3']} of {results['blanks']} blanks",
        ),
        (
            "  before training",
            f"{results['blanks_right_in_top_3_before_training']} of {results['blanks']} blanks",
        ),
        (
            "  of more blanks, chosen in the same way",
            f"{results['more_blanks_right_in_top_3']} of {results['more_blanks']}",
        ),
        ("plateau left", "never" if left is None else f"after {left} updates"),
        ("time", f"{results['seconds']:.0f} s, {results['steps']} updates"),
    ]
    return "\n".join(f"  {name:<40}{value:>14}" for name, value in rows)
