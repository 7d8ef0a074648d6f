"""Tokens a second of pre-training, beside Hugging Face's `BertForPreTraining` in PyTorch.

    python benchmarks/pretrain_throughput.py [--rounds=5] [--only="4 layers, fp32"]
    python benchmarks/pretrain_throughput.py --profile

The sides are processes that stay alive and take turns, so each round measures all of them under the
same conditions: the loop of `run_pretraining` with records from disk, then the same model as a bare
`tf.function` of forward pass, backward pass and update, then the loop of the JAX engine, then the
peer, eager and compiled. The peer gets the first of our batches, again and again. `--profile`
instead says which operations the time of the bare function goes to.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import tempfile
import time

import machine
import numpy as np
import turns

BATCH_SIZE, LENGTH, PREDICTIONS = 16, 128, 20
CELLS = {  # layers, data type, updates per turn
    "4 layers, fp32": (4, "fp32", 2),
    "4 layers, bf16": (4, "bf16", 3),
    "BERT-Base, fp32": (12, "fp32", 1),
    "BERT-Base, bf16": (12, "bf16", 1),
}
LOOP, BARE, JAX, EAGER, COMPILED = "loop", "bare", "jax", "eager", "compiled"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way, in alternation")
    parser.add_argument("--only", choices=list(CELLS), action="append", help="rows to measure")
    parser.add_argument("--profile", action="store_true", help="where our time goes, instead")
    parser.add_argument("--output_dir", type=pathlib.Path, default="benchmarks/results")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    cells = arguments.only or [c for c in CELLS if not arguments.profile or "4 layers" in c]
    with tempfile.TemporaryDirectory() as folder:
        with turns.Worker(__file__, "records", "-", folder):
            pass
        if arguments.profile:
            profiles = {cell: profile(cell, folder) for cell in cells}
            turns.write(
                arguments.output_dir / "pretrain_profile", profiles, profile_report(profiles)
            )
        else:
            results = {}
            for cell in cells:  # written after each, so that a run cut short keeps what it has
                results[cell] = measure(cell, folder, arguments.rounds)
                name = arguments.output_dir / "pretrain_throughput"
                turns.write(name, results, throughput_report(results))


def measure(cell, folder, rounds):
    """Seconds per update of each way, by round; what could not be run, by its error."""
    with (
        turns.Worker(__file__, "ours", cell, folder) as ours,  # it writes the batch for the peer
        turns.Worker(__file__, "jax", cell, folder) as on_jax,
        turns.Worker(__file__, "peer", cell, folder) as peer,
    ):
        workers = {LOOP: ours, BARE: ours, JAX: on_jax, EAGER: peer, COMPILED: peer}
        return turns.measure(cell, workers, rounds)


def profile(cell, folder):
    """Seconds of CPU time an update by type of operation."""
    with turns.Worker(__file__, "ours", cell, folder) as ours:
        ours.ask(BARE)
        ours.ask(BARE)
        return ours.ask("profile")


def work(side, cell, folder):
    """A worker's life."""
    ways = {
        "ours": our_ways,
        "jax": jax_ways,
        "peer": peer_ways,
        "records": make_records,
    }[side]
    turns.take(lambda: ways(cell, folder))


def make_records(_, folder):
    import stdlib_records

    stdlib_records.make(pathlib.Path(folder))
    return {}


def our_ways(cell, folder):
    import loop_overhead

    from official_bert.data import input_pipeline
    from official_bert.model.config import BertConfig

    layers, dtype, updates = CELLS[cell]
    records = f"{folder}/records"
    model_dir = pathlib.Path(folder) / cell
    config = BertConfig(num_hidden_layers=layers)
    loop, bare = loop_overhead.make_both(config, BATCH_SIZE, updates, records, model_dir, dtype)
    batches = input_pipeline.Batches([records], BATCH_SIZE, LENGTH, PREDICTIONS, seed=0)
    np.savez(f"{folder}/batch.npz", **batches[0])
    return {
        LOOP: lambda: turns.timed(loop, updates),
        BARE: lambda: turns.timed(bare, updates),
        "profile": lambda: traced(bare, updates, folder),
    }


def jax_ways(cell, folder):
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    import gpu_jax

    from official_bert.engines.jax_mesh import JaxMesh
    from official_bert.model.config import BertConfig
    from official_bert.stages import Optimizer, Run, Stage

    layers, dtype, updates = CELLS[cell]
    stage = Stage(
        steps=100_000,
        batch_size=BATCH_SIZE,
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        learning_rate=1e-3,
        warmup_steps=100,
    )
    run = Run(
        config=BertConfig(num_hidden_layers=layers),
        stages=(stage,),
        optimizer=Optimizer(),
        input_files=(f"{folder}/records",),
        dtype=dtype,
    )
    by_loop, _ = gpu_jax.make_loop(run, JaxMesh(), updates)
    return {JAX: lambda: turns.timed(by_loop, updates)}


def peer_ways(cell, folder):
    import hugging_face
    import torch
    import transformers

    layers, dtype, updates = CELLS[cell]
    torch.set_num_threads(machine.cores())
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_act="gelu_pytorch_tanh",  # our formula, in PyTorch's fused kernel
        attn_implementation="sdpa",
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compiled = torch.compile(model)
    with np.load(f"{folder}/batch.npz") as arrays:
        inputs = hugging_face.inputs(arrays)

    def do_updates(forward):
        for _ in range(updates):
            mixed = torch.autocast("cpu", torch.bfloat16)
            with mixed if dtype == "bf16" else contextlib.nullcontext():
                loss = forward(**inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return {
        EAGER: lambda: turns.timed(lambda: do_updates(model), updates),
        COMPILED: lambda: turns.timed(lambda: do_updates(compiled), updates),
    }


def traced(function, updates, folder):
    """Time in each type of operation, summed over threads, from the profiler's trace."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    tf.profiler.experimental.start(f"{folder}/trace")
    started = time.perf_counter()
    function()
    elapsed = time.perf_counter() - started
    tf.profiler.experimental.stop()
    (path,) = pathlib.Path(folder, "trace").glob("**/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    path.unlink()
    totals, counts = {}, {}
    for plane in space.planes:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            for event in line.events:
                name, colon, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
                kind = kind.partition("#")[0]
                is_operation = colon and not name.endswith(":") and kind.lstrip("_").isalnum()
                if is_operation and kind not in _CALLS:  # a C++ method has two colons
                    totals[kind] = totals.get(kind, 0.0) + event.duration_ps / 1e9 / updates
                    counts[kind] = counts.get(kind, 0) + 1 / updates
    return {"ms": 1000 * elapsed / updates, "by_type": totals, "counts": counts}


_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While"}  # their bodies are counted


def throughput_report(results):
    labels = {
        LOOP: "ours, `run_pretraining`'s loop, LAMB",
        BARE: "ours, a bare `tf.function`, LAMB",
        JAX: "ours, the loop of `--engine=jax`, LAMB",
        EAGER: "Hugging Face, eager, fused AdamW",
        COMPILED: "Hugging Face, `torch.compile`, fused AdamW",
    }
    lines = turns.table("tokens/s", "{:,.0f}", results, labels, lambda _: BATCH_SIZE * LENGTH)
    rounds, load = turns.rounds(results), turns.idle_load(results)
    return f"""# Throughput of pre-training, {datetime.date.today():%B %Y}

{turns.made_on()}

Batch {BATCH_SIZE} × {LENGTH}, {PREDICTIONS} predictions, hidden size 768, vocabulary 30,522, \
dropout 0.1 throughout; {rounds} rounds in alternation, all ways in each. The process whose turn \
it was not used at most {100 * load:.1f} % of one core. Tokens a second are medians.

{chr(10).join(lines)}

The peer: `BertForPreTraining` with sdpa attention, the fused tanh GELU, all cores, the same \
dropout, `torch.autocast` for bfloat16, AdamW with `fused=True`. It projects all {LENGTH} \
positions of a sequence to the vocabulary, ours the {PREDICTIONS} masked ones: that is the model \
its users have, and a part of the difference. Our update is LAMB, which does more than AdamW.
"""


def profile_report(profiles):
    parts = []
    for cell, trace in profiles.items():
        total = sum(trace["by_type"].values())
        largest = sorted(trace["by_type"].items(), key=lambda item: -item[1])[:20]
        rows = "".join(
            f"\n| {kind} | {trace['counts'][kind]:.0f} | {ms:.1f} | {100 * ms / total:.1f} % |"
            for kind, ms in largest
        )
        parts.append(
            f"## {cell}: {trace['ms']:.0f} ms an update, traced\n\n"
            f"| operation | number | ms, summed | share |\n|---|---|---|---|{rows}\n"
        )
    return f"""# Where the time of an update goes, {datetime.date.today():%B %Y}

{turns.made_on()}

The bare `tf.function` of forward pass, backward pass and update under TensorFlow's profiler; the \
20 largest types of operation. Operations that run beside each other overlap, so their \
sum exceeds the duration of the update.

{chr(10).join(parts)}
"""


if __name__ == "__main__":
    main()
