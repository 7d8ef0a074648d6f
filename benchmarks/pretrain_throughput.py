"""Tokens a second of pre-training, beside Hugging Face's `BertForPreTraining` in PyTorch.

    python benchmarks/pretrain_throughput.py [--rounds=5] [--only="4 layers, fp32"]
    python benchmarks/pretrain_throughput.py --profile

The two sides are processes that stay alive and take turns, so each round measures both under the
same conditions: the loop of `run_pretraining` with records from disk, then the same model as a bare
`tf.function` of forward pass, backward pass and update, then the peer, eager and compiled. The
peer gets the first of our batches, again and again. `--profile` instead says which operations the
time of the bare function goes to.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import numpy as np

BATCH_SIZE, LENGTH, PREDICTIONS = 16, 128, 20
CELLS = {  # layers, data type, updates a turn, what is asked: ours / the better peer
    "4 layers, fp32": (4, "fp32", 2, 2.2),
    "4 layers, bf16": (4, "bf16", 3, 1.5),
    "BERT-Base, fp32": (12, "fp32", 1, 1.5),
    "BERT-Base, bf16": (12, "bf16", 1, 1.5),
}
LOOP, BARE, EAGER, COMPILED = "loop", "bare", "eager", "compiled"
BARE_ASKED = 0.95  # the loop's rate / that of the bare function
SIDES = {"ours": (LOOP, BARE), "peer": (EAGER, COMPILED)}


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
        with Worker("records", "-", folder):
            pass
        if arguments.profile:
            profiles = {cell: profile(cell, folder) for cell in cells}
            write(arguments.output_dir / "pretrain_profile", profiles, profile_report(profiles))
        else:
            results = {}
            for cell in cells:  # written after each, so that a run cut short keeps what it has
                results[cell] = measure(cell, folder, arguments.rounds)
                name = arguments.output_dir / "pretrain_throughput"
                write(name, results, throughput_report(results))


def write(path, values, text):
    path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    print(text)


def measure(cell, folder, rounds):
    """Seconds an update of each way, by round; what could not be run, by its error."""
    seconds, errors, idle = {}, {}, []
    with Worker("ours", cell, folder) as ours, Worker("peer", cell, folder) as peer:
        workers = {LOOP: ours, BARE: ours, EAGER: peer, COMPILED: peer}
        for way, worker in workers.items():
            started = time.perf_counter()
            warm = worker.ask(way)  # builds and compiles
            print(f"{cell}, {way}: built in {time.perf_counter() - started:.0f} s", file=sys.stderr)
            if "error" in warm:
                errors[way] = warm["error"]
            else:
                seconds[way] = []
        for way in seconds:  # the first turn after the others were built is a slow one
            workers[way].ask(way)
        for index in range(rounds):
            for way in seconds:
                answer = workers[way].ask(way)
                seconds[way].append(answer["seconds"])
                idle.append(answer["idle_load"])
            latest = ", ".join(f"{way} {values[-1]:.2f} s" for way, values in seconds.items())
            print(f"{cell}, round {index + 1}: {latest}", file=sys.stderr)
    return {"seconds": seconds, "errors": errors, "idle_load": max(idle, default=0.0)}


def profile(cell, folder):
    """Seconds of CPU time an update by type of operation."""
    with Worker("ours", cell, folder) as ours:
        ours.ask(BARE)
        ours.ask(BARE)
        return ours.ask("profile")


class Worker:
    """A process that does as it is told on a pipe, and sleeps in between."""

    def __init__(self, side, cell, folder):
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
            "PYTHONPATH": str(pathlib.Path(__file__).parents[1]),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", side, cell, folder],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        self._answer()  # it is ready
        return self

    def ask(self, way):
        self._process.stdin.write(way + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"A worker ended with status {self._process.wait()}; see above.")
        return json.loads(line)

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()


def work(side, cell, folder):
    """A worker's life: makes its functions, then answers each line with a measurement."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no answer

        def answer(values):
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        ways = {"ours": our_ways, "peer": peer_ways, "records": make_records}[side](cell, folder)
        answer({})
        rested, cpu = time.perf_counter(), time.process_time()
        for line in sys.stdin:
            waited = time.perf_counter() - rested
            idle = (time.process_time() - cpu) / waited if waited > 1 else 0.0  # else too short
            try:
                answer({**ways[line.strip()](), "idle_load": idle})
            except Exception as error:  # a compiler may be missing: the table says so
                answer({"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
            time.sleep(0.3)  # thread pools fall asleep
            rested, cpu = time.perf_counter(), time.process_time()


def make_records(_, folder):
    import loop_overhead

    loop_overhead.make_records(pathlib.Path(folder))
    return {}


def our_ways(cell, folder):
    import loop_overhead

    from official_bert.data import input_pipeline
    from official_bert.model.config import BertConfig

    layers, dtype, updates, _ = CELLS[cell]
    records = f"{folder}/records"
    model_dir = pathlib.Path(folder) / cell
    config = BertConfig(num_hidden_layers=layers)
    loop, bare = loop_overhead.make_both(config, BATCH_SIZE, updates, records, model_dir, dtype)
    batches = input_pipeline.Batches([records], BATCH_SIZE, LENGTH, PREDICTIONS, seed=0)
    np.savez(f"{folder}/batch.npz", **batches[0])
    return {
        LOOP: lambda: timed(loop, updates),
        BARE: lambda: timed(bare, updates),
        "profile": lambda: traced(bare, updates, folder),
    }


def peer_ways(cell, folder):
    import torch
    import transformers

    layers, dtype, updates, _ = CELLS[cell]
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
        batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    labels = torch.full_like(batch["input_ids"], -100)
    rows, columns = torch.nonzero(batch["masked_lm_weights"], as_tuple=True)
    positions = batch["masked_lm_positions"][rows, columns]
    labels[rows, positions] = batch["masked_lm_ids"][rows, columns]

    def do_updates(forward):
        for _ in range(updates):
            mixed = torch.autocast("cpu", torch.bfloat16)
            with mixed if dtype == "bf16" else contextlib.nullcontext():
                loss = forward(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["input_mask"],
                    token_type_ids=batch["segment_ids"],
                    labels=labels,
                    next_sentence_label=batch["next_sentence_labels"].reshape(-1),
                ).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return {
        EAGER: lambda: timed(lambda: do_updates(model), updates),
        COMPILED: lambda: timed(lambda: do_updates(compiled), updates),
    }


def timed(function, updates):
    started = time.perf_counter()
    function()
    return {"seconds": (time.perf_counter() - started) / updates}


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
    tokens = BATCH_SIZE * LENGTH
    lines = [
        "| work | way | tokens/s | ours / it, median of rounds | fewest, most | asked |",
        "|---|---|---|---|---|---|",
    ]
    labels = {
        LOOP: "ours, `run_pretraining`'s loop, LAMB",
        BARE: "ours, a bare `tf.function`, LAMB",
        EAGER: "Hugging Face, eager, fused AdamW",
        COMPILED: "Hugging Face, `torch.compile`, fused AdamW",
    }
    for cell, result in results.items():
        seconds = result["seconds"]
        peers = [way for way in SIDES["peer"] if way in seconds]
        best = min(peers, key=lambda way: statistics.median(seconds[way]), default=None)
        for way, label in labels.items():
            if way in result["errors"]:
                lines.append(f"| {cell} | {label} | failed: {result['errors'][way]} | | | |")
                continue
            rate = tokens / statistics.median(seconds[way])
            ratios = [s / loop for s, loop in zip(seconds[way], seconds[LOOP], strict=True)]
            asked = {BARE: BARE_ASKED, best: CELLS[cell][3]}.get(way)
            lines.append(
                f"| {cell} | {label} | {rate:,.0f} | {statistics.median(ratios):.2f} "
                f"| {min(ratios):.2f}, {max(ratios):.2f} | {f'≥ {asked}' if asked else ''} |"
            )
    rounds = max(len(values) for r in results.values() for values in r["seconds"].values())
    load = max(result["idle_load"] for result in results.values())
    return f"""# Throughput of pre-training, {datetime.date.today():%B %Y}

{made_on()}

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

{made_on()}

The bare `tf.function` of forward pass, backward pass and update under TensorFlow's profiler; the \
20 largest types of operation. Operations that run beside each other overlap, so their \
sum exceeds the duration of the update.

{chr(10).join(parts)}
"""


def made_on():
    arguments = " ".join(f'"{a}"' if " " in a else a for a in sys.argv[1:])
    packages = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "torch", "transformers")
    return (
        f"`{f'python benchmarks/pretrain_throughput.py {arguments}'.strip()}` on "
        f"{machine.describe(*packages)}."
    )


if __name__ == "__main__":
    main()
