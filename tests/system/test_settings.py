"""Settings: a dataclass' field is the flag, its check and its documentation."""

import dataclasses
import math

import pytest

from official_bert.commands import commands
from official_bert.commands.arguments import Arguments
from official_bert.system import settings
from official_bert.system.settings import like, names_like, setting, values_of


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """What a loop does.

    Raises:
        ValueError: if a value is out of range.
    """

    files: tuple[str, ...] = setting("Files to read.")
    steps: int = setting("Steps between lines.", 100, minimum=1)
    rate: float | None = setting("Learning rate; see --steps.", None, minimum=0)
    quiet: bool = setting("Whether nothing is printed.", False)

    def __post_init__(self):
        settings.check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Arguments):
    files: tuple[str, ...] = like(Loop, "files")
    log_steps: int | None = like(Loop, "steps", None, more="Default: as many as there are.")
    rate: float | None = like(Loop, "rate")
    quiet: bool = like(Loop, "quiet")
    form: str = setting("Format.", "auto", choices=("auto", "plain"))
    seed: int = setting("Random seed.", 1)


def test_flags_have_the_types_and_defaults_of_their_fields():
    given = ["--files=a, b", "--rate=0.5", "--quiet", "--form=plain"]
    parsed = commands.parse(Command, given)
    assert parsed == Command(files=("a", "b"), rate=0.5, quiet=True, form="plain")
    assert parsed.log_steps is None
    with pytest.raises(ValueError, match="^--files is required.$"):
        commands.parse(Command, [])
    with pytest.raises(ValueError, match="^--form must be auto or plain; got .other.\\.$"):
        commands.parse(Command, ["--files=a", "--form=other"])
    with pytest.raises(ValueError, match="^The arguments must be flags; got 'b'"):
        commands.parse(Command, ["--files=a", "b"])


def test_a_field_like_another_has_its_words_and_sets_it():
    words = {name: f.metadata["words"] for name, f in commands.flags_of(Command).items()}
    assert words["files"] == "Files to read."
    assert words["log_steps"] == "Steps between lines. Default: as many as there are."
    args = Command(files=("a",), log_steps=7)
    assert names_like(Loop, Command) == ("files", "log_steps", "rate", "quiet")
    assert Loop(**values_of(Loop, args)) == Loop(files=("a",), steps=7)
    assert values_of(Loop, args, args.given) == {"files": ("a",), "steps": 7}


def test_flag_and_field_refuse_what_is_below_the_minimum():
    with pytest.raises(ValueError, match="^--log_steps must be at least 1; got 0"):
        commands.parse(Command, ["--files=a", "--log_steps=0"])
    with pytest.raises(ValueError, match="^steps must be at least 1; got 0"):
        Loop(files=(), steps=0)
    with pytest.raises(ValueError, match="^rate must be at least 0; got -1"):
        Loop(files=(), rate=-1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="rate must be a finite number"):
        Loop(files=(), rate=value)


def test_the_docstring_lists_the_fields_without_the_dashes_of_flags():
    assert Loop.__doc__ == (
        "What a loop does.\n\n"
        "Args:\n"
        "    files: Files to read.\n"
        "    steps: Steps between lines.\n"
        "    rate: Learning rate; see steps.\n"
        "    quiet: Whether nothing is printed.\n\n"
        "Raises:\n"
        "    ValueError: if a value is out of range."
    )


@pytest.mark.parametrize("name", ["freeze", "exclude_from_weight_decay"])
def test_a_text_in_place_of_expressions_is_refused(name):
    """Its letters would be taken for expressions, which match nearly every variable."""
    from official_bert.stages import Optimizer

    with pytest.raises(ValueError, match=rf"{name} must be a sequence .* 'embeddings/'"):
        Optimizer(**{name: "embeddings/"})
