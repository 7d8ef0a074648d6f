"""Share of a step of `run_pretraining` that is not forward pass, backward pass or update.

    python benchmarks/loop_overhead.py [--rounds=7]

One process alternates between updates by the loop (records read, decoded and shuffled from disk,
learning rate, sums, log line, trust ratios, TensorBoard summaries, progress line) and the same
number of updates by the engine's own forward pass, backward pass and update on one batch in memory.
Models: the size of a demo at two batch sizes, whose steps are so short that overhead shows, and
four layers of BERT-Base's width.
"""

import dataclasses
import pathlib
import statistics
import tempfile
import time

import loops
import machine

from official_bert.model.config import BertConfig

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
MODELS = {  # shape, batch size, updates per measurement, which ends with a line of the log
    "2 layers × 128, batch 16 × 128": (BertConfig(**SMALL, intermediate_size=512), 16, 40),
    "2 layers × 128, batch 64 × 128": (BertConfig(**SMALL, intermediate_size=512), 64, 10),
    "4 layers × 768, batch 16 × 128": (BertConfig(**WIDE, intermediate_size=3072), 16, 3),
}
HEAD = ("model", "loop, ms per update", "bare, ms per update")
HEAD += ("share that is not forward, backward or update",)


def main():
    arguments = machine.parser(__doc__, rounds=(7, "pairs of measurements per model")).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records, vocab_size = loops.make_records(pathlib.Path(folder))
        for name, (config, batch_size, updates) in MODELS.items():
            run = loops.make_run(
                dataclasses.replace(config, vocab_size=vocab_size), records, batch_size
            )
            model_dir = pathlib.Path(tempfile.mkdtemp(dir=folder))
            trainer, loop = loops.trainer_loop(run, updates, model_dir)
            bare = loops.bare_updates(trainer, updates)
            pairs = [(seconds(loop), seconds(bare)) for _ in range(arguments.rounds + 1)][1:]
            print(name, [f"{a:.3f}/{b:.3f}" for a, b in pairs], flush=True)
            ms = [f"{1000 * statistics.median(side) / updates:.1f}" for side in zip(*pairs)]
            share = statistics.median(1 - b / a for a, b in pairs)
            rows.append((name, *ms, f"{100 * share:.1f} %"))
    about = (
        f"Medians of {arguments.rounds} pairs of 40, 10 and 3 updates; the share is the median of "
        "the pairs'. A negative share is noise: the sides differ only in what the loop adds."
    )
    text = machine.page("The loop's overhead", about, [HEAD, *rows])
    machine.write(machine.dated(arguments.output_dir, "loop_overhead"), text)


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
