"""The page and the picture of `learning_curves.py`, from its records alone."""

import math
import pathlib
import shlex
from statistics import mean, median, stdev

from curves import (
    PLATEAU,
    bands,
    draw_band,
    first_at,
    made_on,
    settings_table,
    with_deviation,
    with_range,
)

from official_bert.system.whole_files import write_text

LEVEL = 4.5  # nats of held-out loss, the time to which is the figure of merit
LABELS = {
    "ours": "ours",
    "peer": "Hugging Face in PyTorch",
    "peer_compiled": "Hugging Face, `torch.compile`",
}
COLORS = {"ours": "#4477aa", "peer": "#cc3311", "peer_compiled": "#ee9944"}


def write(path, records, settings, arguments, trials):
    """Writes `path` and the picture beside it.

    Args:
        path: The page, ending in `.md`.
        records: Finished trials, as in the JSON lines.
        settings: Those of the study.
        arguments: Those of the command.
        trials: Number of trials of the whole study.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = by_dropout_and_side(records)
    if groups:
        draw(groups, path.with_suffix(".png"))
        write_text(path, text(groups, records, settings, arguments, trials, path.stem))


def by_dropout_and_side(records):
    """{dropout: {side: curves}}, a curve a seed."""
    groups = {}
    for record in sorted(records, key=lambda r: (r["trial"]["dropout"], r["trial"]["side"])):
        trial = record["trial"]
        groups.setdefault(trial["dropout"], {}).setdefault(trial["side"], []).append(
            record["curve"]
        )
    return groups


def overlap(ours, theirs):
    """At how many of the common evaluations two sides' bands overlap, and of how many."""
    ours, theirs = bands(ours), bands(theirs)
    common = ours.keys() & theirs.keys()
    return sum(
        ours[step][0] <= theirs[step][2] and theirs[step][0] <= ours[step][2] for step in common
    ), len(common)


def draw(groups, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(groups), figsize=(5 * len(groups), 7), sharey=True, squeeze=False
    )
    for column, (dropout, sides) in enumerate(groups.items()):
        for side, curves in sides.items():
            for row, unit in enumerate(("step", "seconds")):
                label = LABELS[side].replace("`", "")
                draw_band(axes[row][column], curves, unit, COLORS[side], label)
        axes[0][column].set(title=f"dropout {dropout:g}", xlabel="steps")
        axes[1][column].set(xlabel="seconds of training (median)")
        for axis in axes[:, column]:
            axis.axhline(LEVEL, color="#777777", lw=0.8, ls="--")
    for axis in axes[:, 0]:
        axis.set_ylabel("held-out masked-LM loss, nats")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def text(groups, records, settings, arguments, trials, name):
    packages = ("tensorflow", "tensorflow-cpu", "torch", "transformers")
    rows = [
        row(dropout, side, curves)
        for dropout, sides in groups.items()
        for side, curves in sides.items()
    ]
    load = max(record["machine"]["load_before"] for record in records)
    return f"""# Learning curves compared with Hugging Face

Whole pre-training runs of one small model, by this project and by Hugging Face's BERT in PyTorch:

{chr(10).join(findings(groups))}

![Held-out loss over steps and over seconds]({name}.png)

Lines are medians over seeds, bands range from the minimum to the maximum.

| dropout | side | trials | loss at the end | accuracy | plateau left at step | s to {LEVEL} \
nats | ms per step |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

- Loss and accuracy are those of masked words on held-out documents: mean ± standard deviation \
over seeds.
- The plateau, where a model knows only the frequencies of words, ends at the first step with a \
loss below {PLATEAU} nats. This column and the time to {LEVEL} nats: median (minimum … maximum).
- Seconds are training time. Tracing and compiling are included, evaluations and start-up are not.

## What is compared

Both sides train one model on the same batches of the same text, with AdamW, one schedule and \
clipping to norm 1. Initial values have the standard deviation {settings["initial_stddev"]}. This \
project runs `lamb-bert pretrain`. The peer is `BertForPreTraining` with sdpa attention, PyTorch's \
fused AdamW and batches read ahead by a thread. A seed decides initial values (drawn by each \
side's own generator), batches, masks and dropout.

## How it was measured

{made_on(records, packages)}. {len(records)} of {trials} trials are done. The load average before \
a trial was at most {load:.1f}.

Made by `{shlex.join(["python", *arguments])}`, which writes this page. Its `--results` has one \
line per trial with command, settings and curve.

{settings_table(settings)}
"""


def row(dropout, side, curves):
    ends = [curve[-1] for curve in curves]
    per_update = [1000 * end["seconds"] / end["step"] for end in ends]
    cells = (
        f"{dropout:g}",
        LABELS[side],
        len(curves),
        with_deviation([end["masked_lm_loss"] for end in ends], "{:.3f}"),
        with_deviation([100 * end["masked_lm_accuracy"] for end in ends], "{:.1f}") + " %",
        with_range([first_at(curve, PLATEAU, "step") for curve in curves]),
        with_range([first_at(curve, LEVEL, "seconds") for curve in curves]),
        f"{median(per_update):.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def findings(groups):
    """The results, as sentences, for each dropout rate."""
    lines = []
    for dropout, sides in groups.items():
        if "ours" not in sides:
            continue
        for side, theirs in sides.items():
            if side != "ours":
                lines.append(f"- Dropout {dropout:g}: {comparison(sides['ours'], theirs, side)}.")
    return lines or ["No trials of both sides yet."]


def comparison(ours, theirs, side):
    meets, common = overlap(ours, theirs)
    times = [[first_at(curve, LEVEL, "seconds") for curve in curves] for curves in (ours, theirs)]
    if None in times[0] + times[1]:
        speed = f"not every trial reaches {LEVEL} nats"
    else:
        mine, other = median(times[0]), median(times[1])
        speed = (
            f"**{LEVEL} nats of held-out loss after {mine:.0f} s, {LABELS[side]} after "
            f"{other:.0f} s: {other / mine:.2f} times as long** (medians)"
        )
    return (
        f"{speed}; the bands overlap at {meets} of {common} evaluations; {difference(ours, theirs)}"
    )


def difference(ours, theirs):
    """The difference of the losses at the end, with its standard error (Welch's)."""
    ends = [[curve[-1]["masked_lm_loss"] for curve in curves] for curves in (ours, theirs)]
    gap = mean(ends[0]) - mean(ends[1])
    if min(map(len, ends)) < 2:
        return f"at the end ours − theirs is {gap:+.3f} nats, of too few seeds for an error"
    error = math.sqrt(sum(stdev(values) ** 2 / len(values) for values in ends))
    return f"at the end ours − theirs is {gap:+.3f} ± {error:.3f} nats (standard error)"
