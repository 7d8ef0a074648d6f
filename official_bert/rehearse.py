r"""Rehearses a run for a slice of a Cloud TPU pod, or for GPUs, on a machine without either.

    lamb-bert rehearse --topology=v3:32x32 --price_per_chip_hour=1.0 \
        --recipe=bert_large_mixed_batch --bert_config_file=bert_config.json --dtype=bf16

It takes the flags of `run_pretraining`, and lists those without effect here. For each stage, the
real TPU compiler compiles the step that `TPUStrategy` would run on each core, from the forward pass
to LAMB; or with --engine=jax, the step of the JAX engine on the slice. The report states whether it
compiles, its memory, and its reductions over the cores. Times are the sum of the compiler's
estimates; hours and cost are derived from them, so they are estimates too. Nothing is trained, and
no records are read: the rows are those of sentence pairs, not packed ones.

For GPUs (--engine=jax --topology=h100:32x8 --host_network_gbits=3200) the report has neither hours
nor cost, because the compiler does not estimate them.

Needs the extra `[rehearse]`, for GPUs jax-cuda13-plugin. A 24-layer model takes minutes and
gigabytes per stage.
"""

import concurrent.futures.process
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from official_bert import stacking
from official_bert.commands import commands, pretraining_settings
from official_bert.commands.arguments import apply, idle
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.rehearsal import gpu_compiler, programs
from official_bert.rehearsal.programs import Compiled
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system import (
    child_commands,
    local_paths,
    messages,
    quiet_tensorflow,
    whole_files,
)
from official_bert.system.settings import documented, like, names_like, setting
from official_bert.training import flops

if TYPE_CHECKING:
    from official_bert.rehearsal import tpu_compiler

Topology: TypeAlias = "tpu_compiler.Topology | gpu_compiler.Topology"


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearse(Pretrain):
    """The settings of the command, including those of the run to rehearse."""

    input_files: tuple[str, ...] = like(
        Run, "input_files", ("(not read)",), more="Comma-separated."
    )
    topology: str = setting(
        "Devices to compile for. TPUs: generation and number of chips along each axis of the "
        "slice, such as v3:32x32, v4:8x8x16 or v5e:16x16. GPUs, with --engine=jax: t4, a100, h100 "
        "or h200, number of hosts and GPUs per host, such as h100:32x8."
    )
    host_network_gbits: float | None = setting(
        "Network bandwidth of a GPU host over all its interfaces, in Gbit/s. Needed for several "
        "GPU hosts.",
        None,
        minimum=0.001,
    )
    price_per_chip_hour: float | None = setting(
        "Price of one TPU chip per hour, in any currency. Default: no cost in the report.",
        None,
        minimum=0,
    )
    report_file: str | None = setting(
        "JSON file for the report, which is also printed. Default: no file.", None
    )


def _of_gpus(args):
    return gpu_compiler.is_name(args.topology)


def _one_host(args):
    return gpu_compiler.hosts(args.topology) <= 1


RULES = (
    idle(
        (
            *("input_files", "masked_lm_prob", "do_whole_word_mask", "max_ngram_size", "seed"),
            *("init_moments", "model_dir", "resume_from", "enable_xla", "minutes"),
            *("train_summary_interval", *names_like(LoopOptions, Pretrain)),
            *("distribution_strategy", "num_gpus", "all_reduce_alg", "tpu", "worker_hosts"),
            *("task_index", "local_workers"),
        ),
        lambda args: True,
        "in a rehearsal, which compiles a step for --topology and trains nothing.",
    ),
    idle(
        ["host_network_gbits"],
        _one_host,
        "with --topology={topology}; it applies to several GPU hosts only.",
    ),
    idle(
        ["price_per_chip_hour"],
        _of_gpus,
        "with --topology={topology}: hours are estimated for TPUs only.",
    ),
)


def main(args: Rehearse) -> int:
    """Rehearses a run; returns the exit code, 1 if a stage does not fit."""
    _check_report_file(args)
    args = pretraining_settings.check(apply(args, RULES))
    network = _network(args)
    os.environ["KERAS_BACKEND"] = args.engine  # JAX needs no TensorFlow
    try:
        from official_bert import run_pretraining

        compiler = compiler_for(args.topology)
        run = run_pretraining.run_from_flags(args)
        topology = compiler.Topology(args.topology, **network)
        compile_stage = compiled_by_tensorflow
        if args.engine == "jax":
            compile_stage = functools.partial(compiled_by_jax, args.shard_optimizer)
        report = rehearse(run, topology, args.price_per_chip_hour, compile_stage=compile_stage)
    except concurrent.futures.process.BrokenProcessPool:
        raise messages.Failed(
            "the compiler process was killed, probably because memory ran out. Free some memory, "
            "or rehearse a smaller batch per device."
        ) from None
    except ImportError as error:
        raise messages.Failed(error) from error
    if args.report_file:
        whole_files.write_text(args.report_file, json.dumps(report, indent=1) + "\n")
    return 0 if report["fits"] else 1


def compiler_for(topology: str) -> ModuleType:
    """The module that compiles for a topology of this name.

    Raises:
        ImportError: a package that it needs is missing.
    """
    if gpu_compiler.is_name(topology):
        return gpu_compiler
    quiet_tensorflow.import_tensorflow()
    from official_bert.rehearsal import tpu_compiler

    return tpu_compiler


def _network(args):
    """The network between GPU hosts; refuses settings that do not fit the topology."""
    name, gbits = args.topology, args.host_network_gbits
    if not _of_gpus(args):
        return {}
    if args.engine != "jax":
        raise ValueError(f"--engine must be jax for --topology={name}; got {args.engine!r}.")
    if gbits is None and not _one_host(args):
        raise ValueError(
            f"--host_network_gbits is required for several hosts; got --topology={name}. Give each "
            "host's bandwidth to the others, in Gbit/s."
        )
    return {"network": gbits and gbits * 1e9 / 8}


def _check_report_file(args):
    """Refuses a report that cannot be written, or would overwrite an input."""
    if not args.report_file:
        return
    read = {
        "bert_config_file": [args.bert_config_file or ""],
        "recipe": [str(args.recipe).partition(":")[0]],
        "init_checkpoint": [f"{args.init_checkpoint}.index"],
    }
    local_paths.require_local(report_file=args.report_file)
    local_paths.require_file_name(report_file=args.report_file)
    local_paths.require_apart({"report_file": [args.report_file]}, read)
    folder = os.path.dirname(args.report_file) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ValueError(f"--report_file must be in a folder that can be written to; got {folder}.")


def compiled_by_tensorflow(run: Run, stage: Stage, topology: Topology) -> Compiled:
    """Compiles the step that `TPUStrategy` would run on each core."""
    from official_bert.rehearsal import tpu_compiler

    lower = tpu_compiler.lower_stage
    module = _in_child(lower, run, stage, topology.num_cores, backend="tensorflow")
    return _in_child(_compile, topology.name, module, backend="tensorflow")


def compiled_by_jax(shards_optimizer: bool, run: Run, stage: Stage, topology: Topology) -> Compiled:
    """Compiles the step of the JAX engine on the whole slice."""
    return _in_child(_compile_jax, run, stage, topology.name, shards_optimizer, backend="jax")


def rehearse(
    run: Run,
    topology: Topology,
    price_per_chip_hour: float | None = None,
    log: Callable[[str], object] = print,
    compile_stage: Callable[[Run, Stage, Topology], Compiled] = compiled_by_tensorflow,
) -> dict:
    """Compiles the step of every stage of a run, with smaller micro-batches if need be.

    Args:
        price_per_chip_hour: In any currency.
        log: Called with each line of the report.

    Returns:
        The report as JSON values: `fits`, whether every stage fits with the run's own settings;
        `gradient_accumulation_steps`, the first number with which all stages fit, or `None`; and
        the figures of each stage with that number.

    Raises:
        ValueError: if a stage's batch is not divisible by the cores, or the model does not fit the
            stages (`stacking.check`).
    """
    sequences = [_sequences_a_core(run, stage, topology) for stage in run.stages]
    stacking.check(run.config, run.stages)
    device = topology.device
    log(f"{topology}. All times and costs are estimates: nothing runs on a TPU or GPU here.")
    report: dict[str, Any] = {
        "topology": topology.name,
        "chips": topology.num_chips,
        "cores": topology.num_cores,
        "core_memory_bytes": topology.chip.memory,
        "fits": True,
    }
    # The stage with the most tokens first: it is the most likely not to fit.
    order = sorted(range(len(run.stages)), key=lambda i: -run.stages[i].tokens)
    parts, found = run.gradient_accumulation_steps, {}
    while parts and len(found) < len(order):
        tried = dataclasses.replace(run, gradient_accumulation_steps=parts)
        index = order[len(found)]
        try:
            found[index] = _rehearse_stage(tried, index, topology, log, compile_stage)
        except programs.DoesNotFit as error:
            report["fits"], found = False, {}
            needed = "more memory" if error.needed is None else _gib(error.needed)
            log(
                f"  does not fit: micro-batches of {sequences[index] // parts} sequences per "
                f"{device} need {needed}; a {device} has {_gib(topology.chip.memory)}"
            )
            parts = _next_parts(run, index, topology, parts, error.needed)
            if parts:
                log(f"  trying --gradient_accumulation_steps={parts} for the run")
    report |= {
        "gradient_accumulation_steps": parts,
        "stages": [found[index] for index in sorted(found)],
        "estimated_hours": None,
        "estimated_cost": None,
    }
    if parts is None:
        log("No micro-batch fits: use a smaller model, or chips with more memory.")
        return report
    if all(stage["estimated_hours"] is not None for stage in report["stages"]):
        hours = report["estimated_hours"] = sum(s["estimated_hours"] for s in report["stages"])
        chip_hours = hours * topology.num_chips
        line = f"the run: {_duration(hours)}, {chip_hours:,.1f} chip-hours"
        if price_per_chip_hour is not None:
            report["estimated_cost"] = chip_hours * price_per_chip_hour
            line += f", {report['estimated_cost']:,.2f} at {price_per_chip_hour:g} per chip-hour"
        log(f"{line} (estimates, without input, evaluation, checkpoints and compilation)")
    if not report["fits"]:
        log(f"It needs --gradient_accumulation_steps={parts}.")
    return report


def _rehearse_stage(run, index, topology, log, compile_stage):
    """Figures of the step of one stage; raises `programs.DoesNotFit`."""
    stage, parts, chip = run.stages[index], run.gradient_accumulation_steps, topology.chip
    device, freeze = topology.device, run.optimizer.freeze
    sequences = _sequences_a_core(run, stage, topology)
    log(f"stage {index + 1}: {flops.describe(run.config, stage, freeze)}; {run.dtype}")
    started = time.monotonic()
    compiled = compile_stage(run, stage, topology)
    took = time.monotonic() - started
    ring = 2 * (topology.num_chips - 1) / topology.num_chips
    reducing = ring * compiled.reduced_bytes / chip.interconnect
    model_flops = flops.step_flops(run.config, stage, freeze)
    at_peak = model_flops / topology.num_cores / chip.flops
    log(
        f"  compiled in {took:.0f} s with micro-batches of {sequences // parts} sequences per "
        f"{device}, {parts} per step\n"
        f"  memory per {device}: {_gib(compiled.memory)} of {_gib(chip.memory)}\n"
        f"  per step: {model_flops / 1e12:,.4g} TFLOP of the model; "
        f"{compiled.reductions} all-reduces of {compiled.reduced_bytes / 1e6:,.4g} MB in total"
    )
    computing = share = hours = None
    if compiled.seconds is None or compiled.loop_seconds is None:
        log(
            f"  estimate per step: {1e3 * reducing:,.1f} ms of all-reduces; the computation "
            f"takes {1e3 * at_peak:,.1f} ms at the {device}s' peak, and longer in any run"
        )
    else:
        computing = compiled.seconds + (parts - 1) * compiled.loop_seconds
        share = at_peak / (computing + reducing)
        hours = (computing + reducing) * stage.steps / 3600
        log(
            f"  estimate per step: {1e3 * computing:,.1f} ms of computation, without "
            f"{compiled.unestimated} kernels (gathers, scatters, …) that the compiler does not "
            f"estimate; {1e3 * reducing:,.1f} ms of all-reduces; {share:.0%} of the {device}s' "
            f"peak\n  estimate of the stage: {_duration(hours)}"
        )
    return {
        "steps": stage.steps,
        "batch_size": stage.batch_size,
        "max_seq_length": stage.max_seq_length,
        "micro_batch_a_core": sequences // parts,
        "compile_seconds": took,
        "memory_bytes": compiled.memory,
        "argument_bytes": compiled.argument_bytes,
        "model_flops": model_flops,
        # XLA counts one iteration of a loop, and so only some of the micro-batches.
        "compiled_flops_a_core": compiled.flops if parts == 1 else None,
        "reductions": compiled.reductions,
        "reductions_in_loops": compiled.reductions_in_loops,
        "reduced_bytes": compiled.reduced_bytes,
        "kernels_without_estimate": compiled.unestimated,
        "computing_seconds_at_peak": at_peak,
        "estimated_computing_seconds": computing,
        "estimated_reducing_seconds": reducing,
        "estimated_share_of_peak": share,
        "estimated_hours": hours,
    }


def _in_child(function, *arguments, backend):
    """Calls a function in its own process, whose end frees gigabytes of weights and compiler."""
    # One heap instead of one per thread: half the memory for the compiler.
    heaps = os.environ.get("MALLOC_ARENA_MAX", "1")
    context = multiprocessing.get_context("spawn")
    with (
        quiet_tensorflow.environment(MALLOC_ARENA_MAX=heaps, KERAS_BACKEND=backend),
        concurrent.futures.ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin_child
        ) as executor,
    ):
        return executor.submit(function, *arguments).result()


def _begin_child():
    child_commands.end_with_parent(signal.SIGKILL)  # the compiler reacts to nothing else
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        quiet_tensorflow.import_tensorflow()


def _compile(topology, module):
    from official_bert.rehearsal import tpu_compiler

    return tpu_compiler.compile_for(tpu_compiler.Topology(topology), module)


def _compile_jax(run, stage, topology, shards_optimizer):
    from official_bert.data.input_pipeline import batch_spec
    from official_bert.engines import jax_update
    from official_bert.engines.jax_placement import Placement
    from official_bert.training.stage_model import make_model_and_optimizer

    compiler = compiler_for(topology)
    topology = compiler.Topology(topology)
    model, optimizer = make_model_and_optimizer(run, stage)
    placement = Placement(topology.devices, shards_optimizer)
    batch = batch_spec(stage.batch_size, *stage.lengths)
    lowered = jax_update.lower(run, model, optimizer, placement, batch)
    return compiler.compile_lowered(topology, lowered)


def _next_parts(run, index, topology, parts, needed):
    """The next number of micro-batches to try after `parts`, or `None` after the last.

    Assumes a fixed memory for weights, moments and gradients, and the rest in proportion to the
    micro-batch. The number must divide every stage's sequences per core.
    """
    stage = run.stages[index]
    fewest = parts + 1
    if needed is not None:
        fixed = 4 * flops.reduced_bytes(run.config, stage, run.optimizer.freeze)
        room = max(topology.chip.memory - fixed, 1)
        fewest = max(fewest, math.ceil(parts * (needed - fixed) / room))
    most = math.gcd(*(stage.batch_size // topology.num_cores for stage in run.stages))
    choices = [n for n in range(parts + 1, most + 1) if most % n == 0]
    # If none suffices by this estimate, the last is still tried.
    return next((n for n in choices if n >= fewest), choices[-1] if choices else None)


def _sequences_a_core(run, stage, topology):
    parts = run.gradient_accumulation_steps
    if stage.batch_size % (topology.num_cores * parts):
        raise ValueError(
            f"train_batch_size must be a multiple of {topology.num_cores * parts:,}, the "
            f"{topology.num_cores:,} {topology.device}s of {topology.name} times "
            f"gradient_accumulation_steps={parts}; got {stage.batch_size:,}."
        )
    return stage.batch_size // topology.num_cores


def _gib(size):
    return f"{size / 2**30:.2f} GiB"


def _duration(hours):
    return f"{60 * hours:.1f} min" if hours < 2 else f"{hours:,.1f} h"


if __name__ == "__main__":
    commands.run(main, Rehearse)
