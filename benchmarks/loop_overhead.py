"""What the training loop adds to a step on a CPU, and what dividing the rows among the cores saves.

    python benchmarks/loop_overhead.py [--rounds=7]

Three ways take turns: the loop of `run_pretraining` (records read, decoded and shuffled from disk,
learning rate, sums, log line, trust ratios, TensorBoard summaries, progress line); the engine's own
forward pass, backward pass and update on one batch in memory; and the same in a process whose cores
divide each operation instead of the rows. Models: the size of a demo, whose steps are so short that
overhead shows, and four layers of BERT-Base's width.
"""

import argparse
import dataclasses
import pathlib
import statistics
import tempfile

import loops
import machine
import turns

from official_bert.model.config import BertConfig

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12}
MODELS = {  # shape, batch size, updates per measurement, which ends with a line of the log
    "2 layers × 128, batch 16 × 128": (BertConfig(**SMALL, intermediate_size=512), 16, 40),
    "2 layers × 128, batch 64 × 128": (BertConfig(**SMALL, intermediate_size=512), 64, 10),
    "4 layers × 768, batch 16 × 128": (BertConfig(**WIDE, intermediate_size=3072), 16, 3),
}
LOOP, BARE, WHOLE = "loop", "bare", "operations divided"
HEAD = ("model", "loop, ms per update", "bare, ms per update")
HEAD += ("share that is not forward, backward or update",)
HEAD += ("bare, operations divided, ms", "operations divided ÷ rows divided")


def main():
    parser = machine.parser(__doc__, rounds=(7, "rounds of measurements per model"))
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        turns.take(lambda: ways(*arguments.worker))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records, vocab_size = loops.make_records(pathlib.Path(folder))
        for name in MODELS:
            given = name, records, str(vocab_size)
            with (
                turns.Worker(__file__, LOOP, *given) as divided,
                turns.Worker(__file__, WHOLE, *given) as whole,
            ):
                workers = {LOOP: divided, BARE: divided, WHOLE: whole}
                found = turns.measure(name, workers, arguments.rounds)["seconds"]
            ms = {way: f"{1000 * statistics.median(found[way]):.1f}" for way in workers}
            pairs = zip(found[LOOP], found[BARE], found[WHOLE], strict=True)
            shares, ratios = zip(*((1 - b / a, c / b) for a, b, c in pairs), strict=True)
            share = f"{100 * statistics.median(shares):.1f} %"
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
            rows.append((name, ms[LOOP], ms[BARE], share, ms[WHOLE], spread))
    about = (
        f"Medians of {arguments.rounds} rounds of 40, 10 and 3 updates; shares and ratios are from "
        "times of the same round. A negative share is noise: the sides differ only in what the "
        "loop adds."
    )
    text = machine.page("The loop's overhead", about, [HEAD, *rows])
    machine.write(machine.dated(arguments.output_dir, "loop_overhead"), text)


def ways(way, name, records, vocab_size):
    """The ways of a worker."""
    import tensorflow as tf

    if way != WHOLE:  # then rows are divided, see `tf_update.parts_at_once`
        tf.config.threading.set_intra_op_parallelism_threads(1)
    config, batch_size, updates = MODELS[name]
    run = loops.make_run(
        dataclasses.replace(config, vocab_size=int(vocab_size)), records, batch_size
    )
    folder = tempfile.mkdtemp(dir=pathlib.Path(records).parent)
    trainer, loop = loops.trainer_loop(run, updates, pathlib.Path(folder))
    bare = loops.bare_updates(trainer, updates)
    timed = {LOOP: loop, BARE: bare} if way == LOOP else {WHOLE: bare}
    return {
        name: lambda function=function: turns.timed(function, updates)
        for name, function in timed.items()
    }


if __name__ == "__main__":
    main()
