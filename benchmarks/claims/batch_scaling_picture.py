"""Plots of `batch_scaling.py`: loss over the batch, tuned and untuned; and one for a front page."""

from statistics import mean

import batch_scaling_page as page
import stats as findings
from stats import curves

CEILING = 5.4  # nats: what is above is at the plateau
LINE = 0.22  # nats: the height of a line of text in the plot of untuned losses


def draw(records, settings, path):
    """Three panels at `path`; next to it `NAME_untuned.png`, one panel that a phone can show."""
    findings.picture(lambda axes: _draw(axes, records, settings), path, 3, (14, 4.6))
    untuned = path.with_stem(f"{path.stem}_untuned")
    findings.picture(lambda axes: _draw_untuned(axes[0], records, settings), untuned, 1, (7, 4.7))


def _draw_untuned(axis, records, settings):
    """Mean loss by the rule over the batch; every line bears its optimizer's name at its end."""
    batches = [settings["base_batch"] * k for k in settings["multiples"]]
    ends = []
    for method in page.methods(records, settings):
        found = {k: _untuned(records, settings, method, k) for k in settings["multiples"]}
        means = [mean(known) for values in found.values() if (known := page.losses(values))]
        if not means:
            continue
        style = {"color": page.COLORS[method], "linewidth": 4 if method == "lamb" else 2.5}
        axis.plot(batches[: len(means)], means, marker="o", **style)
        diverged = len(means) < len(batches)
        ends.append((means[-1], batches[len(means) - 1], method, diverged))
    place = 0.0
    for loss, batch, method, diverged in sorted(ends):
        words = page.LABELS[method] + " diverges" * diverged
        if not diverged:
            place = max(loss, place + LINE)
        at = (batch * 0.85, loss) if diverged else (batch * 1.15, place)
        weight = "bold" if method == "lamb" else "normal"
        style = {"color": page.COLORS[method], "fontsize": 15, "fontweight": weight}
        axis.text(*at, words, va="center", ha="right" if diverged else "left", **style)
    axis.set(xscale="log", xlim=(batches[0] * 0.6, batches[-1] * 5.2))
    axis.set_xticks(batches, [f"{batch:,}" for batch in batches], fontsize=15)
    axis.minorticks_off()
    axis.tick_params(axis="y", labelsize=15)
    axis.set_xlabel("batch, sequences", fontsize=15, loc="left")
    axis.set_ylabel("held-out loss, nats", fontsize=15)
    axis.set_title("A larger batch without a new search", fontsize=17, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(top=axis.get_ylim()[1] + LINE / 2)
    axis.grid(axis="y", alpha=0.3)


def _draw(axes, records, settings):
    largest = settings["base_batch"] * settings["multiples"][-1]
    titles = (
        "tuned at every batch",
        "untuned, by the rule",
        f"steps to {curves.PLATEAU} nats",
    )
    for axis, title in zip(axes, titles):
        axis.set(xscale="log", xlabel="batch, sequences")
        axis.set_title(title, pad=32)  # above the notes
        batches = [settings["base_batch"] * k for k in settings["multiples"]]
        axis.set_xticks(batches, [f"{batch:,}" for batch in batches])
        axis.minorticks_off()
        axis.set_xlim(settings["base_batch"] * 0.7, largest * 1.4)
    for method in page.methods(records, settings):
        groups = {k: page.complete(records, settings, method, k) for k in settings["multiples"]}
        rule = {k: page.untuned(records, settings, method, k) for k in settings["multiples"]}
        rule = rule if groups[settings["multiples"][0]] else {}
        steps = {k: [page.updates_to_target(run) for run in found] for k, found in groups.items()}
        known = {k: [s for s in found if s is not None] for k, found in steps.items()}
        style = {"color": page.COLORS[method], "label": page.LABELS[method]}
        for axis, points in zip(axes, (_of(groups), _of(rule), known)):
            at = {settings["base_batch"] * k: values for k, values in points.items()}
            findings.means_and_ranges(axis, at, **style)
    for axis, of in zip(axes, (page.complete, _untuned)):
        _note_those_above(axis, records, settings, of)
    axes[0].set_ylabel("held-out loss, nats")
    axes[2].set(ylabel="steps", yscale="log")
    if axes[0].containers:
        axes[2].legend(*axes[0].get_legend_handles_labels(), fontsize=8)
    axes[0].sharey(axes[1])
    for axis in axes[:2]:
        axis.set_ylim(top=min(axis.get_ylim()[1], CEILING))
        axis.grid(axis="y", alpha=0.3)


def _untuned(records, settings, method, multiple):
    base = page.complete(records, settings, method, settings["multiples"][0])
    return page.untuned(records, settings, method, multiple) if base else []


def _of(groups):
    return {k: page.losses(found) for k, found in groups.items()}


def _note_those_above(axis, records, settings, of):
    """The means above the picture as numbers over it, one optimizer above the other."""
    for multiple in settings["multiples"]:
        rank = 0
        for method in page.methods(records, settings):
            found = of(records, settings, method, multiple)
            known = page.losses(found)
            if not found or (known and mean(known) <= CEILING):
                continue
            words = f"{mean(known):.1f}" if known else "diverged"
            place = {"xytext": (0, 3 + 9 * rank), "textcoords": "offset points", "fontsize": 8}
            at = settings["base_batch"] * multiple, 1
            style = {
                "ha": "center",
                "color": page.COLORS[method],
                "xycoords": axis.get_xaxis_transform(),
            }
            axis.annotate(words, at, **place, **style)
            rank += 1
