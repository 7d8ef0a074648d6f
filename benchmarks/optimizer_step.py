"""Times one optimizer step on BERT's tensors, beside Keras' and TensorFlow Addons' LAMB.

    python benchmarks/optimizer_step.py --model base --output benchmarks/results

Each optimizer runs in a process of its own, one after the other on an otherwise idle machine, in
rounds; a ratio of steps is the median of the ratios of each round. The machine's copy bandwidth is
measured between them. What telemetry costs is measured in one process, in alternating steps.
Gradients are constants: the step is the update alone.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import machine

WAYS = {
    "lamb_tf.LAMB, graph": ("ours", False),
    "lamb_tf.LAMB, graph, clipped by global norm": ("ours clipped", False),
    "lamb_tf.LAMB, XLA": ("ours", True),
    "lamb_tf.LAMB, graph, under autograph": ("ours under autograph", False),
    "keras.optimizers.Lamb, graph": ("keras", False),
    "keras.optimizers.Lamb, graph, under autograph": ("keras under autograph", False),
    "keras.optimizers.Lamb, XLA": ("keras", True),
    "tfa.optimizers.LAMB, graph": ("tfa", False),
}
BYTES_PER_PARAMETER = 40  # two passes: 24 to move m and v, 16 to form u again and move x


def bert_shapes(model):
    """The shapes of BERT's trainable tensors: 206 in Base, 398 in Large, heads included."""
    return tensor_shapes(*{"base": (12, 768), "large": (24, 1024)}[model])


def tensor_shapes(layers, hidden):
    """The shapes of the trainable tensors of a BERT with so many layers of that width."""
    vector, square = (hidden,), (hidden, hidden)
    norm = [vector, vector]
    layer = [square, vector] * 4 + norm + [(hidden, 4 * hidden), (4 * hidden,)]
    layer += [(4 * hidden, hidden), vector, *norm]
    embeddings = [(30522, hidden), (512, hidden), (2, hidden), *norm]
    heads = [square, vector, square, vector, *norm, (30522,), (2, hidden), (2,)]
    return embeddings + layer * layers + heads


def make_step(optimizer, shapes, xla):
    """The compiled step of one optimizer on tensors like those of a trained BERT.

    "… under autograph" is the plain `tf.function` of most custom loops, which converts its callees.
    """
    optimizer, *autograph = optimizer.split(" under ")
    if optimizer == "tfa":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    gradients = [
        tf.constant(random.standard_normal(s, dtype=np.float32) * np.float32(1e-3)) for s in shapes
    ]
    weights = [random.standard_normal(s, dtype=np.float32) * np.float32(0.02) for s in shapes]
    if optimizer == "tfa":
        variables = [tf.Variable(weights.pop(0)) for _ in shapes]
        tfa_lamb = _addons().optimizers.LAMB(1e-3, weight_decay=0.01)

        def apply(grads):
            tfa_lamb.apply_gradients(zip(grads, variables))
    else:
        import keras

        import lamb_tf

        variables = [keras.Variable(weights.pop(0)) for _ in shapes]
        if optimizer == "keras":
            other = keras.optimizers.Lamb(1e-3)
        else:
            clip = 0.1 if optimizer == "ours clipped" else None
            other = lamb_tf.LAMB(1e-3, weight_decay=0.01, global_clipnorm=clip)
            if optimizer == "ours recorded":
                lamb_tf.telemetry.record(other)
        other.build(variables)

        def apply(grads):
            other.apply(grads, variables)

    return tf.function(apply, jit_compile=xla, autograph=bool(autograph)), gradients


def _addons():
    """TensorFlow Addons beside Keras 3, where it looks for a module that Keras 2 had."""
    import types

    from tf_keras.src.engine import keras_tensor

    engine = types.ModuleType("keras.src.engine")
    engine.keras_tensor = keras_tensor
    sys.modules["keras.src.engine"] = engine
    sys.modules["keras.src.engine.keras_tensor"] = keras_tensor
    import tensorflow_addons

    return tensorflow_addons


def measure(optimizer, model, xla, repeats):
    """Seconds of the first call and of the next ones, and the peak of memory above the resident."""
    step, gradients = make_step(optimizer, bert_shapes(model), xla)
    start = time.perf_counter()
    step(gradients)
    first = time.perf_counter() - start
    step(gradients)
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls freed is not resident
    resident = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step(gradients)
        seconds.append(time.perf_counter() - start)
    return {"first": first, "seconds": seconds, "extra_bytes": _memory("VmHWM") - resident}


def telemetry_ratios(model, repeats):
    """The time of a step with telemetry over that of one without, for each pair of them."""
    plain, gradients = make_step("ours", bert_shapes(model), xla=False)
    recorded, _ = make_step("ours recorded", bert_shapes(model), xla=False)

    def seconds(step):
        start = time.perf_counter()
        step(gradients)
        return time.perf_counter() - start

    for step in (plain, recorded) * 2:
        step(gradients)
    return [seconds(recorded) / seconds(plain) for _ in range(repeats)]


def _memory(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def copy_bandwidth(threads):
    """Bytes a second, read and written, of memcpy on all cores, on blocks beyond any cache."""
    size = 128 * 2**20
    blocks = [
        [ctypes.create_string_buffer(b"x" * size, size) for _ in "ab"] for _ in range(threads)
    ]

    def copy(pair):
        for _ in range(4):
            ctypes.memmove(pair[1], pair[0], size)

    best = 0.0
    for _ in range(4):
        workers = [threading.Thread(target=copy, args=(pair,)) for pair in blocks]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, 2 * 4 * size * threads / (time.perf_counter() - start))
    return best


def run_in_process(optimizer, xla, model, repeats):
    command = [sys.executable, __file__, "--child", optimizer, "--model", model]
    command += ["--repeats", str(repeats)] + (["--xla"] if xla else [])
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    output = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def report(model, results, telemetry, bandwidth, command):
    """The table, as Markdown."""
    rounds = len(next(iter(results.values())))
    repeats = len(next(iter(results.values()))[0]["seconds"])
    shapes = bert_shapes(model)
    sizes = [_size(shape) for shape in shapes]
    limit = BYTES_PER_PARAMETER * sum(sizes) / bandwidth * 1e3
    versions = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("keras", "numpy", "tensorflow_addons")
    )
    import_name = next(n for n in ("tensorflow", "tensorflow_cpu") if _installed(n))
    lines = [
        f"# One LAMB step on BERT-{model.capitalize()}'s tensors",
        "",
        f"`{command}`, {time.strftime('%B %Y')}. {machine.processor()}, {machine.cores()} cores, "
        f"Python {platform.python_version()}, tensorflow {metadata.version(import_name)}, "
        f"{versions}.",
        "",
        f"{len(shapes)} tensors, {sum(sizes):,} parameters, float32; the largest has "
        f"{4 * max(sizes) / 1e6:.0f} MB. Copy bandwidth of all cores, measured between the runs: "
        f"{bandwidth / 1e9:.1f} GB/s, read and written; {BYTES_PER_PARAMETER} bytes a parameter "
        f"at that rate take {limit:.0f} ms. Medians of {rounds} round(s) of {repeats} steps.",
        "",
        "| step | ms | fastest | of the limit | first call, s | extra memory, MB "
        "| in largest tensors |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, rounds in results.items():
        seconds = [s for r in rounds for s in r["seconds"]]
        median, fastest = 1e3 * statistics.median(seconds), 1e3 * min(seconds)
        first = min(r["first"] for r in rounds)
        extra = max(r["extra_bytes"] for r in rounds)
        lines.append(
            f"| `{way.split(',')[0]}`,{','.join(way.split(',')[1:])} | {median:.0f} "
            f"| {fastest:.0f} | {median / limit:.2f} | {first:.1f} "
            f"| {extra / 1e6:.0f} | {extra / 4 / max(sizes):.1f} |"
        )
    lines += ["", "| ratio | |", "|---|---|"]
    for name, one, other, key in RATIOS:
        if one in results and other in results:
            lines.append(f"| {name} | {_ratio(results[one], results[other], key):.2f} |")
    name = f"step with telemetry / step without, median of {len(telemetry)} pairs"
    lines.append(f"| {name} | {statistics.median(telemetry):.3f} |")
    return "\n".join(lines) + "\n"


RATIOS = [
    (f"{what} of {peer} / {what} of ours, {how}", f"{peer}, {how}", f"lamb_tf.LAMB, {how}", what)
    for what in ("step", "first call")
    for peer, how in [
        ("keras.optimizers.Lamb", "graph"),
        ("keras.optimizers.Lamb", "graph, under autograph"),
        ("tfa.optimizers.LAMB", "graph"),
        ("keras.optimizers.Lamb", "XLA"),
    ]
]


def _ratio(one, other, what):
    if what == "first call":
        return min(r["first"] for r in one) / min(r["first"] for r in other)
    return statistics.median(
        statistics.median(r["seconds"]) / statistics.median(s["seconds"])
        for r, s in zip(one, other)
    )


def _size(shape):
    size = 1
    for n in shape:
        size *= n
    return size


def _installed(name):
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["base", "large"], default="base")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default=None, help="names from the table, separated by ;")
    parser.add_argument("--output", type=Path, help="folder for the table; printed without")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--xla", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        if arguments.child == "telemetry":
            result = telemetry_ratios(arguments.model, arguments.repeats)
        else:
            result = measure(arguments.child, arguments.model, arguments.xla, arguments.repeats)
        print(json.dumps(result))
        return
    ways = arguments.ways.split(";") if arguments.ways else list(WAYS)
    results, bandwidths = {way: [] for way in ways}, []
    for _ in range(arguments.rounds):
        for way in ways:
            bandwidths.append(copy_bandwidth(machine.cores()))
            results[way].append(run_in_process(*WAYS[way], arguments.model, arguments.repeats))
            median = 1e3 * statistics.median(results[way][-1]["seconds"])
            print(f"{way}: {median:.0f} ms, copy {bandwidths[-1] / 1e9:.0f} GB/s", file=sys.stderr)
    telemetry = run_in_process("telemetry", False, arguments.model, 10 * arguments.repeats)
    command = " ".join(["python benchmarks/optimizer_step.py", *sys.argv[1:]])
    table = report(arguments.model, results, telemetry, statistics.median(bandwidths), command)
    print(table)
    if arguments.output:
        name = f"optimizer_step_{arguments.model}_cpu{machine.cores()}_{time.strftime('%Y%m')}.md"
        (arguments.output / name).write_text(table)


if __name__ == "__main__":
    main()
