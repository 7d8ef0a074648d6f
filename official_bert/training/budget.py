"""A wall-clock budget: how many updates of a run fit into a number of minutes on this machine.

The number decides the weights, so it is fixed before the first update and belongs to the `Run`:
from then on the run is one of a given number of updates. `run.json` keeps it, and a run that is
resumed takes it from there, however fast the machine is then.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_bert.engines.loop_state import first_state
from official_bert.system.places import AnyPath, place
from official_bert.training import evaluation, model_directory
from official_bert.training.run_records import RunRecords
from official_bert.training.stage_model import make_model_and_optimizer

if TYPE_CHECKING:
    from official_bert.engines.engine import Engine
    from official_bert.stages import LoopOptions, Run, Stage

MEASURED_SECONDS, MEASURED_SHARE = 4.0, 0.02  # of each stage; at most this share of the budget
MIN_UPDATES = 8


def fix(
    run: "Run",
    options: "LoopOptions",
    engine: "Engine",
    model_dir: AnyPath,
    say: Callable[[str], object] = print,
) -> "Run":
    """The run with as many updates as fit into its `minutes`.

    A run that has begun in `model_dir` keeps its number of updates. A new one is measured: some
    updates of each stage, on a model that is thrown away, and one evaluation. The minutes count
    from the call of this function; saving checkpoints is not measured.

    Args:
        run: A `stages.Run` with `minutes`; the updates of its stages are proportions.
        options: A `stages.LoopOptions`.
        engine: Where the model will live.
        model_dir: The run's model directory.
        say: Takes a line about what was found.

    Raises:
        ValueError: if the budget is too small for one update of each stage, or `run.json` is
            damaged.
    """
    started = time.monotonic()
    begun = model_directory.describes(place(model_dir))
    if begun:
        return _with_updates_of(run, begun["stages"])
    costs = [_costs(run, options, engine, stage) for stage in run.stages]
    # One number on all workers: the slowest says how long an update takes.
    each = [seconds for cost in costs for seconds in cost]
    slowest = engine.from_all_workers([time.monotonic() - started, *each])
    spent, *each = slowest.max(axis=0).tolist()
    updates, ends = each[::2], each[1::2]
    stages = fitted(run.stages, updates, 60 * (run.minutes or 0.0) - spent - sum(ends))
    if engine.is_chief:
        counts = ", ".join(
            f"{stage.steps} × {1000 * seconds:.0f} ms"
            for stage, seconds in zip(stages, updates, strict=True)
        )
        say(f"budget of {run.minutes:g} minutes, measured in {spent:.0f} s: updates {counts}")
    return dataclasses.replace(run, stages=stages)


def fitted(
    stages: "Sequence[Stage]", seconds: Sequence[float], available: float
) -> "tuple[Stage, ...]":
    """The stages with more or fewer updates, in the same proportions, to fill a time.

    Args:
        stages: `stages.Stage`s.
        seconds: What an update of each takes.
        available: Seconds for all of them.

    Returns:
        The stages; the warm-up is the same share of each as before.

    Raises:
        ValueError: if that is less than one update of each stage.
    """
    planned = sum(stage.steps * each for stage, each in zip(stages, seconds, strict=True))
    factor = available / planned
    steps = [int(factor * stage.steps) for stage in stages]
    if min(steps) < 1:
        raise ValueError(
            f"The budget is too small: {available:.0f} s are left for updates, and one update "
            f"takes {', '.join(f'{each:.2f}' for each in seconds)} s in the {len(stages)} stages "
            "of this recipe; give more minutes."
        )
    return tuple(
        dataclasses.replace(
            stage, steps=count, warmup_steps=round(stage.warmup_steps * count / stage.steps)
        )
        for stage, count in zip(stages, steps, strict=True)
    )


def seconds_of_a_call(
    work: Callable[[int], object],
    from_all_workers: Callable[[Sequence[float]], np.ndarray],
    seconds: float,
    calls: int,
) -> float:
    """How long a call takes that needs all workers: each makes the same number of calls.

    If each went by its own clock, one would wait for ever in a call that the others leave out.

    Args:
        work: Takes the number of the call, from 0.
        from_all_workers: An engine's.
        seconds: For so long at least, by the clock of every worker.
        calls: So many at least.
    """
    from_all_workers([0.0])  # what it takes to begin is not measured
    started, done = time.monotonic(), 0
    while done < calls or from_all_workers([time.monotonic() - started]).min() < seconds:
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


def _costs(run, options, engine, stage):
    """Seconds per update of a stage, with its share of the evaluations; and at the stage's end."""
    records = RunRecords(run, options, engine.shard)
    with engine.scope():
        model, optimizer = make_model_and_optimizer(run, stage)
    loop = engine.training_loop(run, model, optimizer)
    steps = options.steps_per_loop
    batches = engine.feed(lambda *shard: records.training(stage, *shard), range(10**9))
    state = first_state(run)
    first = time.monotonic()
    state = loop(batches, 0, steps, state)  # traces and compiles, as the run itself will
    compiled = time.monotonic()
    a_call = seconds_of_a_call(
        lambda call: loop(batches, steps * (1 + call), steps, state),
        engine.from_all_workers,
        seconds=min(MEASURED_SECONDS, 60 * run.minutes * MEASURED_SHARE),
        calls=math.ceil(MIN_UPDATES / steps),
    )
    an_update = a_call / steps
    at_the_end = max(0.0, compiled - first - a_call)
    if options.eval_files:
        evaluate = evaluation.Evaluator(run.task, model, engine)
        started = time.monotonic()
        evaluate(lambda *shard: records.held_out(stage, *shard))
        seconds = time.monotonic() - started
        at_the_end += seconds
        an_update += seconds / options.eval_steps if options.eval_steps else 0.0
    return an_update, at_the_end
