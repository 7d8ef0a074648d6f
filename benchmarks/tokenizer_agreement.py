"""How often word pieces differ from Google's tokenizer, on all sentences of a text.

    python benchmarks/tokenizer_agreement.py --text=enwiki_sample.txt \\
        --uncased=bert-base-uncased-vocab.txt --cased=bert-base-cased-vocab.txt

Google's tokenizer is written out in tests/support/google_reference.py.
"""

import functools
import multiprocessing
import os
import sys

import evidence
import machine

sys.path.append(str(evidence.ROOT / "tests/support"))

import google_reference

from official_bert.data import corpus, tokenization

PARTS = 16
HEAD = ("vocabulary", "sentences", "that differ", "agreement", "words that differ")


def main():
    parser = machine.parser(__doc__)
    for name, words in {
        "text": "a file of text",
        "uncased": "an uncased vocabulary",
        "cased": "a cased vocabulary",
    }.items():
        parser.add_argument(f"--{name}", required=True, help=words)
    given, rows = parser.parse_args(), []
    for vocab_file, lower in ((given.uncased, True), (given.cased, False)):
        jobs = [(given.text, vocab_file, lower, part) for part in range(PARTS)]
        with multiprocessing.get_context("spawn").Pool() as pool:
            results = pool.starmap(compare, jobs, chunksize=1)
        total = sum(sentences for sentences, _ in results)
        words = [word for _, found in results for word in found]
        name = os.path.basename(vocab_file).removesuffix("-vocab.txt")
        agreement = f"{1 - len(words) / total:.4%}"
        rows.append((name, f"{total:,}", len(words), agreement, ", ".join(words[:10])))
    text = machine.page("Word pieces compared with Google's tokenizer", [HEAD, *rows])
    machine.write(given.output_dir / "data_tokenizer_agreement.md", text)


def compare(path: str, vocab_file: str, lower: bool, part: int) -> tuple[int, list[str]]:
    """Number of sentences in every 16th document, and a word of each sentence that differs."""
    vocabulary = tokenization.read_vocabulary(vocab_file)
    encode = tokenization.SentenceEncoder(tokenization.load(vocab_file, lower))

    @functools.cache  # it does not look across a space either
    def google(word: str) -> list[int]:
        return [vocabulary[p] for p in google_reference.tokenize(word, vocabulary, lower)]

    total, different = 0, []
    for number, document in enumerate(corpus.Corpus([path]).documents()):
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
    main()
