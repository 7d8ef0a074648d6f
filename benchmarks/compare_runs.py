"""Held-out curves of several runs, side by side over wall time and over steps.

    python benchmarks/compare_runs.py --runs='two phases=models/plain,MSLT=models/mslt' \
        --output=build/small_wiki --notes='Two cores each, at the same time.'

Reads the `train_log.jsonl` of finished runs and writes OUTPUT.png and OUTPUT.md. Wall time is that
of training, with the tracing of its graphs and without evaluations and checkpoints.
"""

import argparse
import itertools
import json
import pathlib

import machine
import numpy as np
import stats

HEAD = ("run", "stages: steps × batch × length", "steps", "minutes", "masked-LM loss", "accuracy")
HEAD += ("most frequent token", "next sentence")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", required=True, help="NAME=MODEL_DIR,…: finished runs")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="path without ending")
    parser.add_argument("--notes", default="", help="a sentence on how the runs were made")
    given = parser.parse_args()
    pairs = [run.partition("=")[::2] for run in given.runs.split(",")]
    runs = {name: read(pathlib.Path(model_dir)) for name, model_dir in pairs}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    draw(runs).savefig(given.output.with_suffix(".png"), dpi=100)
    picture = f"![held-out loss and accuracy over time and steps]({given.output.name}.png)"
    notes = [given.notes] if given.notes else []
    rows = [HEAD, *itertools.starmap(row, runs.items())]
    text = machine.page("Held-out curves side by side", *notes, rows, picture)
    machine.write(given.output.with_suffix(".md"), text)


def read(model_dir):
    """A run's description, its lines of training, and its evaluations with their minutes."""
    lines = [json.loads(line) for line in (model_dir / "train_log.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    steps, seconds = zip(*((line["step"], line["timing"]["seconds"]) for line in train))
    for before, after in itertools.pairwise(steps):
        if after <= before:
            raise ValueError(
                f"{model_dir}/train_log.jsonl has step {after} after step {before}: the steps of "
                "one run increase. Delete the lines of the other run."
            )
    held_out = [line for line in lines if line["kind"] == "eval"]
    for line in held_out:  # an evaluation may be between two lines of training
        line["minutes"] = np.interp(line["step"], steps, seconds) / 60
    return json.loads((model_dir / "run.json").read_text()), train, held_out


def draw(runs):
    figure, axes = stats.figure(2, 2, (10, 7), sharey="row")
    names = {"masked_lm_loss": "held-out masked-LM loss, nats", "masked_lm_accuracy": "accuracy"}
    units = {"minutes": "minutes of training", "step": "steps"}
    for axis, (name, unit) in zip(axes.flat, itertools.product(names, units)):
        for run, (_, _, held_out) in runs.items():
            values = ([line[key] for line in held_out] for key in (unit, name))
            axis.plot(*values, marker="o", markersize=3, label=run)
        axis.set(xlabel=units[unit], ylabel=names[name])
        axis.label_outer()
        axis.grid(alpha=0.3)
        axis.legend()
    figure.set_layout_engine("constrained")
    return figure


def row(run, contents):
    description, train, held_out = contents
    last = held_out[-1]
    stages = ", ".join(
        f"{stage['steps']} × {stage['batch_size']} × {stage['max_seq_length']}"
        + (f" (depth {stage['depth']})" if stage["depth"] else "")
        for stage in description["stages"]
    )
    names = ("masked_lm_accuracy", "most_frequent_token_accuracy", "next_sentence_accuracy")
    shares = (f"{100 * last[n]:.1f} %" if n in last else "not trained" for n in names)
    figures = train[-1]["step"], f"{last['minutes']:.1f}", f"{last['masked_lm_loss']:.3f}"
    return (run, stages, *figures, *shares)


if __name__ == "__main__":
    main()
