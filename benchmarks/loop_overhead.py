"""How much of a step of `run_pretraining` is not forward pass, backward pass or update.

    python benchmarks/loop_overhead.py [--rounds=7]

Beside each other in one process, in turn: some updates of the loop, with records read, decoded and
shuffled from disk, sums, learning rate, log line, trust ratios, TensorBoard summaries and progress
line; and the same ten updates as a bare `tf.function` of forward pass, backward pass and update
on one batch that is there already. Two models: one of a demo's size, whose steps are so short that
overhead shows, and four layers of BERT-Base's width.
"""

import contextlib
import dataclasses
import datetime
import io
import pathlib
import statistics
import sys
import tempfile
import time

import machine
import stdlib_records
import tensorflow as tf
from absl import app, flags

from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.model.pretrainer import pretraining_sums
from official_bert.stages import LoopOptions, Optimizer, Run, Stage
from official_bert.system import memory
from official_bert.training.trainer import Trainer

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 7, "Pairs of measurements a model.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
MODELS = {
    "2 layers × 128, batch 64 × 128": (BertConfig(**SMALL, intermediate_size=512), 64, 10),
    "4 layers × 768, batch 16 × 128": (BertConfig(**WIDE, intermediate_size=3072), 16, 3),
}  # shape, batch size, updates a measurement, after which comes a line of the log


def main(_):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records, vocab_size = stdlib_records.make(pathlib.Path(folder))
        for name, (config, batch_size, updates) in MODELS.items():
            config = dataclasses.replace(config, vocab_size=vocab_size)
            model_dir = pathlib.Path(folder) / name[0]
            loop, bare = make_both(config, batch_size, updates, records, model_dir)
            pairs = [(seconds(loop), seconds(bare)) for _ in range(FLAGS.rounds + 1)][1:]
            rows.append((name, updates, pairs))
            print(name, [f"{a:.3f}/{b:.3f}" for a, b in pairs], flush=True)
    text = report(rows)
    print(text)
    month = datetime.date.today().strftime("%Y%m")
    path = pathlib.Path(FLAGS.output_dir) / f"loop_overhead_cpu{machine.cores()}_{month}.md"
    path.write_text(text)


def make_both(config, batch_size, updates, records, model_dir, dtype="fp32"):
    """Two functions that do so many updates: by the loop, and bare."""
    memory.tune_malloc()  # as run_pretraining does
    stage = Stage(
        steps=100_000,
        batch_size=batch_size,
        max_seq_length=128,
        max_predictions_per_seq=20,
        learning_rate=1e-3,
        warmup_steps=100,
    )
    run = Run(
        config=config,
        stages=(stage,),
        optimizer=Optimizer(),
        input_files=(records,),
        dtype=dtype,
    )
    trainer, by_loop = make_loop(run, updates, model_dir)
    batches = trainer._records.training(stage)
    batch = {name: tf.constant(value) for name, value in batches[0].items()}
    variables = trainer.model.trainable_variables

    @tf.function
    def update(batch, seed):
        with tf.GradientTape() as tape:
            outputs = trainer.model(batch, training=True, dropout_seed=seed)
            sums = pretraining_sums(outputs, batch)
            loss = sum(
                sums[f"{t}_loss"] / sums[f"{t}_weight"] for t in ("masked_lm", "next_sentence")
            )
        trainer.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def bare():
        for step in range(updates):
            update(batch, tf.constant([0, step])).numpy()

    return by_loop, bare


def make_loop(run, updates, model_dir):
    """The trainer of a run, and a function that does so many updates by its loop."""
    (stage,) = run.stages
    engine = TfDistribute(tf.distribute.get_strategy())
    options = LoopOptions(log_steps=updates, tensorboard=True)
    trainer = Trainer(run, options, engine, model_dir)
    loop = engine.training_loop(run, trainer.model, trainer.optimizer)
    batches = trainer._records.training(stage)
    iterator = engine.feed(lambda *_: batches, range(stage.steps))

    def by_loop():
        for _ in range(updates):
            trainer._state = trainer._pace.measure(
                lambda: loop(iterator, trainer.step, 1, trainer._state), 1
            )
            trainer.step += 1
        with contextlib.redirect_stdout(io.StringIO()):
            trainer._reports.train(
                trainer.step, 0, trainer._state, trainer.optimizer, trainer._pace
            )
        trainer._state = trainer._state.new_window()
        trainer._pace.restart()

    return trainer, by_loop


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def report(rows):
    lines = []
    for name, updates, pairs in rows:
        loop, bare = (1000 * statistics.median(side) / updates for side in zip(*pairs))
        share = statistics.median(1 - b / a for a, b in pairs)
        lines.append(f"| {name} | {loop:.1f} | {bare:.1f} | {100 * share:.1f} % |")
    return f"""# The loop's overhead, {datetime.date.today():%B %Y}

{machine.describe("tensorflow", "tensorflow-cpu")}.
Made by `{" ".join(["python benchmarks/loop_overhead.py", *sys.argv[1:]])}`: medians of \
{FLAGS.rounds} pairs of 10 and 3 updates; the share is the median of the pairs'. A \
negative share is noise: the two sides differ in nothing but what the loop adds.

| model | loop, ms an update | bare, ms an update | share that is not forward, backward or update |
|---|---|---|---|
{chr(10).join(lines)}
"""


if __name__ == "__main__":
    app.run(main)
