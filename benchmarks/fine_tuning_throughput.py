"""Sequences per second of fine-tuning, compared with Hugging Face's models in PyTorch.

    python benchmarks/fine_tuning_throughput.py [--rounds=5] [--only="sentences, fp32"]

BERT-Base classifies sentences (16 × 128) and finds answers in texts (4 × 384). The two sides are
processes that stay alive and take turns: the loop of `run_classifier` and `run_squad`, and the
peer, eager and compiled, which trains on the same batch again and again. Both update by AdamW, with
dropout. Text, vocabulary and questions are made from Python's documentation.
"""

import argparse
import json
import pathlib
import tempfile

import loops
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


ABOUT = (
    "BERT-Base's width, {} layers, vocabulary 30,522, dropout 0.1; sentences in batches of "
    f"16 × 128, texts with their questions in batches of 4 × 384; {UPDATES} updates in a round; "
)
THE_PEER = (
    "The peer: `BertForSequenceClassification` and `BertForQuestionAnswering` with sdpa attention, "
    "the fused tanh GELU, the same dropout, `torch.autocast` for bfloat16, and AdamW with "
    "`fused=True`. Ours is the loop of `run_classifier` and `run_squad`, with the reading of the "
    "examples, the log and the progress line."
)


def main():
    layers = 12, "encoder layers of the model"
    parser = machine.parser(__doc__, rounds=(5, "turns of each way, in alternation"), layers=layers)
    parser.add_argument("--only", choices=list(CELLS), action="append", help="rows to measure")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, cell, layers, folder = arguments.worker
        ways = {"ours": our_ways, "peer": peer_ways}[side]
        turns.take(lambda: ways(cell, int(layers), pathlib.Path(folder)))
        return
    results = {}
    for cell in arguments.only or CELLS:  # written after each: a run cut short keeps its results
        results[cell] = measure(cell, arguments.layers, arguments.rounds)
        amount = lambda cell: KINDS[CELLS[cell][0]][0]  # noqa: E731
        rows = turns.table("sequences/s", "{:.2f}", results, LABELS, amount)
        about = ABOUT.format(arguments.layers) + turns.conditions(results)
        text = machine.page("Throughput of fine-tuning", about, rows, THE_PEER)
        values = {"layers": arguments.layers, "results": results}
        machine.write(arguments.output_dir / "fine_tuning_throughput.md", text, values)


def measure(cell, layers, rounds):
    """Seconds per update of each way, by round; the error of each way that failed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        turns.Worker(__file__, "ours", cell, str(layers), folder) as ours,  # writes the batch
        turns.Worker(__file__, "peer", cell, str(layers), folder) as peer,
    ):
        return turns.measure(cell, {OURS: ours, EAGER: peer, COMPILED: peer}, rounds)


# The sides


def our_ways(cell, layers, folder):
    from official_bert.model.config import BertConfig
    from official_bert.stages import Optimizer

    kind, dtype = CELLS[cell]
    batch_size, length = KINDS[kind]
    task, file = make_task(kind, folder)
    values = {"optimizer": Optimizer(type="adamw"), "dtype": dtype, "task": task}
    config = BertConfig(num_hidden_layers=layers)
    run = loops.make_run(config, file, batch_size, length, 0, **values)
    trainer, by_loop = loops.trainer_loop(run, UPDATES, folder / "model")
    np.savez(folder / "batch.npz", **trainer._records.training(run.stages[0])[0])
    return {OURS: lambda: turns.timed(by_loop, UPDATES)}


def peer_ways(cell, layers, folder):
    import hugging_face
    import torch

    kind, dtype = CELLS[cell]
    name = {"sentences": "SequenceClassification", "answers": "QuestionAnswering"}[kind]
    model = hugging_face.fast_model(f"BertFor{name}", num_hidden_layers=layers, num_labels=2)
    with np.load(folder / "batch.npz") as arrays:
        batch = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    del batch["example_weights"]
    inputs = {names.get(name, name): tensor for name, tensor in batch.items()}
    eager, compiled = hugging_face.updates(model, inputs, dtype, UPDATES, clipnorm=1.0)
    return {
        EAGER: lambda: turns.timed(eager, UPDATES),
        COMPILED: lambda: turns.timed(compiled, UPDATES),
    }


# The examples


def make_task(kind, folder):
    """The task, and the file of its examples."""
    from official_bert.data import tokenization
    from official_bert.demonstration import stdlib_text

    paragraphs = [
        text for _, lines in stdlib_text.documents() for text in lines if len(text.split()) > 20
    ][:3000]
    vocab_file = str(folder / "vocab.txt")
    tokenization.learn(paragraphs, vocab_file, 4096)
    make = make_sentences if kind == "sentences" else make_questions
    return make(paragraphs, vocab_file, folder)


def make_sentences(paragraphs, vocab_file, folder):
    """Takes every paragraph as a sentence of one of two classes."""
    from official_bert.tasks.classification import Classification
    from official_bert.tasks.labels import Classes
    from official_bert.tasks.tables import Columns

    file = folder / "train.jsonl"
    rows = [{"sentence": text, "label": str(i % 2)} for i, text in enumerate(paragraphs)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns("sentence", None, "label")
    return Classification(labels=Classes(("0", "1")), columns=columns, vocab_file=vocab_file), file


def make_questions(paragraphs, vocab_file, folder):
    """Asks for the four words after the first eight of the third of every five paragraphs."""
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


if __name__ == "__main__":
    main()
