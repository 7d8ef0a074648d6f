r"""Predicts the words at [MASK] with a pre-trained model: a quick check of what it has learned.

    lamb-bert fill-blanks --model_dir=demo_output/model \
        "Return the [MASK] of the list."

In Python, `official_bert.load(folder).predict(texts)` does the same.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from official_bert.commands import commands
from official_bert.prediction import loading
from official_bert.system import local_paths

if TYPE_CHECKING:
    from official_bert.prediction.blank_filler import Guess

FLAGS = flags.FLAGS


def describe(text: str, guesses: Sequence[Sequence["Guess"]]) -> str:
    """A text with the guesses for its blanks below it, for the screen."""
    lines = [f"  {text}"]
    for blank in guesses:
        lines.append("      " + "   ".join(f"{g.token} {g.probability:.0%}" for g in blank))
    return "\n".join(lines)


def main(texts: list[str]) -> None:
    if not texts:
        raise ValueError(
            "the arguments must be sentences with blanks; got none. Give at least one, such as "
            '"Return the [MASK] of the list."'
        )
    local_paths.require_local(model_dir=FLAGS.model_dir, vocab_file=FLAGS.vocab_file)
    filler = loading.load(FLAGS.model_dir, FLAGS.vocab_file, FLAGS.do_lower_case)
    from official_bert.prediction.blank_filler import BlankFiller

    if not isinstance(filler, BlankFiller):
        raise ValueError(
            f"--model_dir must have a masked-LM head; got {filler!r}. Give a pre-trained model."
        )
    for text, guesses in zip(texts, filler.predict(texts)):
        print(describe(text, guesses))


def _define_flags():
    flags.DEFINE_string(
        "model_dir", None, "Folder of a run, or any checkpoint. Required.", required=True
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "Vocabulary: a vocab.txt or tokenizer.json. Default: from the model's folder.",
    )
    flags.DEFINE_bool(
        "do_lower_case",
        None,
        "Whether the vocabulary is uncased. Default: as in tokenizer.json or "
        "tokenizer_config.json; else whether it has no upper-case letter.",
    )


if __name__ == "__main__":
    _define_flags()
    commands.run(main, arguments=True)
