"""Settings: a dataclass' field is the flag, its check and its documentation."""

import dataclasses
import math

import pytest
from absl import flags

from official_bert import stages
from official_bert.commands import pretraining_flags
from official_bert.commands.flag_definitions import FlagDefinitions
from official_bert.system import settings
from official_bert.system.settings import setting
from official_bert.tasks.pretraining import Pretraining


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


def defined(*arguments, **options):
    """The flag that a field is made into."""
    values = flags.FlagValues()
    FlagDefinitions(values).field(Loop, *arguments, **options)
    (name,) = {*values} - {"help"}
    return values[name]


@pytest.mark.parametrize(
    ("name", "default", "words", "given", "value"),
    [
        ("files", None, "Files to read. Required.", "a,b", "a,b"),
        ("steps", 100, "Steps between lines.", "7", 7),
        ("rate", None, "Learning rate; see --steps.", "0.5", 0.5),
        ("quiet", False, "Whether nothing is printed.", "true", True),
    ],
)
def test_a_flag_has_the_type_the_default_and_the_words_of_its_field(
    name, default, words, given, value
):
    flag = defined(name)
    assert (flag.name, flag.default, flag.help) == (name, default, words)
    flag.parse(given)
    assert flag.value == value


def test_a_flag_can_have_another_name_and_default_than_its_field():
    flag = defined("steps", "log_steps", default=None, more="Default: as many as there are.")
    assert flag.name == "log_steps"
    assert flag.default is None
    assert flag.help == "Steps between lines. Default: as many as there are."


def test_flag_and_field_refuse_what_is_below_the_minimum():
    with pytest.raises(flags.IllegalFlagValueError, match="must be at least 1; got 0"):
        defined("steps").parse("0")
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        Loop(files=(), steps=0)
    with pytest.raises(ValueError, match="rate must be at least 0; got -1"):
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


@pytest.mark.parametrize("owner", [stages.Stage, stages.Run, stages.LoopOptions, Pretraining])
def test_a_flag_of_run_pretraining_that_is_a_field_has_its_words(owner):
    values = flags.FlagValues()
    pretraining_flags.define_flags(values)
    renamed = {name: flag for flag, (name, _) in pretraining_flags.STAGE.items()}
    shared = 0
    for field in dataclasses.fields(owner):
        flag = renamed.get(field.name, field.name)
        own = owner is stages.Stage and field.name == "input_files"  # a stage's, not the run's
        if flag in values and not own:
            assert values[flag].help.startswith(field.metadata["words"])
            shared += 1
    assert shared >= 4


@pytest.mark.parametrize("name", ["freeze", "exclude_from_weight_decay"])
def test_a_text_in_place_of_expressions_is_refused(name):
    """Its letters would be taken for expressions, which match nearly every variable."""
    from official_bert.stages import Optimizer

    with pytest.raises(ValueError, match=rf"{name} must be a sequence .* 'embeddings/'"):
        Optimizer(**{name: "embeddings/"})
