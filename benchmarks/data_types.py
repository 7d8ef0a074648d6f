"""Time of an update in bfloat16 and in float32, on the processor.

    python benchmarks/data_types.py [--rounds=15] [--engine=jax]

One process alternates between updates of both data types, by the engine's loop with records from
disk. Processors with AVX512-BF16 or AMX multiply in bfloat16; on others it is slower.
"""

import os
import pathlib
import statistics
import tempfile

import loops
import machine
import turns

BATCH_SIZE, LENGTH, PREDICTIONS, UPDATES = 32, 64, 16, 4
WORK = {  # model and optimizer: its layers, width, optimizer
    "`demo`, 2 layers × 128, Muon": (2, 128, "muon"),
    "`small`, 4 layers × 256, Muon": (4, 256, "muon"),
    "`small`, 4 layers × 256, LAMB": (4, 256, "lamb"),
}
HEAD = ("model", "fp32, ms", "bf16, ms", "fp32 / bf16, median of rounds", "fewest, most")


def main():
    parser = machine.parser(__doc__, rounds=(15, "pairs of measurements per model"))
    parser.add_argument("--engine", choices=("tensorflow", "jax"), default="tensorflow")
    arguments = parser.parse_args()
    os.environ |= turns.TENSORFLOW_ON_CPU
    os.environ |= {"KERAS_BACKEND": arguments.engine, "JAX_PLATFORMS": "cpu"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records, size = loops.make_records(pathlib.Path(folder), LENGTH, PREDICTIONS)
        for name, work in WORK.items():
            ways = {
                dtype: updates(arguments.engine, records, size, dtype, *work)
                for dtype in ("bf16", "fp32")
            }
            for way in (*ways.values(), *ways.values()):  # the first compiles
                way()
            seconds = {dtype: [] for dtype in ways}
            for _ in range(arguments.rounds):
                for dtype, way in ways.items():
                    seconds[dtype].append(turns.timed(way, UPDATES)["seconds"])
            middle, least, most = turns.ratios(seconds, "fp32", "bf16")
            ms = [f"{1000 * statistics.median(seconds[d]):.1f}" for d in ("fp32", "bf16")]
            rows.append((name, *ms, f"{middle:.2f}", f"{least:.2f}, {most:.2f}"))
            print(rows[-1], flush=True)
    about = (
        f"An update of {BATCH_SIZE} × {LENGTH} tokens, {PREDICTIONS} predictions, no dropout, by "
        f"the {arguments.engine} engine; medians of {arguments.rounds} pairs of {UPDATES} updates."
    )
    text = machine.page("An update in bfloat16 and in float32", about, [HEAD, *rows])
    machine.write(machine.dated(arguments.output_dir, f"data_types_{arguments.engine}"), text)


def updates(engine, records, vocab_size, dtype, layers, width, optimizer):
    """A function that runs `UPDATES` updates of a model of its own."""
    from official_bert.model.config import BertConfig
    from official_bert.stages import Optimizer

    if engine == "jax":
        from official_bert.engines.jax_mesh import JaxMesh

        made = JaxMesh()
    else:
        import tensorflow as tf

        from official_bert.engines.tf_distribute import TfDistribute

        made = TfDistribute(tf.distribute.get_strategy())
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    shape = (BATCH_SIZE, LENGTH, PREDICTIONS)
    run = loops.make_run(config, records, *shape, dtype=dtype, optimizer=Optimizer(type=optimizer))
    return loops.engine_loop(run, made, UPDATES)


if __name__ == "__main__":
    main()
