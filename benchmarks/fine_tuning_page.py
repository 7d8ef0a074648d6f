"""The page and the picture of `fine_tuning_scores.py`, from its records alone."""

import json
import math
import pathlib
from statistics import mean, stdev

from curves import made_on, settings_table, with_deviation

from official_bert.system.whole_files import write_text

LABELS = {
    "pretrained": "`lamb_tf`, pre-trained",
    "fresh": "`lamb_tf`, without pre-training",
    "trainer": "`transformers.Trainer`, pre-trained",
}
COLORS = {"pretrained": "#4477aa", "fresh": "#999999", "trainer": "#cc3311"}
TASKS = {"sst2": "SST-2", "squad": "SQuAD, scored on 12 new articles"}
METRICS = {"eval_accuracy": "accuracy", "exact_match": "exact match", "f1": "F1"}
PERCENT = {"eval_accuracy": 100.0}  # what a score of 1 is in per cent; others are in per cent


def write(path, folder):
    """Writes `path` and the picture beside it.

    Args:
        path: The page, ending in `.md`.
        folder: Where the studies' JSON lines are, a file per task.
    """
    path, folder = pathlib.Path(path), pathlib.Path(folder)
    studies = {task: latest(folder / f"fine_tuning_{task}.jsonl") for task in TASKS}
    studies = {task: records for task, records in studies.items() if records}
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(studies, path.with_suffix(".png"))
    write_text(path, text(studies, path.stem))


def latest(results):
    """The records with the settings of the newest one."""
    lines = results.read_text().splitlines() if results.exists() else []
    records = [json.loads(line) for line in lines]
    return [r for r in records if r["settings"] == records[-1]["settings"]]


def scores(records):
    """{metric: {way: its scores over the seeds, in per cent}}."""
    found = {}
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        for metric, value in record["metrics"].items():
            ways = found.setdefault(metric, {way: [] for way in LABELS})
            ways[record["trial"]["way"]].append(PERCENT.get(metric, 1.0) * value)
    return {metric: {w: v for w, v in ways.items() if v} for metric, ways in found.items()}


def difference(values, others):
    """The difference of two means, and its standard error."""
    error = math.sqrt(sum(stdev(side) ** 2 / len(side) for side in (values, others)))
    return mean(values) - mean(others), error


def draw(studies, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (TASKS[task], METRICS[metric], ways)
        for task, records in studies.items()
        for metric, ways in scores(records).items()
    ]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.6 * len(panels), 3.4), squeeze=False, layout="constrained"
    )
    for axis, (task, metric, ways) in zip(axes[0], panels):
        for place, (way, values) in enumerate(ways.items()):
            axis.plot([place] * len(values), values, "o", color=COLORS[way], alpha=0.6)
            axis.plot(place, mean(values), "_", color=COLORS[way], markersize=28, markeredgewidth=2)
        names = [LABELS[way].replace("`", "").replace(", ", ",\n") for way in ways]
        axis.set_xticks(range(len(ways)), names, fontsize=7)
        axis.set_xlim(-0.5, len(ways) - 0.5)
        axis.set_title(task, fontsize=9)
        axis.set_ylabel(f"{metric}, %")
        axis.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def text(studies, name):
    parts = [section(task, records) for task, records in studies.items()]
    return f"""# Fine-tuning with and without pre-training

Scores of a small BERT, seed by seed: pre-trained, not pre-trained, and pre-trained but fine-tuned
by `transformers.Trainer`.

![Scores of every seed]({name}.png)

A dot is a seed, a bar the mean. All three train on the same examples with the same settings: AdamW
(weight decay 0.01, ε 10⁻⁶, gradients clipped to norm 1), a linear warm-up and a linear decay to 0.

`Trainer` starts from the same weights, exported by `lamb-bert convert`. It has its own model, order
of the examples, dropout and loop.

The questions are SQuAD's, of 36 articles for training and 12 others for the scores.

Limits: the model is [`small`](../results/small_wiki.md), pre-trained on one core in less than an
hour. It is much smaller than BERT-Base, so compare its scores only with each other.

{chr(10).join(parts)}"""


def section(task, records):
    found = scores(records)
    rows = [
        f"| {METRICS[metric]} | {LABELS[way]} | {with_deviation(values, '{:.2f}')} | "
        f"{min(values):.2f} … {max(values):.2f} | {len(values)} |"
        for metric, ways in found.items()
        for way, values in ways.items()
    ]
    commands = {r["trial"]["way"]: r["command"] for r in records if r["trial"]["seed"] == 1}
    return f"""## {TASKS[task]}

| metric, % | model | mean ± standard deviation | minimum … maximum | seeds |
|---|---|---|---|---|
{chr(10).join(rows)}

{chr(10).join(sentences(found))}

{settings_table({k: v for k, v in records[-1]["settings"].items() if k != "pretrained"})}

{made_on(records, ("tensorflow", "tensorflow-cpu", "torch", "transformers"))}. \
Made by `benchmarks/fine_tuning_scores.py --task={task}`, which runs for `lamb_tf`:

    {commands.get("pretrained", "")}
"""


def sentences(found):
    """The differences of the scores, a line per comparison."""
    lines = []
    for metric, ways in found.items():
        for way, words in (("fresh", "Pre-training adds"), ("trainer", "`lamb_tf` − `Trainer` is")):
            if min(len(ways.get(side, ())) for side in ("pretrained", way)) < 2:
                continue
            gain, error = difference(ways["pretrained"], ways[way])
            lines.append(
                f"- {words} {gain:+.2f} ± {error:.2f} points of {METRICS[metric]} (difference of "
                f"the means ± its standard error), {abs(gain) / error:.1f} standard errors."
            )
    return lines or ["Too few seeds to compare yet."]
