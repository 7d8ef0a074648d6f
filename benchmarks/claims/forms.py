"""Studies of the forms of an optimizer: each at the same few rates, the best with more seeds.

All train the model of the demo with the same batches, schedule, decay and clipping.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import bert
import claim
import stats
import trials as trials_of

from official_bert.stages import Optimizer


def study(module: dict, name: str, title: str, **fields) -> claim.Claim:
    """The study of a module with LABELS, SHORT and `optimizer`; `fields` are others of `Forms`."""
    forms = Forms(module["LABELS"], module["SHORT"], module["optimizer"], **fields)
    names = ("trials", "run", "needs", "stands", "problem", "tables", "draw")
    module = module | {name: getattr(forms, name) for name in names}
    extent = ("variants", "rates", "seeds")
    return claim.of(module, name, title, lost=bert.LOST, model=bert.MODEL, extent=extent)


@dataclasses.dataclass(frozen=True)
class Forms:
    """The forms of a study, and the functions of its `claim.Claim`.

    Args:
        labels: {form: label in the tables}.
        short: {form: label in the picture}.
        optimizer: Function of (form, settings).
        reference: The form from which the others' differences are taken.
        without_warmup: The forms that start at the rate itself.
    """

    labels: Mapping[str, str]
    short: Mapping[str, str]
    optimizer: Callable[[str, dict], Optimizer]
    reference: str
    without_warmup: Sequence[str] = ()

    # Trials

    def trials(self, settings, records):
        """All forms at each rate, then at their best, seed by seed."""
        forms = settings["variants"]
        tuning = [trial("tuning", form, 1, rate) for rate in settings["rates"] for form in forms]
        seeds = range(2, settings["seeds"] + 1)
        return tuning + [trial("best", form, seed) for seed in seeds for form in forms]

    def run(self, options, settings, trial, records):
        """Trains once; see `claim.Claim`."""
        lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
        model, data, form = bert.MODEL | settings, options.data_dir, trial["variant"]
        bert.make_data(data, model, lengths)
        rate = trial["rate"] or best(records, form)["used_rate"]
        stage = trials_of.stage_of(
            settings,
            steps=settings["updates"],
            batch_size=settings["batch_size"],
            learning_rate=rate,
            warmup_steps=0 if form in self.without_warmup else settings["warmup_steps"],
        )
        made = self.optimizer(form, settings)
        found = bert.train(data, model, stage, made, trial["seed"], settings["evaluations"])
        return found | {"used_rate": rate}

    def needs(self, trial, other):
        """Whether a run at the chosen rate waits for one of those it is chosen from."""
        chooses = trial["rate"] is None and other["rate"] is not None
        return chooses and trial["variant"] == other["variant"]

    def stands(self, settings, record, records):
        """Whether a run has the rate that would be chosen for it now."""
        if record["trial"]["part"] == "tuning":
            return True
        found = self.groups(records).get(record["trial"]["variant"])
        return bool(found) and record["used_rate"] == found[0]["used_rate"]

    def problem(self, settings):
        """The error in the settings, or None."""
        unknown = [name for name in settings["variants"] if name not in self.labels]
        if unknown:
            return f"variants must be among {', '.join(self.labels)}; got {', '.join(unknown)}."
        return None if settings["rates"] else "rates must contain a number; got []."

    # The results

    def groups(self, records):
        """{form: its runs at its best rate, by seed}."""
        found = {form: [best(records, form)] for form in self.labels if _tuning(records, form)}
        for record in sorted(records, key=lambda r: r["trial"]["seed"]):
            if record["trial"]["part"] == "best" and record["trial"]["variant"] in found:
                found[record["trial"]["variant"]].append(record)
        return found

    def tables(self, records, settings):
        """The losses at the best rate, and with the first seed at every rate."""
        found = self.groups(records)
        label = {"variant": lambda form, _: self.labels[form]}
        losses = {
            **label,
            "rate": lambda _, runs: f"{runs[0]['used_rate']:g}",
            **stats.loss_columns("held-out loss, nats"),
            "difference": lambda form, runs: (
                "–" if form == self.reference else stats.signed(self._paired(runs, found))
            ),
            "diverged": stats.diverged,
        }
        rates = label | {
            f"rate {rate:g}": lambda form, _, rate=rate: _loss(_tuning(records, form), rate)
            for rate in sorted(settings["rates"])
        }
        return {
            name: stats.columns(of, found.items())
            for name, of in (("losses", losses), ("rates", rates))
        }

    def draw(self, records, settings):
        """The losses and their differences from the reference, a dot a seed."""
        found = self.groups(records)
        figure, (axes,) = stats.figure(1, 2, (11, 4.2))
        names = list(reversed(found))
        for place, form in enumerate(names):
            is_reference = form == self.reference
            runs, color = found[form], "#cc3311" if is_reference else "#4477aa"
            losses = [run["report"] for run in runs if run["report"] is not None]
            gaps = self._paired(runs, found)
            for axis, values in zip(axes, (losses, gaps)):
                axis.plot(values, [place] * len(values), "o", color=color, alpha=0.7)
                if values:
                    axis.plot([mean(values)], [place], "|", color=color, ms=22, mew=2.5)
            if gaps and not is_reference:
                style = {"color": color, "capsize": 4, "lw": 1}
                axes[1].errorbar([mean(gaps)], [place], xerr=stats.half_width(gaps), **style)
        axes[0].set_yticks(range(len(names)), [self.short[form] for form in names])
        axes[1].set_yticks(range(len(names)), [""] * len(names))
        axes[0].set_xlabel("held-out masked-LM loss, nats; bar: mean of the seeds")
        axes[1].axvline(0, color="#777777", lw=0.8, ls="--")
        reference = self.short[self.reference]
        axes[1].set_xlabel(f"less that of: {reference}; 95 % interval")
        for axis in axes:
            axis.grid(axis="x", alpha=0.3)
        return figure

    def _paired(self, runs, found):
        """Differences from the reference, seed by seed."""
        return stats.paired(runs, found.get(self.reference, []))


def trial(part, form, seed, rate=None):
    return {"part": part, "variant": form, "seed": seed, "rate": rate}


def best(records, form):
    """The run of its first seed that has the lowest loss on the set to choose by."""
    return stats.chosen(_tuning(records, form), "select", lowest=True)


def _tuning(records, form):
    wanted = {"part": "tuning", "variant": form}
    return [r for r in records if wanted.items() <= r["trial"].items()]


def _loss(runs, rate):
    losses = [run["select"] for run in runs if run["used_rate"] == rate]
    return "–" if not losses else "diverged" if losses[0] is None else f"{losses[0]:.3f}"
