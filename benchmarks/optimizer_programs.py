"""Compiles one optimizer step on BERT's tensors for TPUs and GPUs; writes one page.

    python benchmarks/optimizer_programs.py --topologies=v5e:2x2,h100:1x1

The compilers are those of `lamb-bert rehearse`: no TPU or GPU is needed. A GPU's needs JAX's CUDA
plug-in (docs/gpu.md). The program is that of one device, with donated state and weights. OrScale
and Muon are left out: their time is that of matrix products, which bytes do not describe.
"""

import argparse
import math
import os
import re
import sys
import time
from pathlib import Path

import machine
import optimizer_step

WAYS = ["lamb_tf.LAMB", "lamb_tf.LARS", "keras.optimizers.Lamb", "keras.optimizers.Adam"]
OPTAX, GUARDED = "optax.lamb", "optax.lamb in optax.apply_if_finite"
WAYS += [OPTAX, GUARDED]
HEAD = ("step", "instructions", "bytes per parameter", f"of `{OPTAX}`'s", "XLA's count")
HEAD += ("estimate, ms", "memory beyond arguments, MB", "compilation, CPU s")
COLUMNS = (
    "*Instructions* compute or copy; those that only name a value do not count. *Bytes* are those "
    "that they read from and write to main memory: each argument and result once, a copy into "
    "on-chip memory once, and of a conditional the branch with the most. *XLA's count* is its "
    "`bytes accessed` per parameter, which includes on-chip memory and counts asynchronous copies; "
    "the GPU's compiler has none. The *estimate* is the TPU compiler's, of one step without "
    "asynchronous copies. *Memory* is that of temporaries and program: state and weights are "
    "overwritten in place. *Compilation* includes tracing, and in a table's first row the start of "
    "the compiler."
)
FINITE = (
    "`lamb_tf.LAMB` and LARS check that every gradient is finite before they change anything, "
    f"which reads each gradient once more, 4 bytes per parameter. So does `{GUARDED}`."
)
# Instructions that name values, or stand for others that count.
NO_KERNELS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
NO_KERNELS |= {"while", "call", "conditional"}
INSTRUCTION = re.compile(r"  (?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
ARRAY = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")
ON_CHIP = re.compile(r"S\(\d\)")  # in an array's layout


def lower(way, shapes, device):
    """Lowers the step for a device that need not be here."""
    import jax
    import keras
    import optax

    from lamb_tf.compile_target import compiling_for

    values = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    if way in (OPTAX, GUARDED):
        optimizer = optax.lamb(1e-3, weight_decay=0.01)
        if way == GUARDED:
            optimizer = optax.apply_if_finite(optimizer, max_consecutive_errors=2**31 - 1)
        state = jax.eval_shape(optimizer.init, values)
        apply = optimizer_step.apply_of_optax(optimizer)
    else:
        variables = [
            keras.Variable("zeros", shape=shape, name=f"kernel_{i}")
            for i, shape in enumerate(shapes)
        ]
        optimizer = optimizer_step.make_optimizer(way)
        optimizer.build(variables)
        state = [variable.value for variable in optimizer.variables]
        apply = optimizer_step.apply_of_keras(optimizer)
    place = jax.sharding.SingleDeviceSharding(device)
    gradients, state, values = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), (values, state, values)
    )
    with compiling_for(device.platform):
        return jax.jit(apply, donate_argnums=(1, 2)).lower(gradients, state, values)


def measure(way, shapes, compiler, topology):
    """A row of the table, without the ratio."""
    parameters = sum(map(math.prod, shapes))
    start = time.process_time()
    compiled = compiler.compile_lowered(topology, lower(way, shapes, topology.devices[0]))
    cpu = time.process_time() - start
    instructions, moved = traffic(compiled.hlo)
    counted, seconds = compiled.bytes_accessed, compiled.seconds
    return {
        "instructions": instructions,
        "moved": moved / parameters,
        "counted": "–" if counted is None else f"{counted / parameters:.1f}",
        "estimate": "–" if seconds is None else f"{1e3 * seconds:.2f}",
        "beyond": (compiled.memory - compiled.argument_bytes) / 1e6,
        "cpu": cpu,
    }


def traffic(hlo):
    """Number of instructions that compute or copy; bytes of main memory that they move."""
    from official_bert.rehearsal import programs

    lines, entry = programs.computations(hlo)
    shapes = {}  # of each instruction's result; names are unique in a program

    def of_computation(name):
        count, moved = 0, 0
        for line in lines[name]:
            result, shape, kind, rest = INSTRUCTION.match(line).groups()
            shapes[result] = shape
            kind_of_call, names = programs.called(line)
            if names:
                bodies = [of_computation(body) for body in names]
                count += sum(n for n, _ in bodies)
                sizes = [size for _, size in bodies]
                moved += max(sizes) if kind_of_call == "conditional" else sum(sizes)
            elif kind not in NO_KERNELS and not kind.endswith("-done"):
                if '"ConcatBitcast"' in rest:  # names slices that lie side by side as one array
                    continue
                count += 1
                if kind.endswith("-start"):
                    moved += _copied(shape)
                else:
                    arguments = set(re.findall(r"%([\w.\-]+)", rest.partition(")")[0]))
                    moved += sum(map(_in_main_memory, [shape, *map(shapes.get, arguments)]))
        return count, moved

    return of_computation(entry)


def _arrays(shape):
    """Bytes of each array, and whether it is in main memory."""
    from official_bert.rehearsal import programs

    return [(programs.size_of(a), not ON_CHIP.search(a)) for a in ARRAY.findall(shape)]


def _in_main_memory(shape):
    return sum(size for size, is_in_main_memory in _arrays(shape) if is_in_main_memory)


def _copied(shape):
    """Bytes of main memory that an asynchronous copy moves; its result has both arrays."""
    (one, one_in_main_memory), (other, other_in_main_memory) = _arrays(shape)[:2]
    return min(one, other) * (one_in_main_memory + other_in_main_memory)


def report(title, shapes, results):
    """The page: a table for each topology."""
    parameters = sum(map(math.prod, shapes))
    parts = [f"{len(shapes)} tensors, {parameters:,} parameters, float32.", COLUMNS, FINITE]
    for topology, rows in results.items():
        reference = rows.get(OPTAX, {"moved": float("nan")})["moved"]
        table = [HEAD]
        for way, row in rows.items():
            table.append(
                (
                    way,
                    f"{row['instructions']:,}",
                    f"{row['moved']:.1f}",
                    f"{row['moved'] / reference:.2f}",
                    row["counted"],
                    row["estimate"],
                    f"{row['beyond']:.1f}",
                    f"{row['cpu']:.0f}",
                )
            )
        parts += [f"## {topology}", table]
    return machine.page(f"The program of one optimizer step on {title}", *parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topologies", default="v5e:2x2,h100:1x1", help="separated by commas")
    parser.add_argument("--layers", type=int, default=12, help="of BERT-Base: 12, or fewer")
    parser.add_argument("--tensors", type=int, default=0, help="small tensors instead of BERT's")
    parser.add_argument("--ways", help="names from the table, separated by ;")
    parser.add_argument("--output", type=Path, help="folder for the page; printed without")
    arguments = parser.parse_args()
    # A compiled program from a cache would take no time.
    os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", JAX_ENABLE_COMPILATION_CACHE="0")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from official_bert import rehearse

    count, layers = arguments.tensors, arguments.layers
    if count:
        title, what = f"{count} small tensors", f"{count}_tensors"
        shapes = optimizer_step.small_shapes(count)
    else:
        title, what = f"BERT-Base's tensors, layers: {layers}", f"bert_layers_{layers}"
        shapes = optimizer_step.tensor_shapes(layers, 768)
    chosen = arguments.ways.split(";") if arguments.ways else WAYS
    results = {}
    for name in arguments.topologies.split(","):
        compiler = rehearse.compiler_for(name)
        topology, rows = compiler.Topology(name), results.setdefault(name, {})
        for way in filter(chosen.__contains__, WAYS):
            rows[way] = measure(way, shapes, compiler, topology)
            print(f"{name}, {way}: {rows[way]}", file=sys.stderr, flush=True)
    page = report(title, shapes, results)
    machine.write_or_print(arguments.output, f"optimizer_programs_{what}", page)


if __name__ == "__main__":
    main()
