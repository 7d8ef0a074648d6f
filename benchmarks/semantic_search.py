"""Searches for the paragraph of each SQuAD question by vectors, and measures the recall.

    python benchmarks/semantic_search.py --model_dir=MODEL --squad_file=squad/dev-v1.1.json

Every question looks for its own among all paragraphs of the file, by the cosine of vectors. The
vectors are `embed`'s of a model pre-trained by `lamb-bert pretrain`, of the same model before its
first update, and TF-IDF by scikit-learn. Recall@k is the share of questions whose paragraph is
among the first k; a paragraph as near as the right one counts as nearer. The records replace those
of before.

Needs scikit-learn.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import time

import evidence
import machine
import numpy as np
import trials

from official_bert.prediction import loading
from official_bert.system.whole_files import write_text
from official_bert.tasks import squad_data

RESULTS = evidence.ROOT / "benchmarks/results/semantic_search.jsonl"
PAGE = evidence.ROOT / "docs/vectors.md"
FIRST = (1, 10)  # paragraphs
WAYS = {
    "pre-trained": "the model, pre-trained",
    "untrained": "the same model before its first update",
    "TF-IDF": "TF-IDF (scikit-learn)",
}
_QUESTIONS_AT_ONCE = 256


def vectors_of(way, folder, paragraphs, questions):
    """The vectors of paragraphs and of questions, with length 1: arrays or sparse matrices."""
    if way == "TF-IDF":
        from sklearn.feature_extraction.text import TfidfVectorizer

        model = TfidfVectorizer()
        return model.fit_transform(paragraphs), model.transform(questions)
    model = loading.load(folder, step=None if way == "pre-trained" else 0)
    return model.embed(paragraphs), model.embed(questions)


def places(paragraphs, questions, right):
    """The place of the right paragraph of each question, from 0.

    Args:
        paragraphs, questions: Vectors of length 1, (P, H) and (Q, H).
        right: The number of each question's paragraph, (Q,).
    """
    found = []
    for start in range(0, len(right), _QUESTIONS_AT_ONCE):
        part = slice(start, start + _QUESTIONS_AT_ONCE)
        cosines = questions[part] @ paragraphs.T
        cosines = cosines if isinstance(cosines, np.ndarray) else cosines.toarray()
        of_right = np.take_along_axis(cosines, right[part, None], axis=1)
        found.append((cosines >= of_right).sum(axis=1) - 1)
    return np.concatenate(found)


def read(path):
    """The paragraphs of a file, its questions, and the number of each question's paragraph."""
    questions = squad_data.read(path).questions
    paragraphs = list(dict.fromkeys(question.context for question in questions))
    numbers = {paragraph: number for number, paragraph in enumerate(paragraphs)}
    right = np.array([numbers[question.context] for question in questions])
    return paragraphs, [question.text for question in questions], right


def about_model(folder):
    """Shape and training of a model, in words."""
    run = json.loads((folder / "run.json").read_text())
    shape, stages = run["config"], run["stages"]
    trained = ", ".join(f"{s['steps']} × {s['batch_size']} × {s['max_seq_length']}" for s in stages)
    return {
        "layers": shape["num_hidden_layers"],
        "width": shape["hidden_size"],
        "word_pieces": shape["vocab_size"],
        "stages": trained,
    }


def measure(folder, path):
    """A record for each way."""
    paragraphs, questions, right = read(path)
    about = {
        "model": about_model(folder),
        "data": hashlib.sha256("\0".join([*paragraphs, *questions]).encode()).hexdigest()[:16],
        "paragraphs": len(paragraphs),
        "questions": len(questions),
        "machine": trials.about_machine(),
        "date": datetime.date.today().isoformat(),
        "command": machine.command(),
    }
    for way in WAYS:
        started = time.process_time()
        found = places(*vectors_of(way, folder, paragraphs, questions), right)
        yield {
            "way": way,
            **{f"recall_at_{k}": float((found < k).mean()) for k in FIRST},
            "cpu_seconds": time.process_time() - started,
            **about,
        }


def kept():
    """The page and its table; see `evidence`."""
    yield PAGE, contents([json.loads(line) for line in RESULTS.read_text().splitlines()])


def contents(records):
    """The table of the page of records."""
    rows = [(WAYS[one["way"]], *(f"{one[f'recall_at_{k}']:.1%}" for k in FIRST)) for one in records]
    head = "vectors", *(f"recall@{k}" for k in FIRST)
    return evidence.Contents("Vectors", {"semantic search": [head, *rows]}, [RESULTS])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model_dir", type=pathlib.Path, required=True, help="the folder of a pre-training run")
    add("--squad_file", required=True, help="questions in the form of SQuAD")
    add("--results", type=pathlib.Path, default=RESULTS, help="the records to write")
    options = parser.parse_args()
    records = []
    for record in measure(options.model_dir, options.squad_file):
        records.append(record)
        print(json.dumps(record), flush=True)
    write_text(options.results, "".join(f"{json.dumps(record)}\n" for record in records))
    print(evidence.table(contents(records).tables["semantic search"]))


if __name__ == "__main__":
    main()
