"""Text and picture of `mixed_batch.py`, from its records alone."""

from statistics import mean

import stats as findings
from model_settings import ABOUT
from stats import curves

LABELS = {
    "warm-up": "rises from 0 again (re-warm-up)",
    "restart": "begins at its top",
    "continued": "one schedule over both phases",
}
SHORT = {"warm-up": "rises again", "restart": "begins at its top", "continued": "one schedule"}
MOMENTS = ("kept", "from 0")
COLORS = {"warm-up": "#cc3311", "restart": "#4477aa", "continued": "#228833"}
STYLES = {"kept": "-", "from 0": "--"}
REFERENCE = "warm-up", "kept"  # what the paper's mixed batch does


def groups(records):
    """{(schedule, moments, rate): second phases, by seed}; a rate of None is the first phase's."""
    rates = {r["trial"].get("rate") for r in records} - {None}
    found = {
        (schedule, moments, rate): []
        for rate in (None, *sorted(rates))
        for schedule in LABELS
        for moments in MOMENTS
    }
    for record in sorted(records, key=lambda r: r["trial"]["seed"]):
        trial = record["trial"]
        if trial["phase"] == "second":
            found[trial["schedule"], trial["moments"], trial.get("rate")].append(record)
    return {arm: runs for arm, runs in found.items() if runs}


def reference(found, rate):
    """The runs that others at a rate are compared with."""
    return found.get((*REFERENCE, rate), [])


def text(records, settings, name):
    found, (first, second) = groups(records), (settings["first"], settings["second"])
    head = ("peak rate", "schedule", "moments", "runs", "loss before", "loss at the end, nats")
    rows = [row(arm, runs, found, settings) for arm, runs in found.items()]
    head = (*head, "accuracy", "difference", "diverged")
    return f"""{chr(10).join([*answers(found, settings), *new_positions(found, settings)])}

![Held-out loss over the second phase]({name}.png)

{findings.table(head, rows)}

Evaluated at {second["max_seq_length"]} tokens; mean ± standard deviation over seeds. Differences \
are from the paper's schedule at the same rate; negative is better. *Loss before* is the loss of \
the first phase's model on the longer sequences; where it differs between rates, the first phase \
was trained again, on another processor. {ABOUT}

## The two phases

| phase | steps | batch × tokens |
| --- | --- | --- |
| first | {first["updates"]:,} | {first["batch_size"]} × {first["max_seq_length"]} |
| second | {second["updates"]:,} | {second["batch_size"]} × {second["max_seq_length"]} |

LAMB, with a rate that peaks at {settings["rate"]:g} in the first phase and decays linearly to 0. \
The warm-up takes {settings["first_warmup"]} steps in the first phase and, where the rate rises \
again, {settings["second_warmup"]} in the second. Two first phases are trained per seed: in one \
the rate falls to 0, in the other it continues to fall in the second phase. Every second phase of \
a seed starts from one of these.

## Published results

The paper (arXiv 1904.00962) trains 9/10 of the epochs at length 128 and batch 65,536, then at \
length 512 and batch 32,768 with a rate that rises from zero again: SQuAD F1 90.584 in 8,599 \
steps. It reports no result without the second warm-up. NVIDIA's recipe restarts step and rate and \
keeps m and v. Nado et al. (arXiv 2102.06356) reach 91.04 there with tuned Adam (quoted from \
memory)."""


def row(arm, runs, found, settings):
    schedule, moments, rate = arm
    gaps = findings.paired(runs, reference(found, rate))
    return (
        f"{rate or settings['rate']:g}",
        LABELS[schedule],
        moments,
        len(runs),
        findings.spread([r["start"] for r in runs], "{:.3f}"),
        findings.spread([r["report"] for r in runs], "{:.3f}"),
        findings.spread([r["report_accuracy"] for r in runs], "{:.1f}") + " %",
        "–" if arm[:2] == REFERENCE else findings.signed(gaps),
        sum(r["diverged"] for r in runs),
    )


def answers(found, settings):
    """What each schedule loses or gains compared with the paper's, as sentences."""
    lines = []
    for (schedule, moments, rate), runs in found.items():
        gaps = findings.paired(runs, reference(found, rate))
        lost = sum(r["diverged"] for r in runs)
        if (schedule, moments) == REFERENCE or len(gaps) + lost < 2:
            continue
        said = [f"**{findings.signed(gaps)}** nats"] if gaps else []
        said += [f"{lost} of {len(runs)} diverge"] if lost else []
        if gaps and abs(mean(gaps)) <= findings.half_width(gaps):
            said.append("no difference shown")
        at = f"rate {rate or settings['rate']:g}, {LABELS[schedule]}, moments {moments}"
        lines.append(f"- {at}: {', '.join(said)}")
    if not lines:
        return ["No schedule has two seeds yet.", *plateau(found)]
    head = (
        "Held-out loss of the second phase, compared with the paper's schedule (the rate "
        "rises from 0 again, the moments are kept); negative is better:"
    )
    return [head, "", *lines, *plateau(found)]


def new_positions(found, settings):
    """What one schedule does to the positions that only the second phase has."""
    runs = [r for r in found.get(("continued", "kept", None), []) if r["report"] is not None]
    if not runs:
        return []
    first, second = settings["first"], settings["second"]
    length, new = second["max_seq_length"], second["max_seq_length"] - first["max_seq_length"]
    start, end = (mean(run[key] for run in runs) for key in ("start", "report"))
    return [
        f"- {new} of the {length} positions are new in the second phase, as 384 of 512 are in the "
        f"paper. One schedule begins this phase at rate {continued_rate(settings):.2g} instead of "
        f"{settings['rate']:g}, and its loss falls only from {start:.2f} to {end:.2f} nats. "
        "Without new positions the result may differ."
    ]


def continued_rate(settings):
    """With which one schedule over both phases begins the second."""
    first, second = (settings[phase]["updates"] for phase in ("first", "second"))
    return settings["rate"] * second / (first + second - settings["first_warmup"])


def plateau(found):
    """How many runs end where a model knows the frequencies of words and little else."""
    losses = [r["report"] for runs in found.values() for r in runs if r["report"] is not None]
    above = sum(loss > curves.PLATEAU for loss in losses)
    if not above:
        return []
    return [
        f"- **{above} of {len(losses)} runs end above {curves.PLATEAU} nats**, where a model knows "
        "little but the frequencies of words: the positions that are new in the second phase have "
        "not left that plateau. For models that have learned more, the result may differ."
    ]


def draw(records, settings, path):
    findings.picture(lambda axes: _draw(axes, groups(records), settings), path, 2, (11, 4.6))


def _draw(axes, found, settings):
    for (schedule, moments, rate), runs in found.items():
        known = [run for run in runs if not run["diverged"]]
        if rate is None and known:
            curves = [run["curve"] for run in known]
            steps = [0, *(line["step"] for line in curves[0])]
            losses = [mean(line["report"] for line in lines) for lines in zip(*curves)]
            start = mean(run["start"] for run in known)
            axes[0].plot(steps, [start, *losses], **_style(schedule, moments))
    axes[0].set(
        xlabel="steps of the second phase",
        ylabel="held-out loss, nats",
        title=f"rate {settings['rate']:g}, means",
    )
    for schedule in LABELS:
        for moments in MOMENTS:
            top = continued_rate(settings) if schedule == "continued" else settings["rate"]
            arms = {
                rate or top: [r["report"] for r in runs if not r["diverged"]]
                for (*arm, rate), runs in found.items()
                if arm == [schedule, moments]
            }
            findings.means_and_ranges(
                axes[1], dict(sorted(arms.items())), **_style(schedule, moments)
            )
    rates = sorted({rate or settings["rate"] for *_, rate in found} | {continued_rate(settings)})
    axes[1].set(xscale="log", xlabel="highest rate of the second phase", title="at the end")
    axes[1].set_xticks(rates, [f"{rate:.2g}" for rate in rates])
    axes[1].minorticks_off()
    axes[1].sharey(axes[0])
    if axes[0].lines:
        axes[0].set_ylim(bottom=axes[0].get_ylim()[0] - 0.6)  # room for the legend
        axes[0].legend(fontsize=7, loc="lower left", ncols=2)


def _style(schedule, moments):
    label = f"{SHORT[schedule]}, moments {moments}"
    return {"color": COLORS[schedule], "ls": STYLES[moments], "label": label}
