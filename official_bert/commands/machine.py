"""Engine, devices and workers of a command that trains: their flags, and how they start."""

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from official_bert.commands import commands
from official_bert.commands.arguments import Arguments, contradiction, idle
from official_bert.engines import local_workers
from official_bert.system import memory, messages, places, quiet_tensorflow
from official_bert.system.settings import documented, setting
from official_bert.training import model_directory

if TYPE_CHECKING:
    from official_bert.protocols import Engine

WORKER_LOST = 4  # exit code


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class OfEngine(Arguments):
    """The engine of a command that trains."""

    engine: str = setting(
        "Training engine; jax trains on a mesh over all devices of all processes, without "
        "TensorFlow. Each resumes the other's runs.",
        "tensorflow",
        choices=("tensorflow", "jax"),
    )

    def __post_init__(self):
        if self.engine == "torch":
            raise ValueError(
                "engine must be tensorflow or jax; got 'torch'. On torch, only the optimizers "
                "of lamb_tf run, with a Keras model of your own."
            )
        super().__post_init__()


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine(OfEngine):
    """Engine, devices and workers of a command that trains."""

    distribution_strategy: str = setting(
        "Devices to train on: off, one_device, mirrored, multi_worker_mirrored or tpu; case does "
        "not matter. With --engine=jax: multi_worker_mirrored or tpu for several processes; "
        "otherwise leave it out.",
        "mirrored",
    )
    num_gpus: int | None = setting(
        "Number of GPUs to use on this host; 0: train on the CPU. Default: 1 if there is one; with "
        "multi_worker_mirrored, all. Not valid with off and tpu.",
        None,
    )
    all_reduce_alg: str | None = setting(
        "All-reduce algorithm: nccl or hierarchical_copy with mirrored; nccl or ring with "
        "multi_worker_mirrored.",
        None,
    )
    tpu: str = setting(
        "Name or address of a Cloud TPU, or 'local' for this host's; for "
        "--distribution_strategy=tpu.",
        "",
    )
    worker_hosts: str | None = setting(
        "Workers for multi_worker_mirrored: host:port of each, comma-separated. Default: from "
        "TF_CONFIG or Slurm's variables.",
        None,
    )
    shard_optimizer: bool = setting(
        "With --engine=jax: shard the optimizer's state and arithmetic over the devices, to save "
        "memory. The weights are equal up to rounding.",
        False,
    )
    task_index: int = setting("Index of this worker in --worker_hosts, from 0.", -1)
    local_workers: int | None = setting(
        "Number of local worker processes, each with its share of the cores; to try out "
        "multi_worker_mirrored on one machine.",
        None,
        minimum=2,
    )

    def __post_init__(self):
        object.__setattr__(self, "distribution_strategy", self.distribution_strategy.lower())
        super().__post_init__()


def run(args: Machine, command: str, work: Callable[[], int]) -> int:
    """Does the work of a command with the engine's library imported, or in local workers.

    Args:
        args: The command's settings, checked.
        command: Its module, such as `"run_pretraining"`.
        work: Calls `make_engine`; returns the exit code.

    Raises:
        ValueError, OSError, messages.Failed: for the user.
    """
    if args.local_workers:
        arguments = commands.as_flags(args.without(["local_workers"]))
        arguments.append("--distribution_strategy=multi_worker_mirrored")
        choose_backend(args.engine)  # so that not every worker warns
        return local_workers.run(args.local_workers, f"official_bert.{command}", arguments)
    if args.distribution_strategy == "tpu" and args.tpu:
        quiet_tensorflow.prepare_tpu(args.tpu, os.environ)
    memory.tune_malloc()
    _import_library(args, command)  # takes seconds; all refusals come before
    with _errors_of_workers(args.engine, command):
        return work()


def make_engine(args: Machine) -> "Engine":
    """The engine of the flags, which waits for the other workers.

    Raises:
        ValueError: the flags contradict each other, or the devices are not there.
    """
    if args.engine == "jax":
        from official_bert.engines.jax_mesh import JaxMesh

        return JaxMesh(shards_optimizer=args.shard_optimizer)
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute

    strategy = make_strategy(
        args.distribution_strategy,
        num_gpus=args.num_gpus,
        tpu=args.tpu,
        worker_hosts=args.worker_hosts,
        task_index=args.task_index,
        all_reduce_alg=args.all_reduce_alg,
    )
    return TfDistribute(strategy)


def enable_xla(args: Machine, flag: bool | None, engine: "Engine", model_dir: str) -> bool:
    """Whether XLA compiles a run: the flag, by default whether devices are accelerators.

    With JAX, nothing depends on it, and a run that TensorFlow began keeps it.
    """
    if args.engine == "jax":
        begun = model_directory.read_run_json(places.as_path(model_dir)) or {}
        return bool(begun.get("enable_xla", engine.runs_on_accelerator()))
    return engine.runs_on_accelerator() if flag is None else flag


def fastest_dtype(engine: str, processor: str = "/proc/cpuinfo") -> str:
    """The data type in which this machine's processor trains fastest, as a value of `--dtype`.

    TensorFlow multiplies in bfloat16 where the processor has instructions for it, AVX512-BF16 or
    AMX: an update takes 0.6 to 0.8 of the time (`docs/throughput.md`). JAX is slower in bfloat16.

    Args:
        processor: Linux' description of the processor; elsewhere there is none.
    """
    try:
        with open(processor, encoding="utf-8", errors="replace") as description:
            instructions = set(re.findall(r"\w+", description.read()))
    except OSError:
        instructions = set()
    has_bf16 = instructions & {"avx512_bf16", "amx_bf16"}
    return "bf16" if has_bf16 and engine == "tensorflow" else "fp32"


def set_backend(engine: str) -> None:
    """Makes the engine's library the backend of Keras, before Keras is imported.

    Raises:
        ValueError: Keras is already imported with another one.
    """
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != engine:
        raise ValueError(
            "--engine must match the Keras backend of this process, "
            f"{sys.modules['keras'].backend.backend()}; got {engine}. Start the command in "
            "a process of its own."
        )
    choose_backend(engine)


def choose_backend(engine: str) -> None:
    """Names the engine's library in the environment; warns if that named another one."""
    given = os.environ.get("KERAS_BACKEND") or engine
    if given != engine:
        messages.warn(
            f"KERAS_BACKEND={given} has no effect, because the engine is {engine}. Unset it, or "
            "give another --engine where the command has one."
        )
    os.environ["KERAS_BACKEND"] = engine


def _import_library(args, command):
    """Imports the engine's library, in silence, and Keras with it as the backend."""
    set_backend(args.engine)
    if args.engine == "tensorflow":
        quiet_tensorflow.import_tensorflow()
        return
    from official_bert.engines import jax_processes

    messages.program = messages.program or command
    jax_processes.start(
        args.distribution_strategy if "distribution_strategy" in args.given else None,
        args.worker_hosts,
        args.task_index,
        os.environ,
        WORKER_LOST,
    )
    with quiet_tensorflow.blocked_imports("matplotlib"):
        import keras  # noqa: F401


@contextlib.contextmanager
def _errors_of_workers(engine: str, command: str) -> Iterator[None]:
    """Names the worker whose loss an error means; with JAX no error waits for other processes."""
    leaving: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if engine == "jax":
        from official_bert.engines.jax_processes import leaving_others_on_errors, lost_worker

        leaving = leaving_others_on_errors(messages.program or command)
    else:
        from official_bert.engines.strategies import lost_worker

    with leaving:
        try:
            yield
        except (ValueError, OSError, messages.Failed):
            raise
        except Exception as error:
            reason = lost_worker(error)
            if reason is None:
                raise
            raise messages.Failed(reason, WORKER_LOST) from error


def _by_jax(args):
    return args.engine == "jax"


# Rules about devices and hosts depend on the engine; further ones, on the devices that are there,
# are in `engines.strategies`.
RULES = (
    contradiction(
        ("worker_hosts", "task_index", "tpu"),
        lambda args: args.local_workers is not None,
        "--local_workers already sets this; leave these flags out.",
    ),
    contradiction(
        ["distribution_strategy"],
        lambda args: (
            args.local_workers is not None and args.distribution_strategy != "multi_worker_mirrored"
        ),
        "--local_workers already sets this; leave it out.",
    ),
    contradiction(
        ["shard_optimizer"],
        lambda args: args.shard_optimizer and not _by_jax(args),
        "only with --engine=jax; tf.distribute keeps the whole state on every replica.",
    ),
    contradiction(
        ["enable_xla"],
        lambda args: (
            args.enable_xla is False and (_by_jax(args) or args.distribution_strategy == "tpu")
        ),
        "JAX and TPUs always compile with XLA; leave it out.",
    ),
    idle(["enable_xla"], _by_jax, "with --engine=jax, where XLA compiles everything."),
    contradiction(
        ["distribution_strategy"],
        lambda args: _by_jax(args) and args.distribution_strategy in ("off", "one_device"),
        "--engine=jax trains on all devices of this machine, and of all machines with "
        "--distribution_strategy=multi_worker_mirrored or tpu; leave it out.",
    ),
    idle(
        ["distribution_strategy"],
        lambda args: _by_jax(args) and args.distribution_strategy == "mirrored",
        "with --engine=jax, which always trains on all devices of this machine.",
    ),
    contradiction(
        ["num_gpus"],
        _by_jax,
        "with --engine=jax, CUDA_VISIBLE_DEVICES names the GPUs, and JAX_PLATFORMS=cpu trains on "
        "the CPU.",
    ),
    idle(["all_reduce_alg"], _by_jax, "with --engine=jax, where the compiler chooses it."),
    contradiction(
        ["tpu"],
        _by_jax,
        "with --engine=jax, start the command on every host of the slice, with "
        "--distribution_strategy=tpu and without --tpu.",
    ),
    contradiction(
        ("worker_hosts", "task_index"),
        lambda args: _by_jax(args) and args.distribution_strategy == "tpu",
        "with --engine=jax and --distribution_strategy=tpu, JAX itself finds the hosts of the "
        "slice; leave these flags out.",
    ),
    idle(
        ["num_gpus"],
        lambda args: args.distribution_strategy == "tpu",
        "with --distribution_strategy=tpu, which trains on the TPU's cores.",
    ),
    idle(
        ["all_reduce_alg"],
        lambda args: args.distribution_strategy in ("off", "one_device", "tpu"),
        "with --distribution_strategy={distribution_strategy}; it is for several GPUs.",
    ),
)
