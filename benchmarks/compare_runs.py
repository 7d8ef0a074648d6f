"""Held-out curves of several runs, side by side over wall time and over updates.

    python benchmarks/compare_runs.py --runs='two phases=models/plain,MSLT=models/mslt' \
        --output=docs/results/small_wiki --notes='Two cores each, at the same time.'

Reads the `train_log.jsonl` of finished runs and writes OUTPUT.png and OUTPUT.md. Wall time is that
of training, the tracing of its graphs included, and without evaluation and checkpoints.
"""

import datetime
import itertools
import json
import pathlib

import machine
import matplotlib
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_list("runs", None, "NAME=MODEL_DIR, …: finished runs.", required=True)
flags.DEFINE_string("output", None, "Path without ending of picture and table.", required=True)
flags.DEFINE_string("notes", "", "A sentence on how the runs were made.")


def main(_):
    runs = {}
    for run in FLAGS.runs:
        name, _, model_dir = run.partition("=")
        runs[name] = read(pathlib.Path(model_dir))
    output = pathlib.Path(FLAGS.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    draw(runs, output.with_suffix(".png"))
    output.with_suffix(".md").write_text(table(runs, output.name))


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
    for line in held_out:  # an evaluation may lie between two lines of training
        line["minutes"] = np.interp(line["step"], steps, seconds) / 60
    return json.loads((model_dir / "run.json").read_text()), train, held_out


def draw(runs, path):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharey="row", layout="constrained")
    names = {"masked_lm_loss": "held-out masked-LM loss, nats", "masked_lm_accuracy": "accuracy"}
    units = {"minutes": "minutes of training", "step": "updates"}
    for (row, name), (column, unit) in itertools.product(enumerate(names), enumerate(units)):
        axis = axes[row][column]
        for run, (_, _, held_out) in runs.items():
            axis.plot(
                [line[unit] for line in held_out],
                [line[name] for line in held_out],
                marker="o",
                markersize=3,
                label=run,
            )
        axis.set_xlabel(units[unit])
        axis.set_ylabel(names[name] if column == 0 else "")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def table(runs, name):
    rows = []
    for run, (description, train, held_out) in runs.items():
        last = held_out[-1]
        stages = ", ".join(
            f"{stage['steps']} × {stage['batch_size']} × {stage['max_seq_length']}"
            + (f" (depth {stage['depth']})" if stage["depth"] else "")
            for stage in description["stages"]
        )
        cells = (
            run,
            stages,
            train[-1]["step"],
            f"{last['minutes']:.1f}",
            f"{last['masked_lm_loss']:.3f}",
            f"{100 * last['masked_lm_accuracy']:.1f} %",
            f"{100 * last['most_frequent_token_accuracy']:.1f} %",
            f"{100 * last['next_sentence_accuracy']:.1f} %"
            if "next_sentence_accuracy" in last
            else "not trained",
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return f"""# Held-out curves side by side, {datetime.date.today():%B %Y}

{machine.describe("tensorflow", "tensorflow-cpu")}. \
{FLAGS.notes}

| run | stages: updates × batch × length | updates | minutes | masked-LM loss | accuracy \
| most frequent token | next sentence |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

![held-out loss and accuracy over time and updates]({name}.png)
"""


if __name__ == "__main__":
    app.run(main)
