"""Tables and pictures of `batch_scaling.py`, from its records."""

import functools
import itertools
from statistics import mean

import stats

LABELS = {
    "lamb": "LAMB",
    "adamw": "AdamW",
    "orscale": "OrScale",
    "nesterov": "Nesterov SGD",
    "lars": "LARS",
    "muon": "Muon (Keras)",
}
COLORS = {
    "lamb": "#cc3311",
    "adamw": "#4477aa",
    "orscale": "#228833",
    "nesterov": "#ee9944",
    "lars": "#aa3377",
    "muon": "#777777",
}
MOST_WARMUP = 0.9  # of a run, by the rule
TUNING = ("search", "long warm-up")  # parts of a study whose trials are points of a sequence
HELD = 0.1  # nats above the loss at the smallest batch that count as held
CEILING = 5.4  # nats: the plateau begins above it
LINE = 0.22  # nats: the height of a line of text in the plot of untuned losses


# The runs of a method at a batch


def methods(records, settings):
    """The methods that have been run."""
    run = {record["trial"]["method"] for record in records}
    return [method for method in itertools.chain(*settings["groups"]) if method in run]


def searched(records, method, multiple):
    """The runs from which the best is chosen: both parts of the search and the rule."""
    at = {"method": method, "multiple": multiple, "seed": 1}
    return [r for r in records if any(_is(r, part=part, **at) for part in (*TUNING, "rule"))]


def best(records, method, multiple):
    """The run with the lowest loss on the set to choose by."""
    return stats.chosen(searched(records, method, multiple), "select", lowest=True)


def tuned(records, settings, method, multiple):
    """The best and its further seeds; empty before a search."""
    if not searched(records, method, multiple):
        return []
    more = [r for r in records if _is(r, part="best", method=method, multiple=multiple)]
    return [best(records, method, multiple), *more]


def complete(records, settings, method, multiple):
    """The tuned runs at a batch; empty until its search has ended."""
    tried = len(searched(records, method, multiple))
    done = tried and tried == to_search(settings, method, multiple)
    return tuned(records, settings, method, multiple) if done else []


def to_search(settings, method, multiple):
    """The number of runs from which the best is chosen when all are done."""
    parts = 1 + (multiple in settings["long_warmup_multiples"])
    return parts * points(settings, method, multiple) + (multiple != settings["multiples"][0])


def points(settings, method, multiple):
    """The number of points of the sequence that a part of the search tries."""
    return settings["trials"][method][settings["multiples"].index(multiple)]


def untuned(records, settings, method, multiple):
    """The runs by the rule; at the base, the tuned ones."""
    if multiple == settings["multiples"][0]:
        return tuned(records, settings, method, multiple)
    return [r for r in records if _is(r, part="rule", method=method, multiple=multiple)]


def _is(record, **values):
    return all(record["trial"][key] == value for key, value in values.items())


def losses(found):
    return [record["report"] for record in found if record["report"] is not None]


def is_stuck(record):
    """Whether a run has not left the plateau."""
    return record["report"] is None or record["report"] > stats.PLATEAU


def updates_to_target(run):
    return stats.first_at(run["curve"], stats.PLATEAU, "step", "report")


# Tables


def tables(records, settings):
    """{name: rows}; see docs/evidence/batch_scaling.md."""
    of = functools.partial(_by_batch, records, settings)
    return {
        "answer": answer(records, settings),
        "compared with LAMB": _compared(records, settings),
        "tuned": of(_tuned_cell),
        "untuned": of(_untuned_cell),
        "warm-ups": warmups(records, settings),
        "steps": of(_steps_cell),
        "chosen": chosen(records, settings),
    }


def _by_batch(records, settings, cell):
    head = ("optimizer", *(f"batch {b:,}" for b in batches(settings).values()))
    rows = [
        (LABELS[m], *(cell(records, settings, m, k) for k in settings["multiples"]))
        for m in methods(records, settings)
    ]
    return [head, *rows]


def batches(settings):
    """{multiple: batch}"""
    return {k: settings["base_batch"] * k for k in settings["multiples"]}


def answer(records, settings):
    """The batch up to which each holds its loss, and the change at the largest."""
    sizes, rows = batches(settings), []
    for method in methods(records, settings):
        groups = [
            {k: way(records, settings, method, k) for k in sizes} for way in (complete, untuned)
        ]
        at_base = losses(groups[0][1])
        if not at_base or not any(found for k, found in groups[1].items() if k > 1):
            continue
        row = [LABELS[method], f"{mean(at_base):.2f}"]
        for found in groups:
            stuck = mean(at_base) > stats.PLATEAU
            row += ["–", "–"] if stuck else [held(found, settings), change(found, settings)]
        rows.append(row)
    how = [f"{how}: {what}" for how in ("tuned", "untuned") for what in ("holds up to", "change")]
    return [("optimizer", f"loss at {sizes[1]:,}", *how), *rows]


def held(groups, settings):
    """The largest of the finished batches with a held loss, by the seeds shared with the base."""
    first, certain, possible, tried = groups[min(groups)], None, None, None
    for multiple, found in groups.items():
        if not found:
            break
        tried, gaps = multiple, stats.paired(found, first)
        if any(r["diverged"] for r in found) or not gaps:
            break
        within = stats.within(gaps, HELD)
        if within is False:
            break
        if within and certain == possible:
            certain = multiple
        possible = multiple
    if possible is None:
        return "no batch"
    reached = dict.fromkeys((certain or min(groups), possible))
    words = " or ".join(f"{settings['base_batch'] * multiple:,}" for multiple in reached)
    return words if possible != tried else f"{words}, the largest done"


def change(groups, settings):
    """The difference of the losses at the largest and the smallest batch, if known."""
    first, last = (groups[settings["multiples"][place]] for place in (0, -1))
    lost = sum(r["diverged"] for r in last)
    diverged = f"{lost} of {len(last)} diverge" if lost else ""
    gaps = stats.paired(last, first)
    return ", ".join(filter(None, [stats.signed(gaps, 2) if gaps else "", diverged])) or "–"


def _compared(records, settings):
    """Differences from LAMB, seed by seed."""
    sizes = batches(settings)
    ways = [(complete, k, f"{sizes[k]:,}") for k in sizes]
    ways += [(untuned, k, f"{sizes[k]:,}, untuned") for k in sizes if k > 1]

    def cell(way, method, multiple):
        ours, lambs = (way(records, settings, m, multiple) for m in (method, "lamb"))
        return stats.signed(stats.paired(ours, lambs), 2)

    rows = [
        (LABELS[method], *(cell(way, method, k) for way, k, _ in ways))
        for method in methods(records, settings)
        if method != "lamb"
    ]
    return [("optimizer", *(name for *_, name in ways)), *rows]


def warmups(records, settings):
    """The warm-up of each optimizer by the rule, at each batch."""
    sizes, rows = batches(settings), []
    for method in methods(records, settings):
        if not complete(records, settings, method, 1):
            continue
        values = best(records, method, 1)["values"]
        steps = settings["sequences"] // sizes[1]
        cells = [f"{values['rate']:.2g}", round(values["warmup_share"] * steps)]
        for multiple in sizes:
            share = values["warmup_share"] * multiple
            limited = f"{MOST_WARMUP} instead of {share:.2f}"
            cells.append(f"{share:.2f}" if share <= MOST_WARMUP else limited)
        rows.append((LABELS[method], *cells))
    shares = (f"share at {batch:,}" for batch in sizes.values())
    return [("optimizer", f"rate at {sizes[1]:,}", "warm-up, steps", *shares), *rows]


def _tuned_cell(records, settings, method, multiple):
    tried, wanted = len(searched(records, method, multiple)), to_search(settings, method, multiple)
    of = "" if tried == wanted else f" of {wanted}"
    return _loss_cell(tuned(records, settings, method, multiple), f"{tried}{of} trials; ")


def _untuned_cell(records, settings, method, multiple):
    return _loss_cell(untuned(records, settings, method, multiple))


def _loss_cell(found, tried=""):
    if not found:
        return "–"
    lost = sum(record["diverged"] for record in found)
    runs = f"{len(found)} run{'s' * (len(found) > 1)}" + (f"; {lost} diverged" if lost else "")
    return f"{stats.spread(losses(found), '{:.3f}')} ({tried}{runs})"


def _steps_cell(records, settings, method, multiple):
    found = tuned(records, settings, method, multiple)
    known = [step for step in map(updates_to_target, found) if step is not None]
    if not found:
        return "–"
    return f"{mean(known):,.0f} ({len(known)} of {len(found)})" if known else "not reached"


def chosen(records, settings):
    """The hyperparameters of the best of each batch."""
    rows = []
    for method, (multiple, batch) in itertools.product(
        methods(records, settings), batches(settings).items()
    ):
        tried = searched(records, method, multiple)
        if not tried:
            continue
        found = best(records, method, multiple)
        values = (_marked(name, found, tried) for name in found["values"])
        stuck = f"{sum(map(is_stuck, tried))} of {len(tried)}"
        rows.append((LABELS[method], f"{batch:,}", found["trial"]["part"], *values, stuck))
    head = ("optimizer", "batch", "from", "rate", "1 − β₁", "warm-up, share", "decay")
    return [(*head, f"above {stats.PLATEAU} nats"), *rows]


def _marked(name, chosen, tried):
    """A hyperparameter of the chosen run, with an arrow if it is the extreme of those tried."""
    values, value = [r["values"][name] for r in tried], chosen["values"][name]
    arrows = "↑" * (value == max(values)) + "↓" * (value == min(values))
    return f"{value:.2g}" + (f" {arrows}" if len(arrows) == 1 else "")


# Pictures


def draw(records, settings):
    """Loss over the batch, tuned and untuned, and steps to the plateau's end."""
    figure, (axes,) = stats.figure(1, 3, (14, 4.6))
    sizes = batches(settings)
    titles = ("tuned at every batch", "untuned, by the rule", f"steps to {stats.PLATEAU} nats")
    for axis, title in zip(axes, titles):
        axis.set(xscale="log", xlabel="batch, sequences")
        axis.set_title(title, pad=32)  # above the notes
        _decorate(axis, sizes)
        axis.set_xlim(settings["base_batch"] * 0.7, max(sizes.values()) * 1.4)
    for method in methods(records, settings):
        groups = {k: complete(records, settings, method, k) for k in sizes}
        rule = {k: _untuned(records, settings, method, k) for k in sizes}
        steps = {k: [updates_to_target(run) for run in found] for k, found in groups.items()}
        known = {k: [s for s in found if s is not None] for k, found in steps.items()}
        style = {"color": COLORS[method], "label": LABELS[method]}
        of = ({k: losses(found) for k, found in some.items()} for some in (groups, rule))
        for axis, points in zip(axes, (*of, known)):
            stats.draw_means(axis, {sizes[k]: values for k, values in points.items()}, **style)
    for axis, of in zip(axes, (complete, _untuned)):
        _note_those_above(axis, records, settings, of)
    axes[0].set_ylabel("held-out loss, nats")
    axes[2].set(ylabel="steps", yscale="log")
    if axes[0].containers:
        axes[2].legend(*axes[0].get_legend_handles_labels(), fontsize=8)
    axes[0].sharey(axes[1])
    for axis in axes[:2]:
        axis.set_ylim(top=min(axis.get_ylim()[1], CEILING))
        axis.grid(axis="y", alpha=0.3)
    return figure


def _decorate(axis, sizes, **font):
    axis.set_xticks(list(sizes.values()), [f"{batch:,}" for batch in sizes.values()], **font)
    axis.minorticks_off()


def _untuned(records, settings, method, multiple):
    base = complete(records, settings, method, settings["multiples"][0])
    return untuned(records, settings, method, multiple) if base else []


def _note_those_above(axis, records, settings, of):
    """Writes the means above the picture as numbers over it."""
    for multiple, batch in batches(settings).items():
        rank = 0
        for method in methods(records, settings):
            found = of(records, settings, method, multiple)
            known = losses(found)
            if not found or (known and mean(known) <= CEILING):
                continue
            words = f"{mean(known):.1f}" if known else "diverged"
            place = {"xytext": (0, 3 + 9 * rank), "textcoords": "offset points", "fontsize": 8}
            style = {"ha": "center", "color": COLORS[method]}
            axis.annotate(words, (batch, 1), xycoords=axis.get_xaxis_transform(), **place, **style)
            rank += 1


def draw_untuned(records, settings):
    """Mean loss by the rule over the batch, for a phone; each line has its name at its end."""
    figure, ((axis,),) = stats.figure(1, 1, (7, 4.7))
    sizes, ends = list(batches(settings).values()), []
    for method in methods(records, settings):
        found = [_untuned(records, settings, method, k) for k in settings["multiples"]]
        means = [mean(known) for values in found if (known := losses(values))]
        if not means:
            continue
        style = {"color": COLORS[method], "linewidth": 4 if method == "lamb" else 2.5}
        axis.plot(sizes[: len(means)], means, marker="o", **style)
        diverged = len(means) < len(sizes)
        ends.append((means[-1], sizes[len(means) - 1], method, diverged))
    place = 0.0
    for loss, batch, method, diverged in sorted(ends):
        words = LABELS[method] + " diverges" * diverged
        if not diverged:
            place = max(loss, place + LINE)
        at = (batch * 0.85, loss) if diverged else (batch * 1.15, place)
        weight = "bold" if method == "lamb" else "normal"
        style = {"color": COLORS[method], "fontsize": 15, "fontweight": weight}
        axis.text(*at, words, va="center", ha="right" if diverged else "left", **style)
    axis.set(xscale="log", xlim=(sizes[0] * 0.6, sizes[-1] * 5.2))
    _decorate(axis, batches(settings), fontsize=15)
    axis.tick_params(axis="y", labelsize=15)
    axis.set_xlabel("batch, sequences", fontsize=15, loc="left")
    axis.set_ylabel("held-out loss, nats", fontsize=15)
    axis.set_title("A larger batch without a new search", fontsize=17, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_ylim(top=axis.get_ylim()[1] + LINE / 2)
    axis.grid(axis="y", alpha=0.3)
    return figure
