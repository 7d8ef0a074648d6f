"""Compiles programs of TensorFlow and JAX with the real TPU compiler, on a machine without a TPU.

Under `TPUStrategy` each core of a pod runs one program, in which sums over replicas are all-reduce
instructions. Here TensorFlow lowers the same function to StableHLO, under a strategy that makes the
same instructions, and libtpu's compiler compiles that for a described topology. This gives memory
and cost; times are the compiler's estimates.

Needs the extra `[rehearse]` (jax and libtpu). Private parts of TensorFlow and JAX, where no public
ones exist, are used only in this module.
"""

import dataclasses
import importlib.util
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lamb_tf import compile_target
from official_bert.data.input_pipeline import batch_spec
from official_bert.engines.tf_update import make_replica_update
from official_bert.rehearsal import programs
from official_bert.stages import Run, Stage
from official_bert.system import quiet_tensorflow
from official_bert.training.stage_model import make_model_and_optimizer


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPU, from Google's documentation.

    Attributes:
        cores: Devices per chip, each with its own replica. The compiler counts a chip's two cores
            as two devices in v4, as one in v5p.
        memory: Bytes of high-bandwidth memory per core.
        flops: FLOP/s per core in bfloat16 products.
        clock: Cycles/s.
        interconnect: Bytes/s that a chip sends over all its links.
        example: A topology of this generation, as `Topology` expects it.
    """

    cores: int
    memory: float
    flops: float
    clock: float
    interconnect: float
    example: str


# https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of each generation; for
# v2 and v3 also Jouppi et al., A domain-specific supercomputer for training deep neural networks,
# CACM 2020: four links a chip, of 496 and 656 Gbit/s. The clocks agree with the FLOP/s: two a cycle
# in each cell of a core's matrix units, of which there are 1, 2, 4, 4, 8 of 128 × 128, and in v6e
# 4 of 256 × 256.
CHIPS = {
    "v2": Chip(2, 8 * 2**30, 22.9e12, 700e6, 4 * 62e9, "v2:16x16"),
    "v3": Chip(2, 16 * 2**30, 61.6e12, 940e6, 4 * 82e9, "v3:32x32"),
    "v4": Chip(2, 16 * 2**30, 137.6e12, 1050e6, 300e9, "v4:8x8x16"),
    "v5e": Chip(1, 16 * 2**30, 197e12, 1500e6, 200e9, "v5e:16x16"),
    "v5p": Chip(1, 95 * 2**30, 459e12, 1750e6, 600e9, "v5p:4x4x8"),
    "v6e": Chip(1, 32 * 2**30, 918e12, 1750e6, 400e9, "v6e:16x16"),
}


class Topology:
    """A slice of a pod.

    Args:
        name: Generation and chips along each axis of the torus, `"v3:32x32"`.

    Attributes:
        name, chip, num_chips: As given, the `Chip`, and their number in the slice.
        devices: JAX's devices, one per core.

    Raises:
        ValueError: if no such slice exists.
        ImportError: without the extra `[rehearse]`.
    """

    device = "core"

    def __init__(self, name: str):
        match = re.fullmatch(r"(v\d+[a-z]?):([1-9]\d*(?:x[1-9]\d*){1,2})", name)
        if match is None or match[1] not in CHIPS:
            examples = ", ".join(chip.example for chip in CHIPS.values())
            raise ValueError(
                f"topology must be generation:chips, like one of {examples}; got {name!r}."
            )
        self.name, self.chip = name, CHIPS[match[1]]
        self.num_chips = math.prod(map(int, match[2].split("x")))
        topologies = _jax_topologies()
        refusal = None
        with quiet_tensorflow.silence():  # libtpu logs that no TPU was found
            try:
                self.devices = topologies.get_topology_desc(name, platform="tpu").devices
            except Exception as error:  # JaxRuntimeError, which the compiler raises for any of it
                refusal = error
        if refusal:
            raise ValueError(
                f"topology must be a slice that exists, such as {self.chip.example}; got {name!r}. "
                f"The TPU compiler reports: {refusal}"
            )

    def __str__(self):
        memory = f"{self.chip.memory / 2**30:.0f} GiB"
        return f"{self.name}: {self.num_chips:,} chips, {self.num_cores:,} cores of {memory}"

    @property
    def num_cores(self) -> int:
        return len(self.devices)


class ReplicaStrategy(tf.distribute.Strategy):
    """One of many replicas, as in `TPUStrategy`: sums become all-reduce instructions.

    Functions in `strategy.run` can only be lowered: the other replicas do not exist.
    """

    def __init__(self, num_replicas: int):
        super().__init__(_replica_extended(self, num_replicas))


def _replica_extended(strategy, num_replicas):
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

    class ReplicaExtended(OneDeviceExtended):
        @property
        def _num_replicas_in_sync(self):
            return num_replicas

        def _reduce_to(self, reduce_op, value, destinations, options):
            total = gen_xla_ops.xla_all_reduce(
                input=tf.convert_to_tensor(value),
                group_assignment=[list(range(num_replicas))],
                reduce_op="Add",
                mode="CrossReplica",
            )
            return total if reduce_op == tf.distribute.ReduceOp.SUM else total / num_replicas

    return ReplicaExtended(strategy, "CPU:0")


def lower(function: Callable, *signature: object) -> bytes:
    """Lowers a function of tensors to StableHLO.

    Args:
        function: The function; it may read and assign variables.
        *signature: A `tf.TensorSpec` for each argument (or a structure of them).

    Returns:
        A serialized, portable StableHLO module.
    """

    def of_flat(*tensors):  # TensorFlow only lowers functions of bare tensors
        return function(*tf.nest.pack_sequence_as(signature, tensors))

    compiled = tf.function(of_flat, jit_compile=True, autograph=False)
    with compile_target.compiling_for("TPU"):
        ir_of = compiled.experimental_get_compiler_ir(*tf.nest.flatten(signature))
        return ir_of(stage="stablehlo_serialized", platform_name="CPU")


def lower_stage(run: Run, stage: Stage, num_cores: int) -> bytes:
    """Lowers the step of one replica of a stage."""
    strategy = ReplicaStrategy(num_cores)
    with strategy.scope():
        model, optimizer = make_model_and_optimizer(run, stage)
    update = make_replica_update(run, model, optimizer)
    arrays = batch_spec(stage.batch_size // num_cores, *stage.lengths)
    batch = {name: tf.TensorSpec(*array) for name, array in arrays.items()}
    step, number = tf.TensorSpec((), tf.int32), tf.TensorSpec((), tf.float32)
    return lower(lambda *values: strategy.run(update, args=values), batch, step, number, number)


def compile_for(topology: Topology, stablehlo: bytes) -> programs.Compiled:
    """Compiles one replica's program for every core of a topology.

    Args:
        stablehlo: From `lower`, with one replica for each core of the topology.

    Raises:
        DoesNotFit: the program needs more memory than a core has.
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo as dialect

    def compiled(overrides):
        options = compiler.get_compile_options(
            num_replicas=topology.num_cores,
            num_partitions=1,
            device_assignment=np.array([[device.id] for device in topology.devices]),
            env_options_overrides=overrides,
        )
        return topology.devices[0].client.compile(module, devices, options)

    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        context.allow_unregistered_dialects = True
        module = dialect.deserialize_portable_artifact(context, stablehlo)
        _make_tpu_dialect(module.operation)
        devices = _jax.DeviceList(tuple(topology.devices))
        executable, text = _with_text(compiled)
    memory, costs = executable.get_compiled_memory_stats(), executable.cost_analysis()
    return _summary(topology, memory, costs, text)


def compile_lowered(topology: Topology, lowered: Any) -> programs.Compiled:
    """Compiles a program that `jax.jit` has lowered for the devices of a topology.

    Raises:
        DoesNotFit: the program needs more memory than a core has.
    """
    compiled, text = _with_text(lowered.compile)
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    return _summary(topology, memory, costs, text)


def _with_text(compile_with: Callable[[dict[str, str | bool]], Any]) -> tuple[Any, str]:
    """The compiled program and its text.

    The compiler writes the text: JAX's XLA, of another revision, cannot read every program.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled = compile_with({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except Exception as error:  # JaxRuntimeError: its class moves between versions
            raise _does_not_fit(error) from None
        (path,) = pathlib.Path(folder).glob("*.after_codegen.txt")
        return compiled, path.read_text()


def _does_not_fit(error):
    """`DoesNotFit` for the compiler's out-of-memory error; any other error unchanged."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return error
    match = re.search(r"(?:Used |memory required [^()]*\()([\d.]+)([KMGT])", text)
    needed = match and int(float(match[1]) * 2 ** (10 * (1 + "KMGT".index(match[2]))))
    return programs.DoesNotFit(text.partition("\n")[0], needed)


def _summary(topology, memory, costs, text):
    def seconds_of(line):
        cycles = re.search(r'"estimated_cycles":"(\d+)"', line)
        return cycles and int(cycles[1]) / topology.chip.clock

    return programs.summary(memory, costs, text, seconds_of, topology.num_cores)


def _jax_topologies():
    missing = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"The TPU compiler needs {' and '.join(missing)}, not installed here: "
            "pip install 'lamb_tf[rehearse]'."
        )
    # Otherwise libtpu would look for this machine's TPU, and JAX for any accelerator.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Only a TPU, not the compiler, belongs to one process.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    # libtpu ends the process at a flag that only the compilers for CPUs and GPUs know.
    os.environ.pop("XLA_FLAGS", None)
    from jax.experimental import topologies

    return topologies


def _make_tpu_dialect(operation):
    """Replaces operations that TensorFlow lowers differently for a CPU than for a TPU.

    Removes `mhlo.copy`, which StableHLO lacks. Takes random bits from the TPU's own generator, as
    `tf.random` does there, instead of Philox; its state is a word shorter.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    def words(state, first, end):
        return stablehlo.slice(state, *map(ir.DenseI64ArrayAttr.get, ([first], [end], [1])))

    for inner in [op.operation for region in operation.regions for b in region for op in list(b)]:
        if inner.name == "mhlo.copy":
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()
        elif inner.name == "stablehlo.rng_bit_generator":
            (state,) = inner.operands
            with ir.InsertionPoint(inner):
                short = words(state, 0, 2)
                generator = stablehlo.RngBitGeneratorOp(
                    short.type,
                    inner.results[1].type,
                    stablehlo.RngAlgorithmAttr.get("DEFAULT"),
                    short,
                ).operation
                after = stablehlo.concatenate([generator.results[0], words(state, 2, 3)], 0)
            inner.results[0].replace_all_uses_with(after)
            inner.results[1].replace_all_uses_with(generator.results[1])
            inner.erase()
        else:
            _make_tpu_dialect(inner)
