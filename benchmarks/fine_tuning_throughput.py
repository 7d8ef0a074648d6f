"""Sequences per second of fine-tuning, beside Hugging Face's models in PyTorch.

    python benchmarks/fine_tuning_throughput.py [--rounds=5] [--only="sentences, fp32"]

BERT-Base classifies sentences (16 × 128) and finds answers in texts (4 × 384). The two sides are
processes that stay alive and take turns: the loop that `run_classifier` and `run_squad` train with,
and the peer, eager and compiled, whose updates get the same batch again and again. Both update by
AdamW, with dropout. Text, vocabulary and questions are made of the documentation of Python.
"""

import argparse
import contextlib
import datetime
import json
import pathlib
import tempfile

import machine
import numpy as np
import turns

KINDS = {"sentences": (16, 128), "answers": (4, 384)}  # batch size, length
CELLS = {f"{kind}, {dtype}": (kind, dtype) for kind in KINDS for dtype in ("fp32", "bf16")}
OURS, EAGER, COMPILED = "ours", "eager", "compiled"
LABELS = {
    OURS: "ours, the whole loop",
    EAGER: "Hugging Face, eager",
    COMPILED: "Hugging Face, `torch.compile`",
}
UPDATES = 2  # per turn


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way, in alternation")
    parser.add_argument("--only", choices=list(CELLS), action="append", help="rows to measure")
    parser.add_argument("--layers", type=int, default=12, help="encoder layers of the model")
    parser.add_argument("--output_dir", type=pathlib.Path, default="benchmarks/results")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, cell, layers, folder = arguments.worker
        ways = {"ours": our_ways, "peer": peer_ways}[side]
        turns.take(lambda: ways(cell, int(layers), pathlib.Path(folder)))
        return
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    results = {}
    for cell in arguments.only or CELLS:  # written after each: a run cut short keeps what it has
        results[cell] = measure(cell, arguments.layers, arguments.rounds)
        values = {"layers": arguments.layers, "results": results}
        path = arguments.output_dir / "fine_tuning_throughput"
        turns.write(path, values, report(arguments.layers, results))


def measure(cell, layers, rounds):
    """Seconds per update of each way, by round; what could not be run, by its error."""
    with (
        tempfile.TemporaryDirectory() as folder,
        turns.Worker(__file__, "ours", cell, str(layers), folder) as ours,  # writes the batch
        turns.Worker(__file__, "peer", cell, str(layers), folder) as peer,
    ):
        return turns.measure(cell, {OURS: ours, EAGER: peer, COMPILED: peer}, rounds)


# Ours


def our_ways(cell, layers, folder):
    import loop_overhead

    from official_bert.model.config import BertConfig
    from official_bert.stages import Optimizer, Run, Stage
    from official_bert.system import memory

    kind, dtype = CELLS[cell]
    batch_size, length = KINDS[kind]
    memory.tune_malloc()  # as the commands do
    task, file = make_task(kind, folder)
    stage = Stage(steps=100_000, batch_size=batch_size, max_seq_length=length, learning_rate=2e-5)
    run = Run(
        config=BertConfig(num_hidden_layers=layers),
        stages=(stage,),
        optimizer=Optimizer(type="adamw"),
        input_files=(str(file),),
        dtype=dtype,
        task=task,
    )
    trainer, by_loop = loop_overhead.make_loop(run, UPDATES, folder / "model")
    np.savez(folder / "batch.npz", **trainer._records.training(stage)[0])
    return {OURS: lambda: turns.timed(by_loop, UPDATES)}


def make_task(kind, folder):
    """The task, and the file of its examples."""
    from official_bert.data import tokenization
    from official_bert.demonstration import stdlib_text

    paragraphs = [
        text for _, lines in stdlib_text.documents() for text in lines if len(text.split()) > 20
    ][:3000]
    vocab_file = str(folder / "vocab.txt")
    tokenization.learn(paragraphs, vocab_file, 4096)
    make = {"sentences": make_sentences, "answers": make_questions}[kind]
    return make(paragraphs, vocab_file, folder)


def make_sentences(paragraphs, vocab_file, folder):
    """Every paragraph is a sentence of one of two classes."""
    from official_bert.tasks.classification import Classification
    from official_bert.tasks.labels import Classes
    from official_bert.tasks.tables import Columns

    file = folder / "train.jsonl"
    rows = [{"sentence": text, "label": str(i % 2)} for i, text in enumerate(paragraphs)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns("sentence", None, "label")
    return Classification(labels=Classes(("0", "1")), columns=columns, vocab_file=vocab_file), file


def make_questions(paragraphs, vocab_file, folder):
    """Of every five paragraphs in a row, what words come after the first eight of the third?"""
    from official_bert.tasks.squad import QuestionAnswering

    file = folder / "train.json"
    entries = []
    for first in range(0, len(paragraphs) - 5, 5):
        words = paragraphs[first + 2].split()
        before = " ".join(paragraphs[first : first + 2])
        question = {
            "id": str(first),
            "question": " ".join(words[:8]),
            "answers": [
                {
                    "text": " ".join(words[8:12]),
                    "answer_start": len(before) + len(" ".join(words[:8])) + 2,
                }
            ],
        }
        context = " ".join([before, " ".join(words), *paragraphs[first + 3 : first + 5]])
        entries.append({"context": context, "qas": [question]})
    file.write_text(json.dumps({"data": [{"paragraphs": entries}]}))
    return QuestionAnswering(vocab_file=vocab_file), file


# The peer


def peer_ways(cell, layers, folder):
    import torch
    import transformers

    kind, dtype = CELLS[cell]
    torch.set_num_threads(machine.cores())
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_act="gelu_pytorch_tanh",  # our formula, in PyTorch's fused kernel
        attn_implementation="sdpa",
        num_labels=2,
    )
    classes = {
        "sentences": transformers.BertForSequenceClassification,
        "answers": transformers.BertForQuestionAnswering,
    }
    model = classes[kind](config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    compiled = torch.compile(model)
    with np.load(folder / "batch.npz") as arrays:
        batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    del batch["example_weights"]
    inputs = {names.get(name, name): tensor for name, tensor in batch.items()}

    def do_updates(forward):
        for _ in range(UPDATES):
            mixed = torch.autocast("cpu", torch.bfloat16)
            with mixed if dtype == "bf16" else contextlib.nullcontext():
                loss = forward(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return {
        EAGER: lambda: turns.timed(lambda: do_updates(model), UPDATES),
        COMPILED: lambda: turns.timed(lambda: do_updates(compiled), UPDATES),
    }


# The table


def report(layers, results):
    lines = turns.table("sequences/s", "{:.2f}", results, LABELS, lambda c: KINDS[CELLS[c][0]][0])
    rounds, load = turns.rounds(results), turns.idle_load(results)
    return f"""# Throughput of fine-tuning, {datetime.date.today():%B %Y}

{turns.made_on()}

BERT-Base's width, {layers} layers, vocabulary 30,522, dropout 0.1; sentences in batches of \
16 × 128, texts with their questions in batches of 4 × 384; {rounds} rounds in alternation, all \
ways in each, {UPDATES} updates in a round. The process whose turn it was not used at most \
{100 * load:.1f} % of one core. Sequences per second are medians.

{chr(10).join(lines)}

The peer: `BertForSequenceClassification` and `BertForQuestionAnswering` with sdpa attention, \
the fused tanh GELU, the same dropout, `torch.autocast` for bfloat16, and AdamW with `fused=True`. \
Ours is the loop of `run_classifier` and `run_squad`, with the reading of the examples, the log \
and the progress line.
"""


if __name__ == "__main__":
    main()
