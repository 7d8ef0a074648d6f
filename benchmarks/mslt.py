"""Wall time of MSLT compared with training from scratch, for the same number of updates.

    python benchmarks/mslt.py [--depths=3,6,9,12] [--batch_size=16] [--steps=7] [--dtype=fp32]

The paper's proportions (arXiv 2011.13635): equal phases, each of which adds layers on top and
trains them; the last one trains all. The time of an update is constant within a phase, so some
updates of each are timed in alternation and combined in equal parts. The updates are those of
`run_pretraining` (same graph, LAMB, masked-LM and next-sentence head, dropout). Run it on an idle
machine with 16 GB.
"""

import dataclasses
import pathlib
import tempfile
import time

import loops
import machine
import numpy as np
import tensorflow as tf

from official_bert import stacking, stages
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.model.config import BertConfig
from official_bert.training import flops

HEAD = ("phase", "layers", "trained", "s per update: median (least … most)", "CPU s")
HEAD += ("model GFLOP", "GFLOP/s", "gradients, MB", "first call, s")
NOTE = (
    "The last phase trains all layers, so its update is that of training from scratch. The first "
    "call of a phase traces its graph; it happens once and is not in the speed-up."
)


def main():
    given = parser().parse_args()
    depths = [int(depth) for depth in given.depths.split(",")]
    config = BertConfig(num_hidden_layers=depths[-1])  # of BERT-Base's width
    predictions = round(0.15 * given.max_seq_length) + 1
    with tempfile.TemporaryDirectory() as folder:
        shape = given.max_seq_length, predictions
        records, _ = loops.make_records(pathlib.Path(folder), *shape, num_documents=100)
        run = loops.make_run(
            config, records, given.batch_size, *shape, dtype=given.dtype, enable_xla=given.xla
        )
        phases = [
            dataclasses.replace(run.stages[0], **fields) for fields in stacking.mslt_plan(depths)
        ]
        engine = TfDistribute(tf.distribute.get_strategy())
        runs = [dataclasses.replace(run, stages=(phase,)) for phase in phases]
        updates = [loops.engine_loop(of_phase, engine, 1) for of_phase in runs]
        first, _ = time_round(updates)
        time_round(updates)
        rounds = np.array([time_round(updates) for _ in range(given.steps)])
    text = report(given, run, phases, first, *rounds.swapaxes(0, 1))
    name = "mslt" if given.dtype == "fp32" else f"mslt_{given.dtype}"
    machine.write(machine.dated(given.output_dir, name), text)


def parser():
    found = machine.parser(
        __doc__,
        batch_size=(16, "sequences per update"),
        max_seq_length=(128, "tokens per sequence"),
        steps=(7, "updates of each phase that are timed, after two that are not"),
    )
    found.add_argument("--depths", default="3,6,9,12", help="encoder layers of the partial phases")
    found.add_argument("--dtype", choices=list(stages.DTYPE_POLICIES), default="fp32")
    found.add_argument("--enable_xla", action="store_true", dest="xla")
    return found


def time_round(updates):
    """Wall and CPU seconds (of all cores) of one update of each phase."""
    wall, cpu_time = [], []
    for update in updates:
        start, cpu_start = time.perf_counter(), time.process_time()
        update()
        wall.append(time.perf_counter() - start)
        cpu_time.append(time.process_time() - cpu_start)
    print(" ".join(f"{value:.2f}" for value in wall), "s", flush=True)
    return wall, cpu_time


def report(given, run, phases, first, wall, cpu_time):
    """The page; `wall` and `cpu_time` are (round, phase), `first` (phase)."""
    count, medians = len(phases), np.median(wall, axis=0)
    # The last phase updates the whole model, as training from scratch does.
    speed_ups, by_cpu = (count * t[:, -1] / t.sum(axis=1) for t in (wall, cpu_time))
    work, encoder = (
        [of(run.config, stage) for stage in phases]
        for of in (flops.step_flops, flops.encoder_flops)
    )
    about = (
        f"BERT-Base's width, {run.config.num_hidden_layers} layers, {run.dtype}, batch "
        f"{given.batch_size} of {given.max_seq_length} tokens, {phases[0].max_predictions_per_seq} "
        f"predictions, LAMB, XLA {'on' if run.enable_xla else 'off'}."
    )
    answer = (
        f"**For the same number of updates, in {count} equal phases, MSLT takes "
        f"{np.median(speed_ups):.2f}× less time than training from scratch** "
        f"({speed_ups.min():.2f} … {speed_ups.max():.2f} over {len(wall)} rounds of one update of "
        f"each phase). By the medians: {count} · {medians[-1]:.3f} s compared with "
        f"{' + '.join(f'{m:.3f}' for m in medians)} s. In CPU seconds, which other work on the "
        f"machine disturbs less, it is {np.median(by_cpu):.2f}×. Model FLOPs, head included, allow "
        f"{count * work[-1] / sum(work):.2f}×, FLOPs of the encoder layers "
        f"{count * encoder[-1] / sum(encoder):.2f}×; frozen layers also need no optimizer update "
        "and no reduction."
    )
    rows = [
        row(i, run.config, stage, first[i], wall[:, i], np.median(cpu_time[:, i]))
        for i, stage in enumerate(phases)
    ]
    title = "MSLT compared with training from scratch"
    return machine.page(title, about, answer, [HEAD, *rows], NOTE)


def row(index, config, stage, first, seconds, cpu_seconds):
    layers = stage.trained_layers
    trained = "all" if layers is None else f"{layers[0]} … {layers[-1]} and heads"
    median, work = np.median(seconds), flops.step_flops(config, stage) / 1e9
    return (
        index + 1,
        stage.depth,
        f"{trained}, embeddings" if layers and stage.train_embeddings else trained,
        f"{median:.3f} ({min(seconds):.3f} … {max(seconds):.3f})",
        f"{cpu_seconds:.2f}",
        f"{work:,.0f}",
        f"{work / median:,.0f}",
        f"{flops.reduced_bytes(config, stage) / 1e6:,.0f}",
        f"{first:.1f}",
    )


if __name__ == "__main__":
    main()
