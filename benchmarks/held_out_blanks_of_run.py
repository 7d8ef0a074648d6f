"""A table of blanks in held-out sentences, filled by the model of a finished run.

    python benchmarks/held_out_blanks_of_run.py --model_dir=model --vocab_file=vocab.txt \
        --text=held_out.txt --output=docs/results/small_wiki_blanks.md

The demo's rule chooses sentences and words; it does not depend on the model.
"""

import collections
import pathlib
import tempfile

from absl import app, flags

from official_bert.data import corpus
from official_bert.demonstration import held_out_blanks
from official_bert.prediction import loading
from official_bert.system.whole_files import write_text

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "Folder of a finished run.", required=True)
flags.DEFINE_string("vocab_file", None, "The model's vocabulary, an uncased one.", required=True)
flags.DEFINE_string("text", None, "Held-out text in any form of `corpus`.", required=True)
flags.DEFINE_string("output", None, "The table to write, in Markdown.", required=True)
flags.DEFINE_integer("shown", 20, "Number of blanks in the table.")
flags.DEFINE_integer("counted", 250, "Number of blanks for the count of right guesses.")


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "lines.txt")
        documents = corpus.Corpus([FLAGS.text], "auto").documents()
        lines.write_text("\n\n".join("\n".join(corpus.sentences(d)) for d in documents) + "\n")
        shown, counted = (
            held_out_blanks.choose(str(lines), FLAGS.vocab_file, count)
            for count in (FLAGS.shown, FLAGS.counted)
        )
    untrained = loading.load(FLAGS.model_dir, FLAGS.vocab_file, step=0)
    trained = loading.load(FLAGS.model_dir, FLAGS.vocab_file)
    before, after = guesses(untrained, shown), guesses(trained, shown)
    hits = held_out_blanks.hits(counted, guesses(trained, counted))
    table = held_out_blanks.table(shown, before, after)
    words = collections.Counter(blank.word for blank in counted).most_common(3)
    counts = (
        f"Of {len(counted)} blanks chosen alike, the hidden word is among the model's first three "
        f"words in {hits}. Always answering the three commonest of the hidden words, "
        f"{', '.join(word for word, _ in words)}, would be right in {sum(n for _, n in words)}.\n"
    )
    write_text(FLAGS.output, f"{table}\n{counts}")


def guesses(filler, blanks):
    sentences = [blank.sentence for blank in blanks]
    return [of_blanks[0] for of_blanks in filler.predict(sentences, 3, words_only=True)]


if __name__ == "__main__":
    app.run(main)
