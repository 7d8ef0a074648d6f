"""Compares a run's gradient noise scale with its definition, and times the measurement.

    python benchmarks/noise_scale.py [--rounds=40]

On the demo's model and text, at weights that stay as they are (rate 0), before training and after
the demo's first 600 updates. By definition: the mean squared norms of gradients over 200 batches of
16 and over 200 of 128 sequences, from which tr(Σ) and |G|² follow (arXiv 1812.06162, A.2); the
error is that of the jackknife over tenths of the batches. Measured: by the loop in 200 updates of
batch 128 in micro-batches of 16, in other batches. Then the time of updates that measure it, in one
process with ones that do not, by turns; CPU seconds are those of all threads. Last, the run of
`claims/batch_scaling.py` with LAMB's best settings at batch 64, in micro-batches of 16.
"""

import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parent / "claims"))

import batch_scaling as study
import bert
import claim
import loop_overhead
import loops
import machine
import numpy as np
import tensorflow as tf
import trials

from lamb_tf import gradient_noise
from official_bert import demo
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.recipes import demo as recipe
from official_bert.stages import Optimizer

SMALL, BIG, BATCHES, UPDATES = 16, 128, 200, 600
STAGE = recipe().stages[0]
LENGTHS = STAGE.max_seq_length, STAGE.max_predictions_per_seq
HEAD = ("weights", "by definition, sequences", "measured, sequences", "ratio")
TIMES = ("model", "measuring, ms per update", "without, ms per update")
TIMES += ("ratio, median of pairs", "of CPU seconds")
RUN = ("update", "training loss", "noise scale, sequences")
MULTIPLE, PARTS, SHOWN = 4, 4, 10  # of the study's base batch; micro-batches; lines of the table


def main():
    arguments = machine.parser(__doc__, rounds=(40, "pairs of measurements per model")).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records, vocab_size = loops.make_records(pathlib.Path(folder), *LENGTHS)
        config = demo.model_config(vocab_size)
        trained = _loop(config, records, BIG, recipe().optimizer, stage=STAGE)
        weights = trained.optimizer.trainable_variables
        points = [("initial", [v.numpy() for v in weights])]
        for _ in range(UPDATES):
            trained()
        points.append((f"after {UPDATES} updates", [v.numpy() for v in weights]))
        rows = [_compared(config, records, *point) for point in points]
        name = "the demo's, batch 128 × 16, {} micro-batches"
        times = [
            _timed(name.format(parts), config, records, arguments, parts=parts) for parts in (2, 8)
        ]
    with tempfile.TemporaryDirectory() as folder:
        records, vocab_size = loops.make_records(pathlib.Path(folder))
        config, size, _ = loop_overhead.MODELS["4 layers × 768, batch 16 × 128"]
        config = dataclasses.replace(config, vocab_size=vocab_size)
        name = "4 layers × 768, batch 16 × 128, 2 micro-batches"
        times.append(_timed(name, config, records, arguments, size, parts=2, updates=1))
    about = __doc__.split("\n\n")[2].replace("\n", " ").strip()
    with tempfile.TemporaryDirectory() as folder:
        run = _over_a_run(pathlib.Path(folder))
    tables = [HEAD, *rows], [TIMES, *times], [RUN, *run]
    text = machine.page("The gradient noise scale", about, *tables)
    machine.write(machine.dated(arguments.output_dir, "noise_scale"), text)


def _loop(config, records, size, optimizer, updates=1, noise=False, stage=None, seed=1, parts=1):
    """A loop of the demo's first stage; by default at rate 0, which leaves the weights."""
    still = dataclasses.replace(STAGE, learning_rate=0.0, end_learning_rate=0.0, steps=100_000)
    stage = dataclasses.replace(stage or still, batch_size=size)
    settings = {"optimizer": optimizer, "seed": seed, "gradient_accumulation_steps": parts}
    run = loops.make_run(config, records, size, stages=(stage,), **settings)
    run = dataclasses.replace(
        run, task=dataclasses.replace(run.task, use_next_sentence_label=False)
    )
    engine = TfDistribute(tf.distribute.get_strategy())
    return loops.engine_loop(run, engine, updates, measures_noise=noise)


def _compared(config, records, name, weights):
    sgd = Optimizer(type="keras.optimizers:SGD", weight_decay=0.0)
    norms = {}
    for size in (SMALL, BIG):
        loop = _with(weights, _loop(config, records, size, sgd, seed=size))
        norms[size] = []
        for _ in range(BATCHES):
            loop()
            norms[size].append(float(loop.optimizer.gradient_norm.numpy()) ** 2)
    found, error = _by_definition(*map(np.array, norms.values()))
    loop = _with(weights, _loop(config, records, BIG, sgd, noise=True, parts=BIG // SMALL))
    for _ in range(BATCHES):
        loop()
    measured = SMALL * gradient_noise.scale(loop.state().noise)
    row = name, f"{found:.1f} ± {error:.1f}", f"{measured:.1f}", f"{measured / found:.2f}"
    print(*row, flush=True)
    return row


def _with(weights, loop):
    for variable, value in zip(loop.optimizer.trainable_variables, weights, strict=True):
        variable.assign(value)
    return loop


def _by_definition(small, big):
    """tr(Σ) / |G|² in sequences from squared norms, and its standard error."""

    def scale(small, big):
        squared_gradient = (BIG * big.mean() - SMALL * small.mean()) / (BIG - SMALL)
        return (small.mean() - big.mean()) / (1 / SMALL - 1 / BIG) / squared_gradient

    def without(values, i):
        return np.delete(np.array_split(values, 10), i, axis=0).ravel()

    parts = [scale(without(small, i), without(big, i)) for i in range(10)]
    return scale(small, big), float(np.sqrt(9 / 10 * np.sum((parts - np.mean(parts)) ** 2)))


def _timed(name, config, records, arguments, size=BIG, parts=BIG // SMALL, updates=5):
    if size != BIG:
        run = loops.make_run(config, records, size, gradient_accumulation_steps=parts)
        engine = TfDistribute(tf.distribute.get_strategy())
        both = [
            loops.engine_loop(run, engine, updates, measures_noise=noise) for noise in (True, False)
        ]
    else:
        made = (config, records, size, Optimizer(), updates)
        both = [_loop(*made, noise=noise, parts=parts) for noise in (True, False)]
    for loop in both:
        loop()  # traces
    pairs = []
    for number in range(arguments.rounds):
        order = (0, 1) if number % 2 else (1, 0)
        found = {side: _seconds(both[side]) for side in order}
        pairs.append((found[0], found[1]))
    clock, cpu = zip(*([measured / plain for measured, plain in zip(*pair)] for pair in pairs))
    seconds = zip(*[[side[0] for side in pair] for pair in pairs])
    ms = [f"{1000 * statistics.median(side) / updates:.1f}" for side in seconds]
    row = name, *ms, *(f"{statistics.median(ratios):.3f}" for ratios in (clock, cpu))
    print(*row, flush=True)
    return row


def _over_a_run(folder):
    """The noise scale of the study's run at a batch, evenly spread over its updates."""
    settings, model = study.SETTINGS, bert.MODEL | study.SETTINGS
    length = settings["max_seq_length"]
    bert.make_data(folder, model, {length: settings["max_predictions_per_seq"]})
    chosen = study.trial("best", "lamb", MULTIPLE, None, 1)
    values = study.values_of(settings, chosen, trials.read(claim.default_paths(study.CLAIM)[0]))
    stage = study.stage_of(settings, chosen, values)
    config = trials.config_of(folder, model, length, model["initializer_range"])
    fields = {"optimizer": study.optimizer("lamb", settings, values), "seed": 1}
    fields["gradient_accumulation_steps"] = PARTS
    run = trials.make_run(folder, model, config, (stage,), bert.StudyTask, **fields)
    every = {"log_steps": bert.CHUNK, "steps_per_loop": bert.CHUNK}
    trials.trainer(run, folder / "run", noise_scale=True, **every).train()
    return [
        (f"{line['step']:,}", f"{line['loss']:.2f}", f"{line['noise_scale']:,.0f}")
        for line in trials.read_log(folder / "run/train_log.jsonl", "train")
        if line["step"] % (stage.steps // SHOWN) == 0
    ]


def _seconds(loop):
    """Seconds of a call by the clock, and of all cores."""
    start, cpu = time.perf_counter(), time.process_time()
    loop()
    return time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
    main()
