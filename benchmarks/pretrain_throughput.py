"""Tokens per second of pre-training, compared with Hugging Face's `BertForPreTraining` in PyTorch.

    python benchmarks/pretrain_throughput.py [--rounds=5] [--only="4 layers, fp32"]
    python benchmarks/pretrain_throughput.py --profile

The sides are processes that stay alive and take turns, so each round measures all of them under the
same conditions: the loop of `run_pretraining` with records from disk; its forward pass, backward
pass and update on one batch in memory; the loop of the JAX engine; and the peer, eager and
compiled, on the first of our batches. `--profile` instead shows which operations take the time of
our update.
"""

import argparse
import os
import pathlib
import tempfile
import time

import loops
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
LABELS = {
    LOOP: "ours, `run_pretraining`'s loop, LAMB",
    BARE: "ours, a bare `tf.function`, LAMB",
    JAX: "ours, the loop of `--engine=jax`, LAMB",
    EAGER: "Hugging Face, eager, fused AdamW",
    COMPILED: "Hugging Face, `torch.compile`, fused AdamW",
}
ABOUT = (
    f"Batch {BATCH_SIZE} × {LENGTH}, {PREDICTIONS} predictions, hidden size 768, vocabulary "
    "30,522, dropout 0.1 throughout; "
)
THE_PEER = (
    "The peer: `BertForPreTraining` with sdpa attention, the fused tanh GELU, all cores, the same "
    f"dropout, `torch.autocast` for bfloat16, AdamW with `fused=True`. It projects all {LENGTH} "
    f"positions of a sequence to the vocabulary, ours the {PREDICTIONS} masked ones: that is the "
    "model its users have, and a part of the difference. Our update is LAMB, which does more than "
    "AdamW."
)
PROFILE = (
    "The forward pass, backward pass and update under TensorFlow's profiler; the 20 largest types "
    "of operation. Operations run in parallel, so their sum exceeds the duration of the update."
)


def main():
    parser = machine.parser(__doc__, rounds=(5, "turns of each way, in alternation"))
    parser.add_argument("--only", choices=list(CELLS), action="append", help="rows to measure")
    parser.add_argument("--profile", action="store_true", help="where our time goes, instead")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, *given = arguments.worker
        turns.take(lambda: globals()[f"{side}_ways"](*given))
        return
    name = "pretrain_profile" if arguments.profile else "pretrain_throughput"
    report, results = profile_report if arguments.profile else throughput_report, {}
    with tempfile.TemporaryDirectory() as folder:
        with turns.Worker(__file__, "records", "-", folder):
            pass
        for cell in arguments.only or [
            c for c in CELLS if not arguments.profile or "4 layers" in c
        ]:
            if arguments.profile:
                results[cell] = profile(cell, folder)
            else:
                results[cell] = measure(cell, folder, arguments.rounds)
            # After each, so that a run cut short keeps its results.
            machine.write(arguments.output_dir / f"{name}.md", report(results), results)


def measure(cell, folder, rounds):
    """Seconds per update of each way, by round; the error of each way that failed."""
    with (
        turns.Worker(__file__, "our", cell, folder) as ours,  # it writes the batch for the peer
        turns.Worker(__file__, "jax", cell, folder) as on_jax,
        turns.Worker(__file__, "peer", cell, folder) as peer,
    ):
        workers = {LOOP: ours, BARE: ours, JAX: on_jax, EAGER: peer, COMPILED: peer}
        return turns.measure(cell, workers, rounds)


def profile(cell, folder):
    """Seconds of CPU time per update by type of operation."""
    with turns.Worker(__file__, "our", cell, folder) as ours:
        ours.ask(BARE)
        ours.ask(BARE)
        return ours.ask("profile")


# The sides, each in a process


def records_ways(_, folder):
    loops.make_records(pathlib.Path(folder))
    return {}


def run_of(cell, folder):
    from official_bert.model.config import BertConfig

    layers, dtype, updates = CELLS[cell]
    config = BertConfig(num_hidden_layers=layers)
    return loops.make_run(config, f"{folder}/records", BATCH_SIZE, dtype=dtype), updates


def our_ways(cell, folder):
    run, updates = run_of(cell, folder)
    trainer, loop = loops.trainer_loop(run, updates, pathlib.Path(folder) / cell)
    bare = loops.bare_updates(trainer, updates)
    np.savez(f"{folder}/batch.npz", **trainer._records.training(run.stages[0])[0])
    return {
        LOOP: lambda: turns.timed(loop, updates),
        BARE: lambda: turns.timed(bare, updates),
        "profile": lambda: traced(bare, updates, folder),
    }


def jax_ways(cell, folder):
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    from official_bert.engines.jax_mesh import JaxMesh

    run, updates = run_of(cell, folder)
    by_loop = loops.engine_loop(run, JaxMesh(), updates)
    return {JAX: lambda: turns.timed(by_loop, updates)}


def peer_ways(cell, folder):
    import hugging_face

    layers, dtype, updates = CELLS[cell]
    with np.load(f"{folder}/batch.npz") as arrays:
        inputs = hugging_face.inputs(arrays)
    model = hugging_face.fast_model("BertForPreTraining", num_hidden_layers=layers)
    eager, compiled = hugging_face.updates(model, inputs, dtype, updates)
    return {
        EAGER: lambda: turns.timed(eager, updates),
        COMPILED: lambda: turns.timed(compiled, updates),
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
    (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    for line in host.lines:
        for event in line.events:
            name, colon, kind = host.event_metadata[event.metadata_id].name.rpartition(":")
            kind = kind.partition("#")[0]
            is_operation = colon and not name.endswith(":") and kind.lstrip("_").isalnum()
            if is_operation and kind not in _CALLS:  # a C++ method has two colons
                totals[kind] = totals.get(kind, 0.0) + event.duration_ps / 1e9 / updates
                counts[kind] = counts.get(kind, 0) + 1 / updates
    return {"ms": 1000 * elapsed / updates, "by_type": totals, "counts": counts}


_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "While"}  # their bodies are counted


# The pages


def throughput_report(results):
    rows = turns.table("tokens/s", "{:,.0f}", results, LABELS, lambda _: BATCH_SIZE * LENGTH)
    about = ABOUT + turns.conditions(results)
    return machine.page("Throughput of pre-training", about, rows, THE_PEER)


def profile_report(profiles):
    parts = []
    for cell, trace in profiles.items():
        total = sum(trace["by_type"].values())
        largest = sorted(trace["by_type"].items(), key=lambda item: -item[1])[:20]
        rows = [
            (kind, f"{trace['counts'][kind]:.0f}", f"{ms:.1f}", f"{100 * ms / total:.1f} %")
            for kind, ms in largest
        ]
        parts.append(f"## {cell}: {trace['ms']:.0f} ms per update, traced")
        parts.append([("operation", "number", "ms, summed", "share"), *rows])
    return machine.page("Where the time of an update goes", PROFILE, *parts)


if __name__ == "__main__":
    main()
