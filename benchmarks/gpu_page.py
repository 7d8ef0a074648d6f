"""The names of the ways that `gpu.py` measures, and its tables, which docs/gpu.md explains."""

import statistics

import evidence
import turns

LAMB, OPTAX, ADAMW = "lamb_tf.LAMB", "optax.lamb", "torch.optim.AdamW, fused"
TORCH_LAMB, COPY = "a LAMB for PyTorch", "copy"
LOOP, PEER = "ours, the loop of `--engine=jax`, LAMB", "the peer, `torch.compile`, fused AdamW"
ENCODER, DROPPING = "our encoder, no dropout", "our encoder, dropout 0.1"
XLA, CUDNN = 'dot_product_attention, "xla"', 'dot_product_attention, "cudnn"'
FORWARD, BOTH_WAYS = "forward", "forward and backward"

# Read g, x, m, v and write x, m, v, 4 bytes each; for LAMB, read x, m, v a second time.
BYTES_ONCE, BYTES_AGAIN = 28, 12


def many_steps(name, updates):
    """The name of the way that runs all updates of a turn in one compiled program."""
    return f"{name}, {updates} steps in one program"


def contents(values):
    """The tables of a page.

    Args:
        values: Dictionary of `title`, `date`, `machine`, `commands` and `rows`: by section, and in
            it by work, what `gpu.measure` returned.
    """
    commands = ", ".join(f"`{command}`" for command in values["commands"])
    conditions = [("", ""), ("machine", values["machine"]), ("commands", commands)]
    tables = {"Conditions": conditions}
    for section, (name, make) in SECTIONS.items():
        if rows := values["rows"].get(section):
            tables[name] = make(rows)
            conditions.append((name, _rounds(rows)))
    return evidence.Contents(f"{values['title']}, {values['date']}", tables)


def optimizer(rows):
    """Time and bandwidth of a step, by variables and way."""
    head = ("variables", "step", "ms", "time ÷ that of `lamb_tf.LAMB`, median and range")
    found = [(*head, "GB/s", "share of the copy's bandwidth, median and range")]
    for work, row in rows.items():
        seconds, cell = row["seconds"], row["cell"]
        copied = 2 * cell["copied_bytes"]
        for way in (w for w in seconds if w != COPY):
            moved = cell["parameters"] * _bytes_per_parameter(way)
            name = way if way != TORCH_LAMB else f"{row['after'][way]['name']}, PyTorch"
            rates = _rate(moved, seconds[way]), _share(moved, copied, seconds, way)
            found.append([work, name, _ms(seconds[way]), _times(seconds, way, LAMB), *rates])
        if COPY in seconds:
            size = f"{cell['copied_bytes'] / 2**20:,.0f} MiB"
            copy = _ms(seconds[COPY]), "–", _rate(copied, seconds[COPY]), "100 %"
            found.append([work, f"the copy, of {size}", *copy])
        found += _absent(work, row, 6)
    return found


def pretraining(rows):
    """Tokens per second, MFU and memory of pre-training, by work and way."""
    head = ("work", "way", "tokens/s", "MFU", "peak memory, GiB", "waiting for input")
    found = [(*head, "our tokens/s ÷ its, median and range")]
    for work, row in rows.items():
        cell = row["cell"]
        tokens, known = cell["batch_size"] * cell["length"], row["after"].get(LOOP, {})
        for way, seconds in row["seconds"].items():
            after, median = row["after"].get(way, {}), statistics.median(seconds)
            peak = known.get("peak_flops")
            memory, wait = after.get("peak_bytes"), after.get("input_wait")
            found.append(
                [
                    f"{work}, batch {cell['batch_size']}",
                    way,
                    f"{tokens / median:,.0f}",
                    f"{100 * known['step_flops'] / median / peak:.1f} %" if peak else "–",
                    f"{memory / 2**30:.1f}" if memory else "–",
                    "–" if wait is None else f"{100 * wait / median:.1f} %",
                    _times(row["seconds"], way, LOOP),
                ]
            )
        found += _absent(work, row, 7)
    return found


def attention(rows):
    """Time of attention alone, and how far its results are from the exact ones."""
    head = ("sequences × tokens × heads × width", "way", "forward, ms", "both, ms")
    found = [(*head, "both ÷ that of our encoder, median and range", "largest difference")]
    for work, row in rows.items():
        cell, seconds = row["cell"], row["seconds"]
        shape = [cell["batch_size"], cell["length"], cell["heads"], cell["hidden"] // cell["heads"]]
        sizes, reference = " × ".join(map(str, shape)), f"{ENCODER}: {BOTH_WAYS}"
        for name in (ENCODER, DROPPING, XLA, CUDNN):
            both = f"{name}: {BOTH_WAYS}"
            if both not in seconds:
                continue
            differences = row["after"].get(name, {}).get("differences")
            times = _ms(seconds.get(f"{name}: {FORWARD}")), _ms(seconds[both])
            largest = f"{max(differences):.1e}" if differences else "–"
            ratio = _times(seconds, both, reference)
            found.append([f"{work}: {sizes}", name, *times, ratio, largest])
        found += _absent(work, row, 6)
    return found


SECTIONS = {
    "optimizer": ("The optimizer's step", optimizer),
    "pretraining": ("Pre-training", pretraining),
    "attention": ("Attention alone", attention),
}


def _absent(work, row, columns):
    """Rows of what failed or was left out."""
    said = {way: f"failed: {why}" for way, why in row["errors"].items()}
    said |= {way: f"left out: {why}" for way, why in row["left_out"].items()}
    empty = [""] * (columns - 3)
    return [[work, way, why.replace("|", "/"), *empty] for way, why in said.items()]


def _bytes_per_parameter(way):
    return BYTES_ONCE if way == ADAMW else BYTES_ONCE + BYTES_AGAIN


def _rate(moved, seconds):
    return f"{moved / statistics.median(seconds) / 1e9:,.0f}"


def _ms(seconds):
    return f"{1e3 * statistics.median(seconds):.3g}" if seconds else "–"


def _share(moved, copied, seconds, way):
    """The bytes per second of a way over the copy's, and their range."""
    if COPY not in seconds:
        return "–"
    pairs = zip(seconds[way], seconds[COPY], strict=True)
    shares = [moved / s / (copied / copy) for s, copy in pairs]
    return f"{_percent(shares)} ({_percent(shares, min)}, {_percent(shares, max)})"


def _percent(shares, of=statistics.median):
    return f"{100 * of(shares):.0f} %"


def _times(seconds, way, first):
    """The time of a way over the first way's, by round: median, minimum and maximum."""
    if first not in seconds:
        return "–"
    return "{:.2f} ({:.2f}, {:.2f})".format(*turns.ratios(seconds, way, first))


def _rounds(rows):
    counts = sorted({len(s) for row in rows.values() for s in row["seconds"].values()})
    load = f"load between the turns: {100 * turns.idle_load(rows):.1f} % of a core"
    return f"medians of {' or '.join(map(str, counts)) or 'no'} rounds; {load}"
