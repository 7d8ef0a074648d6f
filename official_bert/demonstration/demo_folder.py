"""The folder of a demo: its files, its running time, and the scores of its model.

Each scoring function reads earlier steps' results from the folder and writes its own there.
"""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_bert.commands import plots
from official_bert.data import tokenization
from official_bert.demonstration import held_out_blanks, neighbour_baseline
from official_bert.system import whole_files
from official_bert.training import model_directory
from official_bert.training.run_files import read_log

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from official_bert.stages import Stage

NUM_BLANKS = 20
MORE_BLANKS = 300  # of the same kind, for a less random share
GUESSES = 3
_METRICS = {  # of `results.json`, with their names on the screen
    "masked_lm_accuracy": "masked-LM accuracy",
    "neighbours_accuracy": "  by counts of the two neighbours",
    "word_frequencies_accuracy": "  by word frequencies",
    "most_frequent_token_accuracy": "  always the most frequent token",
    "masked_lm_loss": "masked-LM loss",
    "neighbours_loss": "  by counts of the two neighbours",
    "word_frequencies_loss": "  by word frequencies",
    "next_sentence_accuracy": "next-sentence accuracy",
    "most_frequent_label_accuracy": "  always the most frequent label",
}


class DemoFolder:
    """The paths below the output folder."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self.vocab = self.folder / "vocab.txt"
        self.config = self.folder / "bert_config.json"
        self.model = self.folder / "model"
        self.log = self.model / "train_log.jsonl"
        self.baselines = self.folder / "baselines.json"
        self.blanks = self.folder / "blanks.json"
        self.blanks_table = self.folder / "blanks.md"
        self.plots = self.folder / "plots"
        self.results = self.folder / "results.json"
        self.settings = self.folder / "demo.json"

    def text(self, split: str) -> pathlib.Path:
        return self.folder / "text" / f"{split}.txt"

    def records(self, split: str, length: int | str) -> pathlib.Path:
        return self.folder / "records" / f"{split}_{length}.tfrecord"

    @property
    def written(self) -> list[pathlib.Path]:
        """All files and folders that a demo writes."""
        folders = [self.folder / "text", self.folder / "records", self.model, self.plots]
        files = (self.vocab, self.config, self.baselines, self.blanks, self.results, self.settings)
        return [*folders, *files, self.blanks_table]


def _write_json(path, value):
    whole_files.write_text(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def clock(
    layout: DemoFolder, paths: Sequence[str], corpus_format: str, recipe: str, vocab_size: int
) -> Iterator[Callable[[], float]]:
    """Measures the seconds that this demo has taken, including earlier starts in the folder.

    A finished demo keeps its value in later starts. A setting of an earlier start is binding once
    something has been made with it.

    Raises:
        ValueError: if the folder holds a demo with other settings, or files not made by a demo.
    """
    settings = {  # value, and the file that binds it
        "corpus": ([os.path.abspath(path) for path in paths], layout.text("train")),
        "corpus_format": (corpus_format, layout.text("train")),
        "recipe": (recipe, layout.folder / "records"),
        "vocab_size": (vocab_size, layout.vocab),
    }
    earlier = _earlier(layout)
    for name, (value, made) in settings.items():
        if made.exists() and earlier.get(name) != value:
            raise ValueError(
                f"{name} must be {earlier.get(name)!r}, as in the demo in {layout.folder}; got "
                f"{value!r}. Give another --output_dir, or remove that folder."
            )
    finished, taken = earlier.get("finished", False), earlier.get("seconds", 0.0)
    started = time.monotonic() - taken

    def seconds():
        nonlocal taken
        if not finished:
            taken = time.monotonic() - started
        return taken

    def note():
        values: dict = {name: value for name, (value, _) in settings.items()}
        _write_json(layout.settings, values | {"seconds": seconds(), "finished": finished})

    note()
    try:
        yield seconds
        finished = True
    finally:
        note()


def _earlier(layout):
    """Settings and time of earlier starts, if any."""
    try:
        earlier = json.loads(layout.settings.read_text())
        if {"corpus", "recipe", "seconds"} <= {*earlier}:
            return earlier
    except FileNotFoundError:
        if not any(path.exists() for path in layout.written):
            return {}
    except (ValueError, TypeError):
        pass
    found = next(path for path in layout.written if path.exists())
    raise ValueError(
        f"output_dir must be a new folder, or one of an earlier demo; got {layout.folder}, whose "
        f"{found.name} was not made by a demo. Give another --output_dir."
    )


def documents(text_file: pathlib.Path, tokenizer: "Tokenizer") -> Iterator[list[int]]:
    """The documents of a text as lists of ids."""
    encode = tokenization.SentenceEncoder(tokenizer)
    for document in text_file.read_text(encoding="utf-8").strip().split("\n\n"):
        yield [token for sentence in encode(document.split("\n")) for token in sentence]


def held_out_batches(
    layout: DemoFolder, stage: "Stage", batch_size: int
) -> Iterator[Mapping[str, np.ndarray]]:
    """The batches on which the run was evaluated in a stage, masks included."""
    from official_bert.data import input_pipeline

    run = json.loads((layout.model / "run.json").read_text())
    batches = input_pipeline.Batches(
        [str(layout.records("held_out", stage.max_seq_length))],
        batch_size,
        stage.max_seq_length,
        stage.max_predictions_per_seq,
        seed=run["seed"],
        shuffle=False,
        use_next_sentence=run["use_next_sentence_label"],
    )
    return (batches[step] for step in range(batches.num_batches))


def write_baselines(layout: DemoFolder, stages: "Sequence[Stage]", batch_size: int) -> str:
    """Scores the counting baselines at the held-out masked positions of each stage."""
    tokenizer = tokenization.load(str(layout.vocab))
    text = documents(layout.text("train"), tokenizer)
    counts = neighbour_baseline.NeighbourCounts(text, tokenizer.get_vocab_size())
    mask_id = tokenizer.get_vocab()[tokenization.MASK]
    baselines = [
        neighbour_baseline.evaluate(counts, held_out_batches(layout, stage, batch_size), mask_id)
        for stage in stages
    ]
    _write_json(layout.baselines, baselines)
    return ", ".join(
        f"{name} {scores['accuracy']:.1%}, {scores['loss']:.3f} nats"
        for name, scores in baselines[-1].items()
    )


def draw(layout: DemoFolder) -> str:
    baselines = json.loads(layout.baselines.read_text())
    return ", ".join(map(str, plots.plot_log(layout.log, layout.plots, baselines)))


def fill_blanks(layout: DemoFolder) -> None:
    """Predicts words of the held-out text with the model, trained and untrained."""
    from official_bert.prediction import loading

    text, vocab = str(layout.text("held_out")), str(layout.vocab)
    blanks = held_out_blanks.choose(text, vocab, NUM_BLANKS)
    more = held_out_blanks.choose(text, vocab, MORE_BLANKS)

    def answers(filler, blanks):
        sentences = [blank.sentence for blank in blanks]
        return [found[0] for found in filler.predict(sentences, GUESSES, words_only=True)]

    trained = loading.load(layout.model, layout.vocab)
    before = answers(loading.load(layout.model, layout.vocab, step=0), blanks)
    after = answers(trained, blanks)
    figures = {
        "blanks": len(blanks),
        "blanks_right_in_top_3": held_out_blanks.hits(blanks, after),
        "blanks_right_in_top_3_before_training": held_out_blanks.hits(blanks, before),
        "more_blanks": len(more),
        "more_blanks_right_in_top_3": held_out_blanks.hits(more, answers(trained, more)),
    }
    _write_json(layout.blanks, figures)
    whole_files.write_text(layout.blanks_table, held_out_blanks.table(blanks, before, after))
    print(held_out_blanks.describe(blanks, before, after), flush=True)


def write_results(
    layout: DemoFolder, last_stage: "Stage", batch_size: int, seconds: float
) -> dict[str, float]:
    """Writes `results.json` and returns its content."""
    log = read_log(layout.log)
    last = log.held_out[-1]
    baselines = json.loads(layout.baselines.read_text())
    found = last | {
        f"{name.replace(' ', '_')}_{metric}": value
        for name, scores in baselines[-1].items()
        for metric, value in scores.items()
    }
    if "next_sentence_accuracy" in last:
        found["most_frequent_label_accuracy"] = _most_frequent_label(layout, last_stage, batch_size)
    results = {
        **{name: found[name] for name in _METRICS if name in found},
        "plateau_left_after": plots.plateau_end(log.train, baselines),
        **json.loads(layout.blanks.read_text()),
        "steps": last["step"],
        "dtype": (model_directory.read_run_json(layout.model) or {}).get("dtype"),
        "seconds": round(seconds, 1),
    }
    _write_json(layout.results, results)
    return results


def _most_frequent_label(layout, stage, batch_size):
    """The share of the more frequent next-sentence label."""
    random = count = 0.0
    for batch in held_out_batches(layout, stage, batch_size):
        random += float((batch["next_sentence_labels"] * batch["example_weights"]).sum())
        count += float(batch["example_weights"].sum())
    return max(random, count - random) / count


def table(results: dict) -> str:
    """The metrics of `results.json` as text."""
    left, of_blanks = results["plateau_left_after"], f"of {results['blanks']} blanks"
    rows = [
        (text, f"{results[name]:.1%}" if "accuracy" in name else f"{results[name]:.3f} nats")
        for name, text in _METRICS.items()
        if name in results
    ]
    before, more = "blanks_right_in_top_3_before_training", "more_blanks_right_in_top_3"
    rows += [
        (
            "right word among the first three words",
            f"{results['blanks_right_in_top_3']} {of_blanks}",
        ),
        ("  before training", f"{results[before]} {of_blanks}"),
        (
            "  of more blanks, chosen in the same way",
            f"{results[more]} of {results['more_blanks']}",
        ),
        ("plateau left", "never" if left is None else f"after {left} steps"),
        ("time", f"{results['seconds']:.0f} s, {results['steps']} steps, {results['dtype']}"),
    ]
    return "\n".join(f"  {name:<40}{value:>14}" for name, value in rows)
