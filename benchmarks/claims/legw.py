"""Accuracy of an LSTM on MNIST by LEGW, up to batch × 64, without tuning.

    python benchmarks/claims/legw.py --mnist_dir=DIR

For each optimizer a rate is chosen at the base batch; every larger batch trains for the same number
of epochs at a rate that a rule derives from it. And the published failure: a bidirectional LSTM
with LAMB whose rate is not scaled at all, compared with LEGW. Without `--mnist_dir` Keras downloads
the data.

Needs jax and matplotlib.
"""

import functools
import gzip
import itertools
import pathlib
import sys
from statistics import mean

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # for the modules of all studies

import claim
import numpy as np
import stats

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
    "micro_batch": 128,  # images at a time: their activations fit into a cache
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
METHODS = {"momentum": "momentum SGD", "lamb": "LAMB", "adam": "Adam"}
RULES = ("legw", "sqrt", "linear", "constant")
FAILURE = ("base", "constant", "legw", "sqrt")  # the groups of the published failure
LABELS = {
    "base": "the base",
    "legw": "LEGW: √k, warm-up × k epochs",
    "sqrt": "√k, warm-up as at the base",
    "linear": "linear, warm-up in epochs",
    "constant": "the base's rate",
}
COLORS = {"legw": "#cc3311", "sqrt": "#ee9944", "linear": "#4477aa", "constant": "#777777"}
MARGIN = 0.5  # points of accuracy that may be lost
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
HEADER = {"images": 16, "labels": 8}  # bytes


def trials(settings, records):
    """The choice of a rate at the base; then the largest batch, the failure, the other batches."""
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
    batches = [small if rule == "base" else large for rule in FAILURE]
    pairs = zip(FAILURE, batches)
    return [trial("failure", "lamb", *pair, seed) for pair in pairs for seed in seeds]


def trial(part, method, rule, batch, seed, rate=None):
    values = {"part": part, "method": method, "rule": rule, "batch": batch, "seed": seed}
    return values | {"rate": rate}


def schedule(rule, batch, base, base_rate, base_warmup, linear_warmup, examples, updates):
    """The rate of each update by a rule, an array.

    Args:
        rule: Of `RULES`, or "base".
        batch, base: Batch sizes.
        base_rate, base_warmup: Rate and warm-up of the base; the warm-up in epochs.
        linear_warmup: Epochs of warm-up of "linear".
        examples: Examples per epoch.
        updates: Updates of the run.
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
    """Trains once; see `claim.Claim`."""
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
    model = lstm.Trainer(*shape, trial["method"], batch, settings["micro_batch"])
    names = ("size", "train_examples", "select_examples", "report_examples")
    sets = splits(options.mnist_dir, *(settings[name] for name in names))
    found = model.train(sets, rates, trial["seed"])
    end = found["curve"][-1]
    about = {"base_rate": rate, "peak": float(rates.max()), "updates": updates}
    about["warmup_updates"] = int(np.argmax(rates >= rates.max() * (1 - 1e-6)))
    loss = "not finite" if end["loss"] is None else f"{end['loss']:.3f}"
    said = f"{end['report']:.2f} % of the test images right, training loss {loss}"
    return found | about | {"select": end["select"], "report": end["report"], "said": said}


def chosen_rate(records, method):
    """The rate with the best run at the base, by the images to choose by."""
    return stats.chosen(runs(records, "tuning", method), "select")["base_rate"]


def needs(trial, other):
    """Whether a run at the chosen rate waits for one of those it is chosen from."""
    chooses = trial["part"] == "scaling" and other["part"] == "tuning"
    return chooses and trial["method"] == other["method"]


def ready(options):
    """Raises ValueError if MNIST is missing."""
    if options.mnist_dir is None:
        import lstm  # noqa: F401  # it chooses Keras' backend; the download imports Keras
    load(options.mnist_dir)


def problem(settings):
    """The error in the settings, or None."""
    if not settings["multiples"]:
        return "multiples must contain a number; got []."
    empty = [method for method, rates in settings["rates"].items() if not rates]
    return f"rates must contain a rate for {', '.join(empty)}; got none." if empty else None


# The data: MNIST as rows of pixels


def load(folder: str | None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images (n, 28, 28) and labels (n,) of `train` and `test`, as bytes.

    Args:
        folder: Has the four idx files, compressed or not; None: `keras.datasets` downloads them.

    Raises:
        ValueError: a file is missing, or cannot be downloaded.
    """
    if folder is None:
        import keras

        try:
            return dict(zip(FILES, keras.datasets.mnist.load_data()))
        except Exception as error:  # Keras raises Exception itself
            raise ValueError(f"{error}; give --mnist_dir, a folder with its four files.") from error
    return {split: _read_split(pathlib.Path(folder), *names) for split, names in FILES.items()}


def _read_split(folder, images, labels):
    pixels = _read(folder, images)[HEADER["images"] :]
    return pixels.reshape(-1, 28, 28), _read(folder, labels)[HEADER["labels"] :]


def _read(folder, name):
    packed, plain = folder / f"{name}.gz", folder / name
    if packed.exists():
        return np.frombuffer(gzip.decompress(packed.read_bytes()), np.uint8)
    if plain.exists():
        return np.frombuffer(plain.read_bytes(), np.uint8)
    raise ValueError(
        f"--mnist_dir={folder} has no {name}(.gz); give a folder with the four idx files of MNIST, "
        "or leave it out and Keras downloads them."
    )


def rows_of(images: np.ndarray, size: int) -> np.ndarray:
    """Images (n, 28, 28) as `size` rows of `size` values in [0, 1]: means of squares of pixels."""
    block = 28 // size
    squares = images.reshape(-1, size, block, size, block).astype("float32")
    return squares.mean((2, 4)) / 255


@functools.cache
def splits(folder: str | None, size: int, train_examples: int, select: int, test: int) -> dict:
    """The first training images, `train`; the last, `select` to choose by; test images, `report`.

    Raises:
        ValueError: there are fewer training images than the first two sets need.
    """
    data = load(folder)
    (images, labels), (test_images, test_labels) = data["train"], data["test"]
    if train_examples + select > len(labels):
        raise ValueError(
            f"train_examples={train_examples:,} and select_examples={select:,} overlap: there are "
            f"{len(labels):,} training images."
        )
    parts = {
        "train": (images[:train_examples], labels[:train_examples]),
        "select": (images[-select:], labels[-select:]),
        "report": (test_images[:test], test_labels[:test]),
    }
    return {k: (rows_of(x, size), y.astype("int32")) for k, (x, y) in parts.items()}


# The results


def runs(records, part, method, rule="base", batch=None):
    """The runs of a part, by seed; batch None: any."""
    wanted = {"part": part, "method": method, "rule": rule} | ({"batch": batch} if batch else {})
    return [r for r in records if wanted.items() <= r["trial"].items()]


def base_runs(records, method):
    """The runs at the base batch with the chosen rate, the tuning's included."""
    tuned = runs(records, "tuning", method)
    return [stats.chosen(tuned, "select"), *runs(records, "scaling", method)] if tuned else []


def scaled_runs(records, settings, method):
    """{(rule, batch): runs} of the larger batches that have some."""
    batches = [k * settings["base_batch"] for k in sorted(settings["multiples"])]
    found = {
        (rule, batch): runs(records, "scaling", method, rule, batch)
        for batch in batches
        for rule in RULES
    }
    return {key: some for key, some in found.items() if some}


def failure_runs(records):
    """{(rule, batch): runs} of the published failure."""
    found = {rule: runs(records, "failure", "lamb", rule) for rule in FAILURE}
    return {(rule, some[0]["trial"]["batch"]): some for rule, some in found.items() if some}


COLUMNS = {  # of a row of runs: optimizer, rule, runs
    "optimizer": lambda label, *_: label,
    "rule": lambda _, rule, __: LABELS[rule],
    "batch": lambda *row: f"{row[-1][0]['trial']['batch']:,}",
    "steps": lambda *row: f"{row[-1][0]['updates']:,}",
    "rate": lambda *row: f"{row[-1][0]['peak']:.3g}",
    "warm-up, steps": lambda *row: row[-1][0]["warmup_updates"],
    "runs": lambda *row: len(row[-1]),
    "accuracy": lambda *row: accuracy(row[-1]),
    "diverged": stats.diverged,
}


def tables(records, settings):
    """The loss of accuracy by rule, every group of runs, the published failure, the rates."""
    batches = [k * settings["base_batch"] for k in sorted(settings["multiples"])]
    losses, groups = [("optimizer", "rule", *(f"lost at {batch:,}" for batch in batches))], []
    for method, label in METHODS.items():
        base, scaled = base_runs(records, method), scaled_runs(records, settings, method)
        if not base:
            continue
        groups += [(label, "base", base)]
        groups += [(label, rule, found) for (rule, _), found in scaled.items()]
        for rule in dict.fromkeys(rule for rule, _ in scaled):
            cells = (lost(base, scaled.get((rule, batch), [])) for batch in batches)
            losses.append((label, LABELS[rule], *cells))
    failure = [("LAMB", rule, found) for (rule, _), found in failure_runs(records).items()]
    rates = [(METHODS[method], *_rates(records, settings, method)) for method in settings["rates"]]
    return {
        "lost": losses,
        "groups": stats.columns(COLUMNS, groups),
        "failure": stats.columns(COLUMNS, failure),
        "rates": [("optimizer", *["rate"] * (max(map(len, rates)) - 1)), *rates],
    }


def accuracy(found):
    """Mean ± standard deviation, or all values where a run diverged, which have no middle."""
    values = [record["report"] for record in found]
    if any(record["diverged"] for record in found):
        return ", ".join(f"{value:.1f}" for value in values) + " %"
    return stats.spread(values, unit=" %")


def lost(base, found):
    """Points of accuracy below the base, and whether they are within the margin."""
    if diverged := sum(record["diverged"] for record in found):
        return f"{diverged} of {len(found)} diverge"
    gaps = [-gap for gap in stats.paired(found, base)]
    if not gaps:
        return "–"
    words = {True: ", **held**", False: "", None: ", *undecided*"}
    return stats.signed(gaps, 2).removeprefix("+") + words[stats.within(gaps, MARGIN)]


def _rates(records, settings, method):
    """The accuracy at each rate; an arrow marks a best one that is the lowest or the highest."""
    rates = settings["rates"][method]
    found = {r["base_rate"]: r["select"] for r in runs(records, "tuning", method)}
    ends = {min(rates): " ↓", max(rates): " ↑"} if len(found) == len(rates) > 1 else {}
    best = chosen_rate(records, method) if found else None
    return [
        f"{rate:g}: {found[rate]:.2f} %{ends.get(rate, '') if rate == best else ''}"
        if rate in found
        else "–"
        for rate in rates
    ]


def draw(records, settings):
    """Errors on a logarithmic scale, which shows the differences between 98 and 99 %."""
    figure, (axes,) = stats.figure(1, len(METHODS) + 1, (15, 4.2))
    for axis, (method, label) in zip(axes, METHODS.items()):
        base, scaled = base_runs(records, method), scaled_runs(records, settings, method)
        for rule in RULES:
            points = {settings["base_batch"]: base}
            points |= {batch: found for (name, batch), found in scaled.items() if name == rule}
            _line(axis, points, rule)
        if base:
            level = 100 - mean(record["report"] for record in base) + MARGIN
            what = f"the base's error + {MARGIN} points"
            axis.axhline(level, color="#777777", lw=0.8, ls="--", label=what)
        batches = [settings["base_batch"] * multiple for multiple in (1, *settings["multiples"])]
        _decorate(axis, f"{label}, LSTM", batches)
    axes[0].set_ylabel("error on the test images, %")
    axes[2].legend(fontsize=8, loc="upper left")
    failure = failure_runs(records)
    for rule in FAILURE[1:]:
        _line(
            axes[-1], {b: found for (r, b), found in failure.items() if r in ("base", rule)}, rule
        )
    _decorate(axes[-1], "LAMB, bidirectional LSTM", {batch for _, batch in failure})
    return figure


def _line(axis, points, rule):
    errors = {batch: [100 - run["report"] for run in found] for batch, found in points.items()}
    stats.draw_means(axis, errors, color=COLORS[rule], label=LABELS[rule])
    axis.set_xscale("log")


def _decorate(axis, title, batches):
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
    axis.set(title=title, xlabel="batch", yscale="log", ylim=(0.5, 100))
    axis.set_xticks(sorted(batches), [f"{batch:,}" for batch in sorted(batches)])
    axis.set_yticks(ticks, map(str, ticks))
    axis.minorticks_off()


CLAIM = claim.of(
    globals(),
    "legw",
    "LEGW: accuracy of an LSTM on MNIST over the batch",
    lost="the training loss was not finite, or at the end hardly below that of guessing",
    packages=("jax", "matplotlib"),
    extent=("multiples", "seeds"),
)


if __name__ == "__main__":
    mnist_dir = "folder with the idx files of MNIST"
    sys.exit(claim.script(CLAIM, __doc__, mnist_dir=mnist_dir))
