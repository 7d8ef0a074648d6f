"""Compiles JAX programs with XLA for NVIDIA GPUs, on a machine without a GPU.

JAX's CUDA plug-in contains the compiler, which reads a description of the GPU. This gives memory
and communication, but not time: the fastest libraries and tilings are chosen by trial on the GPU.

Needs JAX's CUDA plug-in, not CUDA itself.
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any

from official_bert.rehearsal import programs


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, from NVIDIA's data sheet and CUDA's table of compute capabilities.

    Attributes:
        capability: Compute capability.
        memory: Bytes that CUDA offers.
        flops: FLOP/s in dense 16-bit products.
        interconnect: Bytes/s sent to the other GPUs of its host.
        cores: Streaming multiprocessors.
        lanes: float32 units per core.
        threads: Maximum threads per core.
        shared: KiB of shared memory per core.
        block: KiB of shared memory per thread block, at most.
        cache: MiB of second-level cache.
        bandwidth: Bytes/s of its memory.
        clock: Maximum, in GHz.
    """

    capability: tuple[int, int]
    memory: int
    flops: float
    interconnect: float
    cores: int
    lanes: int
    threads: int
    shared: int
    block: int
    cache: int
    bandwidth: float
    clock: float


# The T4 uses PCI Express 3.0 with 16 lanes; for NVLink, half of the bidirectional bandwidth.
GPUS = {
    "t4": Gpu((7, 5), 15_843_721_216, 65e12, 15.75e9, 40, 64, 1024, 64, 64, 4, 320e9, 1.59),
    "a100": Gpu((8, 0), 85_097_971_712, 312e12, 300e9, 108, 64, 2048, 164, 163, 40, 2039e9, 1.41),
    "h100": Gpu((9, 0), 84_929_347_584, 989e12, 450e9, 132, 128, 2048, 228, 227, 50, 3350e9, 1.98),
    "h200": Gpu((9, 0), 150_109_880_320, 989e12, 450e9, 132, 128, 2048, 228, 227, 50, 4800e9, 1.98),
}
NAME = rf"({'|'.join(GPUS)}):([1-9]\d*)x([1-9]\d*)"
EXAMPLES = "a100:1x8, h100:32x8"

TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  core_count: {gpu.cores}  fpus_per_core: {gpu.lanes}  clock_rate_ghz: {gpu.clock}
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: {gpu.threads}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_core: {shared}  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {block}  l2_cache_size: {cache}
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  device_memory_size: {gpu.memory}  memory_bandwidth: {gpu.bandwidth:.0f}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 }}
device_description_str: "{name}"
"""


def is_name(topology: str) -> bool:
    """Whether the topology is of GPUs."""
    return topology.partition(":")[0] in GPUS


def hosts(topology: str) -> int:
    """Number of hosts of a topology; 0 if its name is malformed."""
    match = re.fullmatch(NAME, topology)
    return int(match[2]) if match else 0


class Topology:
    """Hosts with GPUs.

    Args:
        name: GPU, hosts, and GPUs of each host: `"h100:32x8"`.
        network: Bytes/s that a host sends to the others; ignored for one host.

    Attributes:
        name: As given.
        chip: The `Gpu`; its interconnect is the bandwidth of a ring through all hosts.
        num_chips: Number of GPUs.
        devices: JAX's devices, one per GPU.

    Raises:
        ValueError: if the name is malformed or the GPU unknown.
        ImportError: without JAX or its CUDA plug-in.
    """

    device = "GPU"

    def __init__(self, name: str, network: float | None = None):
        match = re.fullmatch(NAME, name)
        if match is None:
            raise ValueError(f"topology must be GPU:hostsxGPUs, like {EXAMPLES}; got {name!r}.")
        kind, shape = match[1], f"1x{match[2]}x{match[3]}"
        gpu = GPUS[kind]
        # In a ring through all hosts, one GPU of each sends to the next host.
        sent = gpu.interconnect
        if network is not None and hosts(name) > 1:
            sent = min(sent, network)
        self.chip = dataclasses.replace(gpu, interconnect=sent)
        bytes_of = {"shared": gpu.shared << 10, "block": gpu.block << 10, "cache": gpu.cache << 20}
        described = {"target_config": TARGET.format(gpu=gpu, name=kind, **bytes_of)}
        found = _jax_topologies().get_topology_desc(platform="cuda", topology=shape, **described)
        self.devices = found.devices
        self.name, self.num_chips, self.num_cores = name, len(self.devices), len(self.devices)

    def __str__(self):
        return f"{self.name}: {self.num_chips:,} GPUs of {self.chip.memory / 2**30:.1f} GiB"


def compile_lowered(topology: Topology, lowered: Any) -> programs.Compiled:
    """Compiles a program that `jax.jit` has lowered for the devices of a topology.

    Raises:
        programs.DoesNotFit: the program needs more memory than a GPU has.
    """
    compiled = lowered.compile()
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    found = programs.summary(memory, costs, compiled.as_text(), None, topology.num_cores)
    if found.memory > topology.chip.memory:  # the compiler accepts it
        raise programs.DoesNotFit("The program does not fit into memory.", found.memory)
    return found


def _jax_topologies():
    # JAX would look for this machine's devices, and its plug-in for the libraries of CUDA.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    missing = "jax" if importlib.util.find_spec("jax") is None else None
    if not missing and not _has_plugin():
        missing = "JAX's CUDA plug-in"
    if missing:
        raise ImportError(
            f"The compiler for GPUs needs {missing}, not installed here: pip install "
            "jax-cuda13-plugin, in JAX's version. No GPU or CUDA is needed."
        )
    from jax.experimental import topologies

    return topologies


def _has_plugin():
    names = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
    has_plugins = importlib.util.find_spec("jax_plugins") is not None
    return has_plugins and any(importlib.util.find_spec(name) is not None for name in names)
