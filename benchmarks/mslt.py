"""Wall time of MSLT against training from scratch for the same number of updates.

    python benchmarks/mslt.py [--depths=3,6,9,12] [--batch_size=16] [--steps=5] [--dtype=fp32]

The paper's proportions (arXiv 2011.13635): equal phases, each adds layers on top and trains them,
the last one trains all. The time of an update does not change within a phase, so each phase is
timed for a few updates in the steady state, and the times are combined in equal parts. The updates
are those of `run_pretraining` (same graph, LAMB, masked-LM and next-sentence head, dropout) on
random tokens; the time of an update does not depend on which. Run it on an idle machine.
"""

import dataclasses
import datetime
import os
import pathlib
import platform
import statistics
import sys
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from official_bert import flops, modeling, pretraining_step, stacking, stages
from official_bert.config import BertConfig

FLAGS = flags.FLAGS
flags.DEFINE_list("depths", ["3", "6", "9", "12"], "Encoder layers of the partial phases.")
flags.DEFINE_integer("batch_size", 16, "Sequences an update.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens a sequence.")
flags.DEFINE_integer("steps", 5, "Updates timed a phase, after two that are not.")
flags.DEFINE_enum("dtype", "fp32", list(stages.DTYPE_POLICIES), "As for run_pretraining.")
flags.DEFINE_bool("enable_xla", False, "As for run_pretraining.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")


def main(_):
    depths = [int(depth) for depth in FLAGS.depths]
    config = BertConfig(num_hidden_layers=depths[-1])  # of BERT-Base's width
    phases = [make_stage(**fields) for fields in stacking.mslt_plan(depths)]
    scratch = make_stage()
    # From scratch before and after, so that a drift of the machine shows.
    timed = [measure(config, stage) for stage in (scratch, *phases, scratch)]
    text = report(config, scratch, phases, timed)
    print(text)
    month = datetime.date.today().strftime("%Y%m")
    name = "mslt" if FLAGS.dtype == "fp32" else f"mslt_{FLAGS.dtype}"
    path = pathlib.Path(FLAGS.output_dir) / f"{name}_cpu{os.cpu_count()}_{month}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


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


def measure(config, stage):
    """Seconds of some updates of a stage, one by one, and of the first call, which traces."""
    run = stages.Run(
        config=config,
        stages=(stage,),
        optimizer=stages.Optimizer(),
        input_files=(),
        dtype=FLAGS.dtype,
    )
    depth = stage.depth or config.num_hidden_layers
    model = modeling.BertPretrainer(
        dataclasses.replace(config, num_hidden_layers=depth),
        dtype=stages.DTYPE_POLICIES[FLAGS.dtype],
    )
    for variable in model.weights:
        variable.trainable = stacking.trained(variable.path, stage)
    optimizer = run.optimizer.make()
    optimizer.build(model.trainable_variables)
    loop = pretraining_step.make_training_loop(
        run, model, optimizer, tf.distribute.get_strategy(), FLAGS.enable_xla
    )
    iterator = iter(tf.data.Dataset.from_tensors(random_batch(config, stage)).repeat())
    state, seconds = pretraining_step.first_state(run), []
    for step in range(2 + FLAGS.steps):
        start = time.perf_counter()
        state = loop(iterator, step, 1, state)
        seconds.append(time.perf_counter() - start)
    print(f"{depth} layers: {' '.join(f'{s:.2f}' for s in seconds)} s", flush=True)
    return {"first": seconds[0], "seconds": seconds[2:], "median": statistics.median(seconds[2:])}


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


def report(config, scratch, phases, timed):
    """The table and the speed-up as Markdown."""
    first, *mslt, last = timed
    alone = statistics.median(first["seconds"] + last["seconds"])
    speed_up = len(phases) * alone / sum(phase["median"] for phase in mslt)
    work = len(phases) * flops.step_flops(config, scratch)
    by_flops = work / sum(flops.step_flops(config, stage) for stage in phases)
    rows = [
        row("from scratch, before", config, scratch, first),
        *(row(f"phase {i}", config, s, t) for i, (s, t) in enumerate(zip(phases, mslt), 1)),
        row("from scratch, after", config, scratch, last),
    ]
    return f"""# MSLT against training from scratch, {datetime.date.today():%B %Y}

{cpu()}, {os.cpu_count()} cores; Python {platform.python_version()}, TensorFlow {tf.__version__}.
BERT-Base's width, {config.num_hidden_layers} layers, {FLAGS.dtype}, batch {FLAGS.batch_size} of \
{FLAGS.max_seq_length} tokens, {scratch.max_predictions_per_seq} predictions, LAMB, XLA \
{"on" if FLAGS.enable_xla else "off"}.
Made by `{" ".join(["python benchmarks/mslt.py", *sys.argv[1:]])}`.

| | layers | trained | s an update: median (least … most) | first call, s | model GFLOP \
| GFLOP/s | reduced MB |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}

**Speed-up for the same number of updates, in {len(phases)} equal phases: {speed_up:.2f}×**
(median seconds: {len(phases)} · {alone:.3f} against \
{" + ".join(f"{phase['median']:.3f}" for phase in mslt)}). Model FLOPs alone, head included, allow \
{by_flops:.2f}×; layers alone 2.0×. Frozen layers also need no optimizer update and no reduction. \
The first call of each phase, which traces its graph, happens once and is not in the speed-up.
"""


def row(name, config, stage, timed):
    work = flops.step_flops(config, stage) / 1e9
    trained = stage.trained_layers
    cells = (
        name,
        stage.depth or config.num_hidden_layers,
        "all"
        if trained is None
        else f"{trained[0]} … {trained[-1]}, head"
        + (", embeddings" if stage.train_embeddings else ""),
        f"{timed['median']:.3f} ({min(timed['seconds']):.3f} … {max(timed['seconds']):.3f})",
        f"{timed['first']:.1f}",
        f"{work:,.0f}",
        f"{work / timed['median']:,.0f}",
        f"{flops.reduced_bytes(config, stage) / 1e6:,.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    app.run(main)
