"""Times one optimizer step on BERT's tensors, next to each backend's peers; writes one page.

    python benchmarks/optimizer_step.py --output benchmarks/results

Each optimizer runs in a process of its own, one after the other on an otherwise idle machine, in
rounds; a ratio is the median of the ratios of each round. The share of orthogonalization is that
of a step which a step without its iterations saves. `--tensors=300` takes that many small tensors
of four shapes instead of BERT's. Gradients are constants: the step is only the update.
"""

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import machine

OURS = ["lamb_tf.LAMB", "lamb_tf.LARS", "lamb_tf.OrScale"]
KERAS = ["keras.optimizers.Lamb", "keras.optimizers.Adam", "keras.optimizers.Muon"]
WITHOUT = ["lamb_tf.OrScale without iterations", "keras.optimizers.Muon without iterations"]
CLIPPED, RECORDED = "lamb_tf.LAMB clipped by global norm", "lamb_tf.LAMB with telemetry"
WAYS = {  # backend: rows of its table, the first of which the others are compared with
    "tensorflow": [
        *(f"{name}, graph" for name in [*OURS, CLIPPED, RECORDED, *KERAS, *WITHOUT]),
        "tfa.optimizers.LAMB, graph",
        *(f"{name}, graph under autograph" for name in (OURS[0], KERAS[0])),
        *(f"{name}, XLA" for name in [*OURS, *KERAS, *WITHOUT]),
        *(f"{name}, eager" for name in [*OURS, *KERAS]),
    ],
    "jax": [f"{name}, jit" for name in [*OURS, *KERAS, *WITHOUT, "optax.lamb"]],
    "torch": [f"{name}, eager" for name in [*OURS, *KERAS, "torch.optim.Adam"]],
}
HEAD = ("CPU ms", "first call, s", "first call, CPU s", "extra memory, MB")
BYTES_PER_PARAMETER = 40  # two passes: 24 to move m and v, 16 to form u again and move x


def bert_shapes(model):
    """The shapes of BERT's trainable tensors: 206 in Base, 398 in Large, heads included."""
    return tensor_shapes(*{"base": (12, 768), "large": (24, 1024)}[model])


def tensor_shapes(layers, hidden):
    """The shapes of the trainable tensors of a BERT with this number of layers, of this width."""
    vector, square = (hidden,), (hidden, hidden)
    norm = [vector, vector]
    layer = [square, vector] * 4 + norm + [(hidden, 4 * hidden), (4 * hidden,)]
    layer += [(4 * hidden, hidden), vector, *norm]
    embeddings = [(30522, hidden), (512, hidden), (2, hidden), *norm]
    heads = [square, vector, square, vector, *norm, (30522,), (2, hidden), (2,)]
    return embeddings + layer * layers + heads


def small_shapes(count):
    """This number of small tensors, of four shapes."""
    return [[(64, 64), (64,), (64, 256), (256,)][i % 4] for i in range(count)]


def arrays(shapes):
    """Weights and gradients like those of a trained BERT."""
    import numpy as np

    random = np.random.default_rng(0)
    return [
        [random.standard_normal(s, dtype=np.float32) * np.float32(scale) for s in shapes]
        for scale in (0.02, 1e-3)
    ]


def make_step(way, shapes):
    """A function without arguments that makes a step and waits for its end."""
    name, how = way.split(", ")
    weights, gradients = arrays(shapes)
    if name == "optax.lamb":
        return _step_of_optax(weights, gradients)
    if name == "torch.optim.Adam":
        return _step_of_torch(weights, gradients)
    if name == "tfa.optimizers.LAMB":
        return _step_of_tfa(weights, gradients)
    import keras

    variables = [keras.Variable(weights.pop(0), name=f"kernel_{i}") for i in range(len(shapes))]
    optimizer = make_optimizer(name)
    optimizer.build(variables)
    if how == "jit":
        state = [variable.value for variable in optimizer.variables]
        values = [variable.value for variable in variables]
        return _step_of_jax(apply_of_keras(optimizer), gradients, state, values)
    tensors = [keras.ops.convert_to_tensor(gradient) for gradient in gradients]
    if how == "eager":
        return lambda: optimizer.apply(tensors, variables)
    import tensorflow as tf

    options = {"jit_compile": how == "XLA", "autograph": how.endswith("autograph")}
    step = tf.function(lambda grads: optimizer.apply(grads, variables), **options)
    return lambda: step(tensors)


def make_optimizer(name):
    """An optimizer of ours or Keras' by its name in the tables."""
    import keras

    import lamb_tf

    path, *setting = name.split(" ", 1)
    package, *_, class_name = path.split(".")
    make = getattr(lamb_tf if package == "lamb_tf" else keras.optimizers, class_name)
    arguments = {"weight_decay": 0.01} if package == "lamb_tf" else {}
    if setting == ["clipped by global norm"]:
        arguments["global_clipnorm"] = 0.1
    if setting == ["without iterations"] and package == "keras":
        arguments["ns_steps"] = 0
    optimizer = make(1e-3, **arguments)
    if setting == ["without iterations"] and package == "lamb_tf":
        optimizer.iteration = optimizer.iteration._replace(coefficients=())
    if setting == ["with telemetry"]:
        lamb_tf.telemetry.record(optimizer)
    return optimizer


def apply_of_keras(optimizer):
    """The step of a built optimizer as a function of gradients, state and values.

    Results are in the order of the donated arguments, so that each takes the memory of its own.
    """

    def apply(gradients, state, values):
        return optimizer.stateless_apply(state, gradients, values)[::-1]

    return apply


def apply_of_optax(optimizer):
    """The same of an optimizer of optax."""
    import optax

    def apply(gradients, state, values):
        updates, state = optimizer.update(gradients, state, values)
        return state, optax.apply_updates(values, updates)

    return apply


def _step_of_jax(apply, gradients, state, values):
    import jax

    compiled, at = jax.jit(apply, donate_argnums=(1, 2)), {"state": state, "values": values}
    gradients = jax.tree.map(jax.numpy.asarray, gradients)

    def step():
        at["state"], at["values"] = compiled(gradients, at["state"], at["values"])
        jax.block_until_ready(at)

    return step


def _step_of_optax(weights, gradients):
    import jax
    import optax

    values = jax.tree.map(jax.numpy.asarray, weights)
    optimizer = optax.lamb(1e-3, weight_decay=0.01)
    return _step_of_jax(apply_of_optax(optimizer), gradients, optimizer.init(values), values)


def _step_of_torch(weights, gradients):
    import torch

    parameters = [torch.nn.Parameter(torch.from_numpy(x)) for x in weights]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = torch.from_numpy(gradient)
    return torch.optim.Adam(parameters, 1e-3, foreach=True).step


def _step_of_tfa(weights, gradients):
    """TensorFlow Addons next to Keras 3, where it looks for a module that Keras 2 had."""
    import types

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    from tf_keras.src.engine import keras_tensor

    engine = types.ModuleType("keras.src.engine")
    engine.keras_tensor = keras_tensor
    sys.modules["keras.src.engine"] = engine
    sys.modules["keras.src.engine.keras_tensor"] = keras_tensor
    import tensorflow_addons

    variables = [tf.Variable(x) for x in weights]
    tensors = [tf.constant(gradient) for gradient in gradients]
    optimizer = tensorflow_addons.optimizers.LAMB(1e-3, weight_decay=0.01)

    @tf.function(autograph=False)
    def step(gradients):
        optimizer.apply_gradients(zip(gradients, variables))

    return lambda: step(tensors)


def measure(way, shapes, repeats):
    """Seconds of the first call, by the clock and of all cores; of the next ones; peak memory."""
    step = make_step(way, shapes)
    start, cpu = time.perf_counter(), time.process_time()
    step()
    first, first_cpu = time.perf_counter() - start, time.process_time() - cpu
    step()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory that earlier calls freed is not resident
    resident = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    seconds, cpu = [], time.process_time()
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / repeats
    extra = _memory("VmHWM") - resident
    return {"first": first, "first_cpu": first_cpu, "seconds": seconds, "cpu": cpu, "extra": extra}


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


def run_in_process(backend, way, arguments):
    command = [sys.executable, __file__, "--child", way, "--model", arguments.model]
    command += ["--repeats", str(arguments.repeats), "--tensors", str(arguments.tensors)]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def report(title, shapes, results, bandwidth):
    """The page: a table for each backend, and the shares of orthogonalization."""
    sizes = [math.prod(shape) for shape in shapes]
    limit = BYTES_PER_PARAMETER * sum(sizes) / bandwidth * 1e3
    first_rows = next(iter(next(iter(results.values())).values()))
    parts = [
        f"{len(shapes)} tensors, {sum(sizes):,} parameters, float32; the largest has "
        f"{4 * max(sizes) / 1e6:.1f} MB. Copy bandwidth of all cores, measured between the runs: "
        f"{bandwidth / 1e9:.1f} GB/s, read and written; {BYTES_PER_PARAMETER} bytes a parameter "
        f"at that rate take {limit:.0f} ms. Medians of {len(first_rows)} round(s) of "
        f"{len(first_rows[0]['seconds'])} steps. CPU time is that of all cores; the first call "
        "traces and compiles."
    ]
    for backend, rows in results.items():
        reference = next(iter(rows))
        table = [("step", "ms", "fastest", f"step / step of `{reference}`", *HEAD)]
        for way, rounds in rows.items():
            seconds = [s for r in rounds for s in r["seconds"]]
            table.append(
                (
                    way,
                    f"{1e3 * statistics.median(seconds):.0f}",
                    f"{1e3 * min(seconds):.0f}",
                    f"{_ratio(rounds, rows[reference]):.2f}",
                    f"{1e3 * statistics.median(r['cpu'] for r in rounds):.0f}",
                    f"{min(r['first'] for r in rounds):.2f}",
                    f"{min(r['first_cpu'] for r in rounds):.2f}",
                    f"{max(r['extra'] for r in rounds) / 1e6:.0f}",
                )
            )
        parts += [f"## {backend}", table]
    if shares := _shares(results):
        parts += ["## Share of orthogonalization in a step", [("step", "share"), *shares]]
    return machine.page(f"One optimizer step on {title}", *parts)


def _shares(results):
    found = []
    for backend, rows in results.items():
        for way in rows:
            without = way.replace(",", " without iterations,")
            if without in rows:
                share = 1 - _ratio(rows[without], rows[way])
                found.append((f"{way} on {backend}", f"{100 * share:.0f} %"))
    return found


def _ratio(one, other):
    return statistics.median(
        statistics.median(r["seconds"]) / statistics.median(s["seconds"])
        for r, s in zip(one, other)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=list(WAYS), help="one backend; all without")
    parser.add_argument("--model", choices=["base", "large"], default="base")
    parser.add_argument("--tensors", type=int, default=0, help="small tensors instead of BERT's")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", help="names from the tables, separated by ;")
    parser.add_argument("--output", type=Path, help="folder for the page; printed without")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = arguments.tensors
    shapes = small_shapes(count) if count else bert_shapes(arguments.model)
    if arguments.child:
        print(json.dumps(measure(arguments.child, shapes, arguments.repeats)))
        return
    chosen = arguments.ways.split(";") if arguments.ways else None
    results, bandwidths = {}, []
    for backend in [arguments.backend] if arguments.backend else list(WAYS):
        rows = {way: [] for way in WAYS[backend] if chosen is None or way in chosen}
        for _ in range(arguments.rounds if rows else 0):
            for way in rows:
                bandwidths.append(copy_bandwidth(machine.cores()))
                rows[way].append(run_in_process(backend, way, arguments))
                median = 1e3 * statistics.median(rows[way][-1]["seconds"])
                print(f"{backend}, {way}: {median:.0f} ms", file=sys.stderr)
        if rows:
            results[backend] = rows
    title = f"{count} small tensors" if count else f"BERT-{arguments.model.capitalize()}'s tensors"
    page = report(title, shapes, results, statistics.median(bandwidths))
    what = f"{count}_tensors" if count else arguments.model
    machine.write_or_print(arguments.output, f"optimizer_step_{what}", page)


if __name__ == "__main__":
    main()
