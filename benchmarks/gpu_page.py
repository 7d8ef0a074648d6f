"""The page of `gpu.py`: the names of what is measured, and the tables."""

import statistics

import turns

LAMB, OPTAX, ADAMW = "lamb_tf.LAMB", "optax.lamb", "torch.optim.AdamW, fused"
TORCH_LAMB, COPY = "a LAMB for PyTorch", "copy"
LOOP, PEER = "ours, the loop of `--engine=jax`, LAMB", "the peer, `torch.compile`, fused AdamW"
ENCODER, DROPPING = "our encoder, no dropout", "our encoder, dropout 0.1"
XLA, CUDNN = 'dot_product_attention, "xla"', 'dot_product_attention, "cudnn"'
FORWARD, BOTH_WAYS = "forward", "forward and backward"

# Read g, x, m, v and write x, m, v, 4 bytes each; for LAMB, read x, m, v a second time.
BYTES_ONCE, BYTES_AGAIN = 28, 12
PEERS = {
    "transformers": "Hugging Face's `BertForPreTraining` (sdpa attention, the fused tanh GELU). It "
    "projects all positions of a sequence to the vocabulary, ours the masked ones: that is the "
    "model its users have. MFU counts the products of our model on both sides, so what the peer "
    "does for positions without a loss is not in it",
    "torch": "`benchmarks/torch_bert.py`, a BERT of `torch.nn.TransformerEncoderLayer`. Its head "
    "computes the masked positions alone, as ours does",
}


def many_steps(name, updates):
    """The name of the way that does all updates of a turn in one compiled program."""
    return f"{name}, {updates} steps in one program"


def page(values):
    """The page, as Markdown.

    Args:
        values: Dictionary of `title`, `date`, `machine`, `commands` and `rows`: by section, and in
            it by work, what `gpu.measure` returned.
    """
    commands = ", ".join(f"`{command}`" for command in values["commands"])
    head = f"# {values['title']}, {values['date']}\n\n{commands} on {values['machine']}.\n"
    rows = values["rows"]
    return "\n".join([head, *(make(rows[name]) for name, make in SECTIONS.items() if name in rows)])


def optimizer(rows):
    """The section on the optimizer's step."""
    lines = _head(
        *("variables", "step", "ms", "`lamb_tf.LAMB` ÷ it, median and range"),
        *("GB/s", "share of the copy's bandwidth, and its range"),
    )
    for work, row in rows.items():
        seconds, cell = row["seconds"], row["cell"]
        copied = 2 * cell["copied_bytes"]
        for way in (w for w in seconds if w != COPY):
            moved = cell["parameters"] * _bytes_per_parameter(way)
            name = way if way != TORCH_LAMB else f"{row['after'][way]['name']}, PyTorch"
            lines.append(
                f"| {work} | {name} | {_ms(seconds[way])} | {_times(seconds, way, LAMB)} "
                f"| {_rate(moved, seconds[way])} | {_share(moved, copied, seconds, way)} |"
            )
        if COPY in seconds:
            copy, size = _rate(copied, seconds[COPY]), f"{cell['copied_bytes'] / 2**20:,.0f} MiB"
            lines.append(f"| | the copy, of {size} | {_ms(seconds[COPY])} | – | {copy} | 100 % |")
        lines += _absent(work, row, 6)
    return f"""## The optimizer's step

{_rounds(rows)} Float32 throughout, gradients that are there already. A call of JAX takes and \
gives back hundreds of arrays, which costs the host time; "steps in one program" is without that, \
as `run_pretraining` runs with `--steps_per_loop`. "÷": in steps per second.

{chr(10).join(lines)}

GB/s are the bytes that a step must move at least, over its time. LAMB reads g, x, m, v and writes \
x, m, v: 7 × 4 = {BYTES_ONCE} bytes per parameter. It knows the trust ratio of a tensor only when \
all of the tensor's direction is known, and then reads x, m and v once more: {BYTES_AGAIN} bytes, \
{BYTES_ONCE + BYTES_AGAIN} together. AdamW: {BYTES_ONCE}. Not counted are temporary results, and \
that `lamb_tf.LAMB` first reads each gradient to see that all are finite. The bandwidth is that of \
a program that reads an array and writes its negation, in the same rounds. Where a cache serves \
the second reading, a share can exceed 100 %. The aim for `lamb_tf.LAMB` is 85 %.
"""


def pretraining(rows):
    """The section on pre-training."""
    first = "tokens/s | MFU | peak memory, GiB | waiting for input"
    lines = _head("work", "way", *first.split(" | "), "ours ÷ it, median and range of rounds")
    for work, row in rows.items():
        cell = row["cell"]
        tokens, known = cell["batch_size"] * cell["length"], row["after"].get(LOOP, {})
        for way, seconds in row["seconds"].items():
            after, median = row["after"].get(way, {}), statistics.median(seconds)
            peak = known.get("peak_flops")
            mfu = f"{100 * known['step_flops'] / median / peak:.1f} %" if peak else "–"
            memory, wait = after.get("peak_bytes"), after.get("input_wait")
            lines.append(
                f"| {work}, batch {cell['batch_size']} | {way} | {tokens / median:,.0f} | {mfu} "
                f"| {f'{memory / 2**30:.1f}' if memory else '–'} "
                f"| {'–' if wait is None else f'{100 * wait / median:.1f} %'} "
                f"| {_times(row['seconds'], way, LOOP)} |"
            )
        lines += _absent(work, row, 7)
    peers = {row["cell"]["peer"] for row in rows.values() if PEER in row["seconds"]}
    peer = "".join(f"The peer: {PEERS[name]}. " for name in sorted(peers))
    counts = sorted({row["cell"]["updates"] for row in rows.values()})
    calls = f"`--steps_per_loop={' or '.join(map(str, counts))}`"
    return f"""## Pre-training

{_rounds(rows)} bfloat16 (ours: policy `mixed_bfloat16`; the peer: autocast), dropout 0.1 \
throughout, vocabulary 30,522, one device. Tokens are those of the batch, padding included. Ours \
reads records and does the updates of a turn in one call ({calls}); the peer has one batch, the \
first of ours, on the device.

{chr(10).join(lines)}

{peer}Both sides run in processes of their own that share the device's memory; the peak is each \
one's own, compilation included. MFU: model FLOPs (`official_bert/model/flops.py`) per second, \
over the peak of the data sheet (`official_bert/training/flops.py`). –: not known for this \
device, or of this side. Our update is LAMB, which does more than AdamW.
"""


def attention(rows):
    """The section on attention alone."""
    lines = _head(
        *("sequences × tokens × heads × width", "way", "forward, ms", "both, ms"),
        *("its time ÷ the encoder's, both, and its range", "largest difference"),
    )
    for work, row in rows.items():
        cell, seconds = row["cell"], row["seconds"]
        shape = [cell["batch_size"], cell["length"], cell["heads"], cell["hidden"] // cell["heads"]]
        sizes, reference = " × ".join(map(str, shape)), f"{ENCODER}: {BOTH_WAYS}"
        for name in (ENCODER, DROPPING, XLA, CUDNN):
            both = f"{name}: {BOTH_WAYS}"
            if both not in seconds:
                continue
            found = row["after"].get(name, {}).get("differences")
            lines.append(
                f"| {work}: {sizes} | {name} | {_ms(seconds.get(f'{name}: {FORWARD}'))} "
                f"| {_ms(seconds[both])} | {_times(seconds, both, reference)} "
                f"| {f'{max(found):.1e}' if found else '–'} |"
            )
        lines += _absent(work, row, 6)
    return f"""## Attention alone

{_rounds(rows)} bfloat16, from queries, keys and values to the mixture; "both": forward and \
backward. Sequences are between half and all of the length long, the rest is padding: our encoder \
adds a bias to the scores, `jax.nn.dot_product_attention` is told the lengths. That function has \
no dropout, with either implementation.

{chr(10).join(lines)}

"÷": by the time of our encoder without dropout. The difference is ‖it − exact‖ / ‖exact‖ of the \
mixture or of a gradient, whichever is largest; exact is the "xla" implementation in float32. –: \
with dropout there is nothing to compare with.
"""


SECTIONS = {function.__name__: function for function in (optimizer, pretraining, attention)}


def _head(*columns):
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _absent(work, row, columns):
    """Lines of what failed or was left out."""
    said = {way: f"failed: {why}" for way, why in row["errors"].items()}
    said |= {way: f"left out: {why}" for way, why in row["left_out"].items()}
    return [
        f"| {work} | {way} | {why.replace('|', '/')} {'| ' * (columns - 3)}|"
        for way, why in said.items()
    ]


def _bytes_per_parameter(way):
    return BYTES_ONCE if way == ADAMW else BYTES_ONCE + BYTES_AGAIN


def _rate(moved, seconds):
    return f"{moved / statistics.median(seconds) / 1e9:,.0f}"


def _ms(seconds):
    return f"{1e3 * statistics.median(seconds):.3g}" if seconds else "–"


def _share(moved, copied, seconds, way):
    """The bytes per second of a way over those of the copy, and their range."""
    if COPY not in seconds:
        return "–"
    pairs = zip(seconds[way], seconds[COPY], strict=True)
    shares = [moved / s / (copied / copy) for s, copy in pairs]
    return f"{_percent(shares)} ({_percent(shares, min)}, {_percent(shares, max)})"


def _percent(shares, of=statistics.median):
    return f"{100 * of(shares):.0f} %"


def _times(seconds, way, first):
    """The time of a way over that of the first: how many times as fast the first one is."""
    if first not in seconds:
        return "–"
    ratios = [s / ours for s, ours in zip(seconds[way], seconds[first], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"


def _rounds(rows):
    counts = sorted({turns.rounds({0: row}) for row in rows.values() if row["seconds"]})
    load = turns.idle_load(rows)
    return (
        f"Medians of {' or '.join(map(str, counts)) or 'no'} rounds, all ways in each in turns; a "
        f"process whose turn it was not used at most {100 * load:.1f} % of one core."
    )
