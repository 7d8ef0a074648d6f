r"""Predicts the words at [MASK] with a pre-trained model: a quick check of a training.

    lamb-bert fill-blanks --model_dir=demo_output/model \
        "Return the [MASK] of the list."

In Python, `official_bert.load(folder).predict(texts)` does the same.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_bert.commands import commands
from official_bert.commands.training_settings import Casing
from official_bert.prediction import loading
from official_bert.system import local_paths
from official_bert.system.settings import documented, setting

if TYPE_CHECKING:
    from official_bert.prediction.predictors import Guess


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class FillBlanks(Casing):
    """The settings of the command; `arguments` are the texts."""

    arguments: tuple[str, ...] = ()
    model_dir: str = setting("Folder of a run, or any checkpoint.")
    vocab_file: str | None = setting(
        "Vocabulary: a vocab.txt or tokenizer.json. Default: from the model's folder.", None
    )


def describe(text: str, guesses: Sequence[Sequence["Guess"]]) -> str:
    """A text with the guesses for its blanks below it, for the screen."""
    lines = [f"  {text}"]
    for blank in guesses:
        lines.append("      " + "   ".join(f"{g.token} {g.probability:.0%}" for g in blank))
    return "\n".join(lines)


def main(args: FillBlanks) -> None:
    if not args.arguments:
        raise ValueError(
            "the arguments must be sentences with blanks; got none. Give at least one, such as "
            '"Return the [MASK] of the list."'
        )
    local_paths.require_local(model_dir=args.model_dir, vocab_file=args.vocab_file)
    lower, strip = args.do_lower_case, args.strip_accents
    filler = loading.load(args.model_dir, args.vocab_file, lower, strip_accents=strip)
    from official_bert.prediction.predictors import BlankFiller

    if not isinstance(filler, BlankFiller):
        raise ValueError(
            f"--model_dir must have a masked-LM head; got {filler!r}. Give a pre-trained model."
        )
    for text, guesses in zip(args.arguments, filler.predict(args.arguments)):
        print(describe(text, guesses))


if __name__ == "__main__":
    commands.run(main, FillBlanks)
