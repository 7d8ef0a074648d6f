"""How often word pieces differ from those of Google's tokenizer, on all sentences of a text.

    python benchmarks/tokenizer_agreement.py --text=enwiki_sample.txt \\
        --uncased=bert-base-uncased-vocab.txt --cased=bert-base-cased-vocab.txt

Google's tokenizer is the one written out in tests/support/google_tokenizer.py.
"""

import functools
import multiprocessing
import os
import pathlib
import sys

from absl import app, flags

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests/support"))

import google_tokenizer

from official_bert.data import corpus, tokenization

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "A file of text.")
flags.DEFINE_string("uncased", None, "An uncased vocabulary.")
flags.DEFINE_string("cased", None, "A cased vocabulary.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")
flags.mark_flags_as_required(["text", "uncased", "cased"])

PARTS = 16


def main(_):
    lines = [
        "# Word pieces against Google's tokenizer",
        "",
        f"`python benchmarks/tokenizer_agreement.py` on {os.path.basename(FLAGS.text)}.",
        "",
        "| vocabulary | sentences | that differ | agreement | words that differ |",
        "|---|---|---|---|---|",
    ]
    for vocab_file, lower in ((FLAGS.uncased, True), (FLAGS.cased, False)):
        jobs = [(FLAGS.text, vocab_file, lower, part) for part in range(PARTS)]
        with multiprocessing.get_context("spawn").Pool() as pool:
            results = pool.starmap(compare, jobs, chunksize=1)
        total = sum(sentences for sentences, _ in results)
        different = [word for _, words in results for word in words]
        name = os.path.basename(vocab_file).removesuffix("-vocab.txt")
        agreement = f"{1 - len(different) / total:.4%}"
        shown = ", ".join(different[:10])
        lines.append(f"| {name} | {total:,} | {len(different)} | {agreement} | {shown} |")
    text = "\n".join(lines) + "\n"
    print(text)
    (pathlib.Path(FLAGS.output_dir) / "data_tokenizer_agreement.md").write_text(text)


def compare(path: str, vocab_file: str, lower: bool, part: int) -> tuple[int, list[str]]:
    """Of every 16th document: how many sentences, and the word that differs in each that does."""
    vocabulary = tokenization.read_vocabulary(vocab_file)
    encode = tokenization.SentenceEncoder(tokenization.load(vocab_file, lower))

    @functools.cache  # it does not look across a space either
    def google(word: str) -> list[int]:
        return [vocabulary[p] for p in google_tokenizer.tokenize(word, vocabulary, lower)]

    total, different = 0, []
    for number, document in enumerate(corpus.documents([path])):
        if number % PARTS != part:
            continue
        sentences = corpus.sentences(document)
        total += len(sentences)
        for sentence, ids in zip(sentences, encode(sentences), strict=True):
            words = sentence.split(" ")
            if ids != [i for word in words for i in google(word)]:
                different += [w for w in words if encode([w]) != [google(w)]][:1]
    return total, different


if __name__ == "__main__":
    app.run(main)
