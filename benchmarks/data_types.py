"""Time of an update in bfloat16 and in float32, on the processor.

    python benchmarks/data_types.py [--rounds=15] [--engine=jax]

One process alternates between updates of both data types, by the engine's loop with records from
disk. Processors with AVX512-BF16 or AMX have instructions for products in bfloat16.
"""

import dataclasses
import os
import pathlib
import statistics
import tempfile

import loops
import machine
import turns

UPDATES = 4  # of a measurement
WORK = {  # stage: recipe, number of its stage, word pieces, width and layers of the model
    "`demo`, 16 tokens": ("demo", 0, 2048, 128, 2),
    "`demo`, 64 tokens": ("demo", 1, 2048, 128, 2),
    "`small`, 16 tokens, 2 layers": ("small", 0, 4096, 256, 2),
    "`small`, 128 tokens, 4 layers": ("small", 1, 4096, 256, 4),
}
HEAD = ("stage", "fp32, ms", "bf16, ms", "fp32 / bf16, median of rounds", "fewest, most")


def main():
    parser = machine.parser(__doc__, rounds=(15, "pairs of measurements per model"))
    parser.add_argument("--engine", choices=("tensorflow", "jax"), default="tensorflow")
    arguments = parser.parse_args()
    os.environ |= turns.TENSORFLOW_ON_CPU
    os.environ |= {"KERAS_BACKEND": arguments.engine, "JAX_PLATFORMS": "cpu"}
    rows = []
    from official_bert import recipes  # Keras with it

    for name, work in WORK.items():
        recipe, index, vocab_size, *shape = work
        found = recipes.find(recipe)
        stage = dataclasses.replace(found.stages[index], depth=None, new_positions="fresh")
        with tempfile.TemporaryDirectory() as folder:
            records = loops.make_records(
                pathlib.Path(folder), *stage.lengths, vocab_size=vocab_size
            )
            ways = {
                dtype: updates(arguments.engine, found, stage, *records, *shape, dtype)
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
        f"Updates of the recipes' stages by the {arguments.engine} engine, records included; "
        f"medians of {arguments.rounds} pairs of {UPDATES} updates."
    )
    text = machine.page("An update in bfloat16 and in float32", about, [HEAD, *rows])
    machine.write(machine.dated(arguments.output_dir, f"data_types_{arguments.engine}"), text)


def updates(engine, recipe, stage, records, vocab_size, width, layers, dtype):
    """A function that runs `UPDATES` updates of a recipe's stage, with a model of its own."""
    if engine == "jax":
        from official_bert.engines.jax_mesh import JaxMesh

        made = JaxMesh()
    else:
        import tensorflow as tf

        from official_bert.engines.tf_distribute import TfDistribute

        made = TfDistribute(tf.distribute.get_strategy())
    from official_bert.model.config import BertConfig
    from official_bert.stages import Run
    from official_bert.tasks.pretraining import Pretraining

    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    run = Run(
        config=config,
        stages=(stage,),
        input_files=(records,),
        optimizer=recipe.optimizer,
        task=Pretraining(use_next_sentence_label=False),
        dtype=dtype,
    )
    return loops.engine_loop(run, made, UPDATES)


if __name__ == "__main__":
    main()
