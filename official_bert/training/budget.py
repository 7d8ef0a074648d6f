"""A wall-clock budget: the number of updates of a run in a number of minutes on this machine.

The number decides the weights, so it is fixed before the first update and belongs to the `Run`:
from then on the run is one of a given number of updates. `run.json` keeps it, and a run that is
resumed takes it from there, however fast the machine is then.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from official_bert.engines.loop_state import first_state
from official_bert.stages import MAX_STEPS
from official_bert.system.places import AnyPath, as_path
from official_bert.training import checkpoints, flops, model_directory, model_state, run_checks
from official_bert.training.run_checks import RunRecords
from official_bert.training.stage_model import make_model_and_optimizer

if TYPE_CHECKING:
    from official_bert.protocols import Engine
    from official_bert.stages import LoopOptions, Run, Stage

MEASURED_SHARE = 0.1  # maximum share of the budget; the remaining stages are estimated
MEASURED_SECONDS = 4.0  # of a stage's updates, at most
# Maximum seconds of a call of several updates; its start is short in comparison.
MEASURED_CALL = 1.0
MEASURED_BATCHES = 8  # held-out ones of a stage, at most

show = functools.partial(print, flush=True)


class Cost(NamedTuple):
    """The cost of a stage, in seconds."""

    update: float
    evaluation: float  # of all held-out records
    once: float  # to trace and compile


def fix(
    run: "Run",
    options: "LoopOptions",
    engine: "Engine",
    model_dir: AnyPath,
    resume_from: int | None = None,
    log: Callable[[str], object] = show,
) -> "Run":
    """The run with the number of updates that fits into its `minutes`.

    A run that has begun in `model_dir` keeps its number of updates. A new one is measured, when all
    has been checked that the loop will check: some updates and held-out batches of each stage, on a
    model that is thrown away. That takes at most a tenth of the minutes, but for a first update,
    which is always made. Stages that are not reached by then are estimated from their FLOPs. The
    minutes count from the call of this function; saving checkpoints is not measured.

    Args:
        run: A `stages.Run` with `minutes`; the updates of its stages are proportions.
        resume_from: As of `trainer.Trainer`.
        log: Prints a line for each measurement.

    Raises:
        ValueError: if the budget is too small for one update of each stage or too large to count
            them, `run.json` is damaged, or as `trainer.Trainer`.
        OSError: as `trainer.Trainer`.
    """
    started = time.monotonic()
    begun = model_directory.read_run_json(as_path(model_dir))
    if begun:
        return _with_updates_of(run, begun["stages"])
    log = log if engine.is_chief else lambda line: None
    seconds = 60 * (run.minutes or 0.0)
    records = RunRecords(run, options, engine.shard)
    _check(run, options, engine, records, model_dir, resume_from)
    costs = _measured(run, options, engine, records, started + MEASURED_SHARE * seconds, log)
    every = options.eval_steps or math.inf
    updates = [cost.update + cost.evaluation / every for cost in costs]
    spent = _slowest(engine, time.monotonic() - started)
    once = sum(cost.once for cost in costs)
    evaluations = sum(cost.evaluation for cost in costs)  # at the ends of the stages
    _require_room(run, updates, spent, once, evaluations)
    stages = fitted(run.stages, updates, seconds - spent - once - evaluations)
    counts = ", ".join(
        f"{stage.steps} × {1000 * each:.0f} ms" for stage, each in zip(stages, updates, strict=True)
    )
    log(f"budget of {run.minutes:g} minutes: steps {counts}; measuring took {spent:.0f} s")
    return dataclasses.replace(run, stages=stages)


def fitted(
    stages: "Sequence[Stage]", seconds: Sequence[float], available: float
) -> "tuple[Stage, ...]":
    """The stages with more or fewer updates, in the same proportions, to fill a time.

    Args:
        stages: `stages.Stage`s.
        seconds: Duration of a step of each.
        available: Seconds for all of them.

    Returns:
        The stages; the warm-up is the same share of each as before.
    """
    planned = sum(stage.steps * each for stage, each in zip(stages, seconds, strict=True))
    steps = [max(1, int(available / planned * stage.steps)) for stage in stages]
    return tuple(
        dataclasses.replace(
            stage, steps=count, warmup_steps=round(stage.warmup_steps * count / stage.steps)
        )
        for stage, count in zip(stages, steps, strict=True)
    )


def seconds_of_a_call(
    work: Callable[[int], object],
    all_gather: Callable[[Sequence[float]], np.ndarray],
    seconds: float,
    calls: int,
) -> float:
    """How long a call takes that needs all workers: each makes the same number of calls.

    If each went by its own clock, one would wait forever in a call that the others leave out.

    Args:
        work: Takes the number of the call, from 0.
        seconds: Minimum duration, by the clock of every worker.
        calls: Minimum number.
    """
    all_gather([0.0])  # the start is not measured
    started, done = time.monotonic(), 0
    while done < calls or all_gather([time.monotonic() - started]).min() < seconds:
        work(done)
        done += 1
    return (time.monotonic() - started) / done


def _with_updates_of(run, described):
    """The run with the updates of one in `run.json`, as far as the stages pair up."""
    if len(described) != len(run.stages):
        return run  # which is then refused as another run
    fixed = [
        dataclasses.replace(stage, steps=old["steps"], warmup_steps=old["warmup_steps"])
        for stage, old in zip(run.stages, described, strict=True)
    ]
    return dataclasses.replace(run, stages=tuple(fixed))


def _require_room(run, updates, spent, once, evaluations):
    """Refuses a budget without room for one update of each stage, or with room for too many."""
    available = 60 * (run.minutes or 0.0) - spent - once - evaluations
    planned = sum(stage.steps * each for stage, each in zip(run.stages, updates, strict=True))
    lacking = planned / min(stage.steps for stage in run.stages) - available
    if lacking > 0:
        least = math.ceil(10 * (run.minutes or 0.0) + lacking / 6) / 10
        raise ValueError(
            f"minutes must be at least {least:.1f} for one step of every stage; got "
            f"{run.minutes:g}. Measuring took {spent:.0f} s; compiling will take {once:.0f} s, "
            f"evaluation {evaluations:.0f} s, one step "
            f"{', '.join(f'{each:.2f}' for each in updates)} s. Give more minutes"
            + (", or fewer records in eval_files." if evaluations > spent + once else ".")
        )
    longest = MAX_STEPS * planned / max(stage.steps for stage in run.stages)
    if available >= longest:
        most = math.floor((longest + spent + once + evaluations) / 60)
        raise ValueError(
            f"minutes must be at most {most:,}, for {MAX_STEPS:,} steps of a stage; got "
            f"{run.minutes:,.0f}. Give fewer."
        )


def _check(run, options, engine, records, model_dir, resume_from):
    """Runs the loop's checks, except those that depend on the number of steps."""
    run_checks.claim(
        run,
        dataclasses.replace(options, profile_steps=None),
        engine,
        records,
        as_path(model_dir),
        resume_from,
    )
    checkpoints.CheckpointStore(model_dir)  # makes the directory
    fewest = dataclasses.replace(options, save_checkpoints_steps=0)
    with engine.scope():
        model, optimizer = make_model_and_optimizer(run, run.stages[0])
    run_checks.require_space(as_path(model_dir), run, fewest, optimizer)
    if run.init_checkpoint:
        of_optimizer = optimizer if run.init_moments else None
        model_state.load_weights(model, run.init_checkpoint, of_optimizer)


def _measured(run, options, engine, records, until, log):
    """The `Cost` of every stage: measured up to a time, the one with the most work first."""
    work = [flops.step_flops(run.config, stage, run.optimizer.freeze) for stage in run.stages]
    order = sorted(range(len(work)), key=lambda i: -run.stages[i].steps * work[i])
    costs, took = {}, 0.0
    for index in order:
        left = max(_left(engine, until), 0.0)
        if costs and took > left:
            break
        log(f"budget: measuring stage {index + 1} of {len(order)}, for at most {left:.0f} s")
        started = time.monotonic()
        share = left / (len(order) - len(costs))
        costs[index] = _cost(run, options, engine, records, run.stages[index], share)
        took = _slowest(engine, time.monotonic() - started)
    known = costs[order[0]]
    first = run.stages[order[0]]
    for index in order[len(costs) :]:
        log(f"budget: stage {index + 1} is estimated from its FLOPs")
        ratio = work[index] / work[order[0]]
        of_row = ratio * first.batch_size / run.stages[index].batch_size
        costs[index] = Cost(ratio * known.update, of_row * known.evaluation, known.once)
    return [costs[index] for index in range(len(order))]


def _cost(run, options, engine, records, stage, seconds):
    """The `Cost` of a stage, measured on a model of its own in about this many seconds."""
    until = time.monotonic() + seconds
    with engine.scope():
        model, optimizer = make_model_and_optimizer(run, stage)
    loop = engine.training_loop(run, model, optimizer)
    batches = engine.feed(lambda *shard: records.training(stage, *shard), range(10**9))
    first, update = _seconds_of_updates(loop, batches, run, options, engine, until)
    once = max(0.0, first - update)
    if not options.eval_files:
        return Cost(update, evaluation=0.0, once=once)
    count = records.held_out(stage, *engine.shard).num_batches
    if _left(engine, until) < 0:
        of_row = update / stage.batch_size / 3  # only forward: a third of the FLOPs
        return Cost(update, count * options.eval_batch_size * of_row, once)
    step = engine.evaluation_step(run.task, model)

    def begin():
        held_out = engine.feed(lambda *shard: records.held_out(stage, *shard), range(count))
        return held_out, np.asarray(step(held_out))

    _, traced = _timed(engine, begin)
    (held_out, _), opened = _timed(engine, begin)
    each = []
    while len(each) < min(count - 1, MEASURED_BATCHES) and (not each or _left(engine, until) > 0):
        each.append(_timed(engine, lambda: np.asarray(step(held_out)))[1])
    batch = sum(each) / len(each) if each else opened
    return Cost(update, opened + (count - 1) * batch, once + max(0.0, traced - opened))


def _seconds_of_updates(loop, batches, run, options, engine, until):
    """Seconds of the first step of a stage, and of a later one."""
    state, done = first_state(run), 0

    def train(steps):
        nonlocal done
        loop(batches, done, steps, state)
        done += steps

    def seconds_each(steps):
        # A part of the time that is left, for the evaluation needs some, too.
        seconds = min(MEASURED_SECONDS, _left(engine, until) / 4)
        call = seconds_of_a_call(lambda _: train(steps), engine.all_gather, seconds, calls=1)
        return _slowest(engine, call) / steps

    _, first = _timed(engine, lambda: train(1))  # traces and compiles, as the run itself will
    update = seconds_each(1)
    several = min(options.steps_per_loop, int(MEASURED_CALL / update))
    # In a call of several updates each takes less; some engines compile it again.
    if several > 1 and first + 4 * MEASURED_CALL < _left(engine, until):
        train(several)
        update = min(update, seconds_each(several))
    return first, update


def _timed(engine, work):
    started = time.monotonic()
    outcome = work()
    return outcome, _slowest(engine, time.monotonic() - started)


def _left(engine, until):
    return -_slowest(engine, time.monotonic() - until)


def _slowest(engine, seconds):
    """The largest of all workers' numbers, by which all of them decide the same."""
    return float(engine.all_gather([seconds]).max())
