"""Wall time of MSLT against training from scratch for the same number of updates.

    python benchmarks/mslt.py [--depths=3,6,9,12] [--batch_size=16] [--steps=7] [--dtype=fp32]

The paper's proportions (arXiv 2011.13635): equal phases, each adds layers on top and trains them,
the last one trains all. The time of an update does not change within a phase, so a few updates of
each are timed in the steady state, in turn, so that a drift of the machine meets all alike, and
the times are combined in equal parts. The updates are those of `run_pretraining` (same graph, LAMB,
masked-LM and next-sentence head, dropout) on random tokens; which tokens does not matter. Run it on
an idle machine with 16 GB.
"""

import dataclasses
import datetime
import pathlib
import sys
import time

import machine
import numpy as np
import tensorflow as tf
from absl import app, flags

from official_bert import stacking, stages
from official_bert.engines import loop_state, tf_update
from official_bert.model import pretrainer
from official_bert.model.config import BertConfig
from official_bert.training import flops

FLAGS = flags.FLAGS
flags.DEFINE_list("depths", ["3", "6", "9", "12"], "Encoder layers of the partial phases.")
flags.DEFINE_integer("batch_size", 16, "Sequences an update.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens a sequence.")
flags.DEFINE_integer("steps", 7, "Updates of each phase that are timed, after two that are not.")
flags.DEFINE_enum("dtype", "fp32", list(stages.DTYPE_POLICIES), "As for run_pretraining.")
flags.DEFINE_bool("enable_xla", False, "As for run_pretraining.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")


def main(_):
    depths = [int(depth) for depth in FLAGS.depths]
    config = BertConfig(num_hidden_layers=depths[-1])  # of BERT-Base's width
    phases = [make_stage(**fields) for fields in stacking.mslt_plan(depths)]
    updates = [make_update(config, stage) for stage in phases]
    first, _ = time_round(updates)
    time_round(updates)
    rounds = np.array([time_round(updates) for _ in range(FLAGS.steps)])  # (round, clock, phase)
    text = report(config, phases, first, wall=rounds[:, 0], cpu_time=rounds[:, 1])
    print(text)
    month = datetime.date.today().strftime("%Y%m")
    name = "mslt" if FLAGS.dtype == "fp32" else f"mslt_{FLAGS.dtype}"
    path = pathlib.Path(FLAGS.output_dir) / f"{name}_cpu{machine.cores()}_{month}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def time_round(updates):
    """Wall and CPU seconds (of all cores) of one update of each phase, one after the other."""
    wall, cpu_time = [], []
    for update in updates:
        start, cpu_start = time.perf_counter(), time.process_time()
        update()
        wall.append(time.perf_counter() - start)
        cpu_time.append(time.process_time() - cpu_start)
    print(" ".join(f"{value:.2f}" for value in wall), "s", flush=True)
    return wall, cpu_time


def make_stage(**fields):
    return stages.Stage(
        steps=1000,
        batch_size=FLAGS.batch_size,
        max_seq_length=FLAGS.max_seq_length,
        max_predictions_per_seq=round(0.15 * FLAGS.max_seq_length) + 1,
        learning_rate=1e-3,
        warmup_steps=100,
        **fields,
    )


def make_update(config, stage):
    """A function that does one update of a stage, as the training loop does."""
    run = stages.Run(
        config=config,
        stages=(stage,),
        optimizer=stages.Optimizer(),
        input_files=(),
        dtype=FLAGS.dtype,
        enable_xla=FLAGS.enable_xla,
    )
    model = pretrainer.BertPretrainer(
        dataclasses.replace(config, num_hidden_layers=stage.depth),
        dtype=stages.DTYPE_POLICIES[FLAGS.dtype],
    )
    for variable in model.weights:
        variable.trainable = stacking.trained(variable.path, stage)
    optimizer = run.optimizer.make()
    optimizer.build(model.trainable_variables)
    loop = tf_update.make_training_loop(run, model, optimizer, tf.distribute.get_strategy())
    iterator = iter(tf.data.Dataset.from_tensors(random_batch(config, stage)).repeat())
    state = loop_state.first_state(run)
    return lambda: loop(iterator, 1, 1, state)


def random_batch(config, stage):
    rng = np.random.default_rng(0)
    tokens = (stage.batch_size, stage.max_seq_length)
    masked = (stage.batch_size, stage.max_predictions_per_seq)
    return {
        "input_ids": rng.integers(0, config.vocab_size, tokens, "int32"),
        "input_mask": np.ones(tokens, "int32"),
        "segment_ids": rng.integers(0, 2, tokens, "int32"),
        "masked_lm_positions": rng.integers(0, stage.max_seq_length, masked, "int32"),
        "masked_lm_ids": rng.integers(0, config.vocab_size, masked, "int32"),
        "masked_lm_weights": np.ones(masked, "float32"),
        "next_sentence_labels": rng.integers(0, 2, tokens[:1], "int32"),
        "example_weights": np.ones(tokens[:1], "float32"),
    }


def report(config, phases, first, wall, cpu_time):
    """The table and the speed-up as Markdown; `wall` and `cpu_time` are (round, phase)."""
    medians = np.median(wall, axis=0)
    # The last phase's update is that of the whole model: training from scratch.
    speed_ups = len(phases) * wall[:, -1] / wall.sum(axis=1)
    by_cpu = np.median(len(phases) * cpu_time[:, -1] / cpu_time.sum(axis=1))
    work = [flops.step_flops(config, stage) for stage in phases]
    by_flops = len(phases) * work[-1] / sum(work)
    encoder = [flops.encoder_flops(config, stage) for stage in phases]
    by_encoder = len(phases) * encoder[-1] / sum(encoder)
    rows = [
        row(i + 1, config, stage, first[i], wall[:, i], np.median(cpu_time[:, i]))
        for i, stage in enumerate(phases)
    ]
    return f"""# MSLT against training from scratch, {datetime.date.today():%B %Y}

{machine.describe("tensorflow", "tensorflow-cpu")}.
BERT-Base's width, {config.num_hidden_layers} layers, {FLAGS.dtype}, batch {FLAGS.batch_size} of \
{FLAGS.max_seq_length} tokens, {phases[0].max_predictions_per_seq} predictions, LAMB, XLA \
{"on" if FLAGS.enable_xla else "off"}.
Made by `{" ".join(["python benchmarks/mslt.py", *sys.argv[1:]])}`.

**For the same number of updates, in {len(phases)} equal phases, MSLT takes \
{np.median(speed_ups):.2f}× less time than training from scratch** ({speed_ups.min():.2f} … \
{speed_ups.max():.2f} over {len(wall)} rounds of one update of each phase). By the medians: \
{len(phases)} · {medians[-1]:.3f} s against {" + ".join(f"{m:.3f}" for m in medians)} s. In CPU \
seconds, which other work on the machine disturbs less, it is {by_cpu:.2f}×. Model FLOPs, head \
included, allow {by_flops:.2f}×, those of the encoder layers {by_encoder:.2f}×; frozen \
layers also need no optimizer update and no reduction.

| phase | layers | trained | s an update: median (least … most) | CPU s | model GFLOP | GFLOP/s \
| gradients, MB | first call, s |
|---|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

The last phase trains all layers, so its update is that of training from scratch. The first call of
a phase traces its graph; it happens once and is not in the speed-up.
"""


def row(number, config, stage, first, seconds, cpu_seconds):
    layers = stage.trained_layers
    trained = "all" if layers is None else f"{layers[0]} … {layers[-1]} and heads"
    median, work = np.median(seconds), flops.step_flops(config, stage) / 1e9
    cells = (
        number,
        stage.depth,
        f"{trained}, embeddings" if layers and stage.train_embeddings else trained,
        f"{median:.3f} ({min(seconds):.3f} … {max(seconds):.3f})",
        f"{cpu_seconds:.2f}",
        f"{work:,.0f}",
        f"{work / median:,.0f}",
        f"{flops.reduced_bytes(config, stage) / 1e6:,.0f}",
        f"{first:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    app.run(main)
