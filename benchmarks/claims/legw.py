"""Does LEGW hold the accuracy of an LSTM on MNIST, batch × 64, without tuning?

    python benchmarks/claims/legw.py --mnist_dir=DIR

For each optimizer a rate is chosen at the base batch; every larger batch trains for as many epochs
with what a rule makes of it. And the published failure: a bidirectional LSTM with LAMB whose rate
is not scaled at all, and the same with LEGW. Without `--mnist_dir` Keras downloads the data.

Needs jax and matplotlib.
"""

import functools
import itertools
import sys

import claim as study
import legw_page as page
import mnist
import numpy as np
import stats as findings

SETTINGS = {
    "size": 28,  # rows and columns; of 14, means of 2 × 2 pixels
    "hidden": 128,
    "epochs": 25,
    "train_examples": 55_000,
    "select_examples": 5_000,
    "report_examples": 10_000,
    "base_batch": 128,
    "multiples": [64, 8],  # the first are run first
    "rates": {
        "momentum": [0.03, 0.1, 0.3, 1.0],
        "lamb": [1.25e-3, 2.5e-3, 5e-3, 1e-2],
        "adam": [1e-3, 3e-3, 1e-2, 3e-2],
    },
    "base_warmup_epochs": 0.05,
    "linear_warmup_epochs": 5,
    "seeds": 3,
    "failure": {"base_batch": 64, "multiple": 256, "rate": 1e-3, "base_warmup_epochs": 0.02},
    "micro_batch": 128,  # images at a time: what they need stays in a cache
}
QUICK = {
    "size": 14,
    "hidden": 64,
    "epochs": 4,
    "train_examples": 16_384,
    "multiples": [16],
    "rates": {"momentum": [0.1], "lamb": [1e-2], "adam": [3e-3]},
    "linear_warmup_epochs": 2,
    "seeds": 1,
    "failure": {"base_batch": 64, "multiple": 64, "rate": 1e-3, "base_warmup_epochs": 0.02},
}
RULES = ("legw", "sqrt", "linear", "constant")


def trials(settings):
    """Choosing a rate at the base; then the largest batch, the failure, the other batches."""
    base, seeds = settings["base_batch"], range(1, settings["seeds"] + 1)
    rates = settings["rates"]
    tuning = [trial("tuning", m, "base", base, 1, rate) for m in rates for rate in rates[m]]
    others = [trial("scaling", m, "base", base, seed) for m in rates for seed in seeds[1:]]
    by_multiple = [
        [
            trial("scaling", m, rule, multiple * base, seed)
            for m in rates
            for rule in RULES
            for seed in seeds
        ]
        for multiple in settings["multiples"]
    ]
    return [
        *tuning,
        *others,
        *by_multiple[0],
        *failures(settings, seeds),
        *itertools.chain(*by_multiple[1:]),
    ]


def failures(settings, seeds):
    failure = settings["failure"]
    small, large = failure["base_batch"], failure["base_batch"] * failure["multiple"]
    runs = (("base", small), ("constant", large), ("legw", large), ("sqrt", large))
    return [trial("failure", "lamb", *run, seed) for run in runs for seed in seeds]


def trial(part, method, rule, batch, seed, rate=None):
    values = {"part": part, "method": method, "rule": rule, "batch": batch, "seed": seed}
    return values | {"rate": rate}


def schedule(rule, batch, base, base_rate, base_warmup, linear_warmup, examples, updates):
    """The rate of each update by a rule, an array.

    Args:
        rule: Of `RULES`, or "base".
        batch, base: Batch sizes.
        base_rate, base_warmup: What the base has; the warm-up in epochs.
        linear_warmup: Epochs of warm-up of "linear".
        examples: In an epoch.
        updates: In the run.
    """
    from lamb_tf import schedules

    if rule == "legw":
        found = schedules.legw(batch, base, base_rate, base_warmup, examples)
    else:
        scaled = {"sqrt": schedules.sqrt_scaling, "linear": schedules.linear_scaling}.get(rule)
        rate = scaled(batch, base, base_rate) if scaled else base_rate
        warmup = linear_warmup if rule == "linear" else base_warmup
        found = schedules.WarmupConstant(rate, round(warmup * examples / batch))
    return np.asarray(found(np.arange(updates)), "float32")


def run(options, settings, trial, records):
    """Trains once; see `study.Claim`."""
    import lstm

    is_failure = trial["part"] == "failure"
    about = settings["failure"] if is_failure else settings
    rate = about["rate"] if is_failure else trial["rate"] or chosen_rate(records, trial["method"])
    examples, batch = settings["train_examples"], trial["batch"]
    updates = settings["epochs"] * examples // batch // lstm.EVALUATIONS * lstm.EVALUATIONS
    rates = schedule(
        trial["rule"],
        batch,
        about["base_batch"],
        rate,
        about["base_warmup_epochs"],
        settings["linear_warmup_epochs"],
        examples,
        updates,
    )
    shape = settings["size"], settings["hidden"], is_failure
    model = lstm.trainer(*shape, trial["method"], batch, settings["micro_batch"])
    found = model.train(data(options.mnist_dir, *_sets(settings)), rates, trial["seed"])
    end = found["curve"][-1]
    about = {"base_rate": rate, "peak": float(rates.max()), "updates": updates}
    about["warmup_updates"] = int(np.argmax(rates >= rates.max() * (1 - 1e-6)))
    loss = "not finite" if end["loss"] is None else f"{end['loss']:.3f}"
    said = f"{end['report']:.2f} % of the test images right, training loss {loss}"
    return found | about | {"select": end["select"], "report": end["report"], "said": said}


def _sets(settings):
    names = ("size", "train_examples", "select_examples", "report_examples")
    return tuple(settings[name] for name in names)


@functools.cache
def data(folder, *sets):
    """The three sets, read once."""
    return mnist.splits(folder, *sets)


def chosen_rate(records, method):
    """The rate whose run at the base did best on the images that are kept for this."""
    tuned = [r for r in records if r["trial"]["part"] == "tuning"]
    return findings.chosen((r for r in tuned if r["trial"]["method"] == method), "select")[
        "base_rate"
    ]


def needs(trial, other):
    """Whether a run at the chosen rate waits for one of those it is chosen from."""
    chooses = trial["part"] == "scaling" and other["part"] == "tuning"
    return chooses and trial["method"] == other["method"]


def ready(options):
    """Raises ValueError where there is no MNIST."""
    if options.mnist_dir is None:
        import lstm  # noqa: F401  # it chooses Keras' backend; the download imports Keras
    mnist.load(options.mnist_dir)


def problem(settings):
    """What is wrong with the settings, or None."""
    if not settings["multiples"]:
        return "multiples is empty; give one at least."
    empty = [method for method, rates in settings["rates"].items() if not rates]
    return f"rates has none for {', '.join(empty)}." if empty else None


CLAIM = study.Claim(
    name="legw",
    title="LEGW: accuracy of an LSTM on MNIST over the batch",
    settings=SETTINGS,
    quick=QUICK,
    trials=trials,
    run=run,
    needs=needs,
    draw=page.draw,
    text=page.text,
    alike=(("part", "batch", "method"), ("part", "batch"), ("part",)),
    lost="the training loss was not finite, or at the end hardly below that of guessing",
    packages=("jax", "matplotlib"),
    extent=("multiples", "seeds"),
    problem=problem,
    ready=ready,
)


if __name__ == "__main__":
    parser = study.parser(CLAIM, __doc__)
    parser.add_argument("--mnist_dir", help="folder with the idx files of MNIST")
    sys.exit(study.main(CLAIM, parser.parse_args()))
