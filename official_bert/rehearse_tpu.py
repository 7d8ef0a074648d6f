r"""Rehearses a run for a slice of a Cloud TPU pod, on a machine without a TPU.

    python -m official_bert.rehearse_tpu --topology=v3:32x32 --price_per_chip_hour=1.0 \
        --recipe=bert_large_mixed_batch --bert_config_file=bert_config.json --dtype=bf16

takes the flags of `run_pretraining`. The update that `TPUStrategy` would run on each core, from the
forward pass to LAMB, is compiled by the real TPU compiler, once for each stage: that it compiles,
what memory it needs and what it reduces over the cores is known then. Times are the compiler's
estimates, added up; hours and cost follow from them and are estimates as well. Nothing is trained.

Needs the extra `[rehearse]`. A 24-layer model takes some minutes and gigabytes a stage.
"""

import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time

from absl import app, flags

from official_bert import pretraining_flags, quiet_tensorflow, whole_files

FLAGS = flags.FLAGS


def define_flags():
    """Defines this command's flags, those of the run to rehearse among them."""
    pretraining_flags.define_flags()
    FLAGS.set_default("input_files", "(not read)")
    flags.DEFINE_string(
        "topology",
        None,
        "Generation and chips along each axis of the slice: v3:32x32, v4:8x8x16, v5e:16x16, …",
        required=True,
    )
    flags.DEFINE_float("price_per_chip_hour", None, "Price of one chip for an hour, in any money.")
    flags.DEFINE_string("report_file", None, "Where the report goes as JSON.")


def main(arguments):
    """Rehearses what the flags say; returns the exit code: 1 where a stage does not fit."""
    try:
        if len(arguments) > 1:
            raise ValueError(f"unexpected argument {arguments[1]!r}; flags begin with --")
        pretraining_flags.check(FLAGS)
        quiet_tensorflow.import_tensorflow()
        from official_bert import run_pretraining, tpu_compiler

        run = run_pretraining.run_from_flags(FLAGS)
        topology = tpu_compiler.Topology(FLAGS.topology)
        report = rehearse(run, topology, FLAGS.price_per_chip_hour)
    except (ValueError, OSError, ImportError) as error:
        print(f"rehearse_tpu: error: {error}", file=sys.stderr)
        return 2
    if FLAGS.report_file:
        whole_files.write_text(FLAGS.report_file, json.dumps(report, indent=1) + "\n")
    return 0 if all(stage["fits"] for stage in report["stages"]) else 1


def rehearse(run, topology, price_per_chip_hour=None, say=print):
    """Compiles the update of every stage of a run.

    Args:
        run: A `stages.Run`.
        topology: A `tpu_compiler.Topology`.
        price_per_chip_hour: In any money.
        say: Takes the report's lines as they become known.

    Returns:
        The report as JSON values: of each stage what `rehearse_stage` returns, and the estimates
        of hours and cost of the whole run.

    Raises:
        ValueError: if a stage's batch cannot be shared by the cores.
    """
    for stage in run.stages:
        _sequences_a_core(run, stage, topology)
    say(
        f"{topology.name}: {topology.num_chips:,} chips, {topology.num_cores:,} cores of "
        f"{topology.chip.memory / 2**30:.0f} GiB. All times and costs are estimates: nothing runs "
        "on a TPU here."
    )
    stages = []
    for index, stage in enumerate(run.stages):
        say(f"stage {index + 1}: {_describe(run, stage)}")
        stages.append(rehearse_stage(run, stage, topology, say))
    report = {
        "topology": topology.name,
        "chips": topology.num_chips,
        "cores": topology.num_cores,
        "stages": stages,
        "estimated_hours": None,
        "estimated_cost": None,
    }
    if all(stage["estimated_hours"] is not None for stage in stages):
        hours = report["estimated_hours"] = sum(stage["estimated_hours"] for stage in stages)
        line = f"the run: {_duration(hours)}, {hours * topology.num_chips:,.1f} chip-hours"
        if price_per_chip_hour is not None:
            cost = report["estimated_cost"] = hours * topology.num_chips * price_per_chip_hour
            line += f", {cost:,.2f} at {price_per_chip_hour:g} a chip-hour"
        say(f"{line} (estimates; input, evaluation, checkpoints and compiling left out)")
    parts = max(stage["gradient_accumulation_steps"] for stage in stages)
    if not all(stage["fits"] for stage in stages) and report["estimated_hours"] is not None:
        say(f"It needs --gradient_accumulation_steps={parts}.")
    return report


def rehearse_stage(run, stage, topology, say=print):
    """Compiles the update of one stage, if need be with the micro-batch that fits.

    Args:
        run, topology, say: As in `rehearse`.
        stage: One of the run's stages.

    Returns:
        A dictionary: `fits`, whether the update fits as the run has it; where it does not, the
        rest is about the largest micro-batch that was found to. `estimated_hours` is `None` where
        there is none.
    """
    from official_bert import flops, tpu_compiler

    chip, parts = topology.chip, run.gradient_accumulation_steps
    report = {
        "steps": stage.steps,
        "batch_size": stage.batch_size,
        "max_seq_length": stage.max_seq_length,
        "fits": True,
        "gradient_accumulation_steps": parts,
        "core_memory_bytes": chip.memory,
        "model_flops": flops.step_flops(run.config, stage),
        "estimated_hours": None,
    }
    while True:
        started = time.monotonic()
        try:
            tried = dataclasses.replace(run, gradient_accumulation_steps=parts)
            module = _in_child(_lower, tried, stage, topology.num_cores)
            compiled = _in_child(_compile, topology.name, module)
            break
        except tpu_compiler.DoesNotFit as error:
            micro_batch = _sequences_a_core(run, stage, topology) // parts
            needed = "more memory" if error.needed is None else _gib(error.needed)
            say(
                f"  does not fit: micro-batches of {micro_batch} sequences a core need {needed}; "
                f"a core has {_gib(chip.memory)}"
            )
            report["fits"] = False
            parts = _next_parts(run, stage, topology, parts, error.needed)
            if parts is None:
                say("  no micro-batch fits: take a smaller model, or chips with more memory")
                return report
            say(f"  trying --gradient_accumulation_steps={parts}")
    computing = compiled.seconds + (parts - 1) * compiled.loop_seconds
    ring = 2 * (topology.num_chips - 1) / topology.num_chips
    reducing = ring * compiled.reduced_bytes / chip.interconnect
    seconds = computing + reducing
    achieved = report["model_flops"] / seconds / topology.num_cores
    report |= {
        "gradient_accumulation_steps": parts,
        "micro_batch_a_core": _sequences_a_core(run, stage, topology) // parts,
        "compile_seconds": time.monotonic() - started,
        "memory_bytes": compiled.memory,
        "compiled_flops_a_core": compiled.flops,
        "reductions": compiled.reductions,
        "reductions_in_loops": compiled.reductions_in_loops,
        "reduced_bytes": compiled.reduced_bytes,
        "estimated_computing_seconds": computing,
        "estimated_reducing_seconds": reducing,
        "estimated_share_of_peak": achieved / chip.flops,
        "estimated_hours": seconds * stage.steps / 3600,
    }
    say(
        f"  compiles in {report['compile_seconds']:.0f} s with micro-batches of "
        f"{report['micro_batch_a_core']} sequences a core, {parts} an update\n"
        f"  memory a core: {_gib(compiled.memory)} of {_gib(chip.memory)}\n"
        f"  an update: {report['model_flops'] / 1e12:,.4g} TFLOP by the model; "
        f"{compiled.reductions} all-reduces of {compiled.reduced_bytes / 1e6:,.4g} MB in all\n"
        f"  estimate of an update: {1e3 * computing:,.1f} ms of computing, "
        f"{1e3 * reducing:,.1f} ms of reducing; "
        f"{report['estimated_share_of_peak']:.0%} of the cores' peak\n"
        f"  estimate of the stage: {_duration(report['estimated_hours'])}"
    )
    return report


def _in_child(function, *arguments):
    """Calls a function in a process of its own.

    Weights and moments take gigabytes, and so does the compiler; neither gives them back before
    its process ends.
    """
    # One heap instead of one for each thread: half the memory for the compiler.
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=spawn, initializer=quiet_tensorflow.import_tensorflow
    ) as executor:
        return executor.submit(function, *arguments).result()


def _compile(topology, module):
    from official_bert import tpu_compiler

    return tpu_compiler.compile_for(tpu_compiler.Topology(topology), module)


def _lower(run, stage, num_cores):
    """The update of one replica as StableHLO."""
    import tensorflow as tf

    from official_bert import pretraining_step, tpu_compiler

    strategy = tpu_compiler.ReplicaStrategy(num_cores)
    with strategy.scope():
        model, optimizer = pretraining_step.make_model_and_optimizer(run, stage)
    replica_update = pretraining_step.make_replica_update(run, model, optimizer)

    def update(batch, step, loss_scale, asked_to_stop):
        return strategy.run(replica_update, args=(batch, step, loss_scale, asked_to_stop))

    rows = stage.batch_size // num_cores
    tokens = tf.TensorSpec((rows, stage.max_seq_length), tf.int32)
    positions = tf.TensorSpec((rows, stage.max_predictions_per_seq), tf.int32)
    batch = {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tokens),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), positions),
        "masked_lm_weights": tf.TensorSpec(positions.shape, tf.float32),
        "next_sentence_labels": tf.TensorSpec((rows,), tf.int32),
        "example_weights": tf.TensorSpec((rows,), tf.float32),
    }
    number = tf.TensorSpec((), tf.float32)
    return tpu_compiler.lower(update, batch, tf.TensorSpec((), tf.int32), number, number)


def _next_parts(run, stage, topology, parts, needed):
    """The next number of micro-batches to try, or `None`.

    Takes the memory to be so much for weights, moments and gradients, and the rest in proportion
    to the micro-batch.
    """
    from official_bert import flops

    sequences = _sequences_a_core(run, stage, topology)
    fewest = parts + 1
    if needed is not None:
        fixed = 4 * flops.reduced_bytes(run.config, stage)
        room = max(topology.chip.memory - fixed, 1)
        fewest = max(fewest, math.ceil(parts * (needed - fixed) / room))
    choices = (n for n in range(fewest, sequences + 1) if sequences % n == 0)
    return next(choices, None)


def _sequences_a_core(run, stage, topology):
    parts = run.gradient_accumulation_steps
    if stage.batch_size % (topology.num_cores * parts):
        raise ValueError(
            f"{topology.name} has {topology.num_cores:,} cores: train_batch_size must be a "
            f"multiple of them times gradient_accumulation_steps={parts}; got {stage.batch_size:,}."
        )
    return stage.batch_size // topology.num_cores


def _describe(run, stage):
    from official_bert import flops

    return f"{flops.describe(run.config, stage)}; {run.dtype}"


def _gib(size):
    return f"{size / 2**30:.2f} GiB"


def _duration(hours):
    return f"{60 * hours:.1f} min" if hours < 2 else f"{hours:,.1f} h"


if __name__ == "__main__":
    define_flags()
    app.run(main)
