"""Flags of a command: their definitions, their bounds, and which have no effect in a call.

A flag without effect is a `Rule` in a table beside the definitions. Where it is only idle, `apply`
warns: official scripts share flags between phases, so it must not end a run. Where it contradicts
another flag, or the user would get another result than the flag names, it is an error.
"""

import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping

from absl import flags

from official_bert.system import messages
from official_bert.system.settings import Bounds

_SAME = object()  # as the field's


@dataclasses.dataclass(frozen=True)
class Rule:
    """When some flags have no effect, and why.

    Args:
        names: Of the flags.
        when: Function of the flags' values: whether these have no effect.
        reason: Completes "--a has no effect …", or of an error "--a: …"; `{b}` is the value of --b.
        is_error: Whether they contradict another flag, or would change the result if they worked.
    """

    names: Iterable[str]
    when: Callable[[flags.FlagValues], object]
    reason: str
    is_error: bool = False


def idle(names: Iterable[str], when: Callable[[flags.FlagValues], object], reason: str) -> Rule:
    """A `Rule` for a warning: the call does without these flags what it should."""
    return Rule(tuple(names), when, reason)


def contradiction(
    names: Iterable[str], when: Callable[[flags.FlagValues], object], reason: str
) -> Rule:
    """A `Rule` for an error."""
    return Rule(tuple(names), when, reason, is_error=True)


def apply(values: flags.FlagValues, rules: Iterable[Rule]) -> None:
    """Refuses contradictions; warns of idle flags, and sets them to their defaults.

    So an idle flag changes neither the work nor what is recorded of it.

    Args:
        values: The flags.
        rules: The command's; the first that fits gives a flag's reason.

    Raises:
        ValueError: naming the flags that were given, the reason, and what to do.
    """
    rules = list(rules)
    for rule in sorted(rules, key=lambda rule: not rule.is_error):  # the errors first
        given = [n for n in rule.names if values[n].present and values[n].value != ""]
        if not given or not rule.when(values):
            continue
        listed = ", ".join(f"--{name}" for name in given)
        reason = rule.reason.format(**values.flag_values_dict())
        if rule.is_error:
            raise ValueError(f"{listed}: {reason}")
        messages.warn(f"{listed} {'has' if len(given) == 1 else 'have'} no effect {reason}")
        for name in given:
            values[name].unparse()


class _Number(flags.ArgumentParser):
    """Parses a number within bounds; its errors complete `--name …`."""

    def __init__(self, kind: type, bounds: Bounds):
        self._kind, self._bounds = kind, bounds
        self._wanted = "a whole number" if kind is int else "a number"
        self.syntactic_help = f"{self._wanted} {bounds}".rstrip()

    def parse(self, argument):
        try:
            value = self._kind(argument)
        except ValueError:
            raise ValueError(f"must be {self._wanted}; got {argument!r}.") from None
        fault = self._bounds.fault(value)
        if fault:
            raise ValueError(fault)
        return value

    def flag_type(self):
        return self._kind.__name__


class _Refused(flags.Flag):
    """A flag of another script: to give it is an error, whatever comes after it."""

    def parse(self, argument):
        raise flags.IllegalFlagValueError(self.help.removeprefix("Refused: "))


class FlagDefinitions:
    """Defines flags of the command that runs, for its `--help`.

    Args:
        values: Where they are defined.
    """

    def __init__(self, values: flags.FlagValues):
        self._values = values
        self._arguments = {"flag_values": values, "module_name": sys.argv[0]}

    def text(self, name: str, default: str | None, words: str) -> None:
        """A flag with text as its value; `words` are its manual."""
        flags.DEFINE_string(name, default, words, **self._arguments)

    def texts(self, name: str, default: Iterable[str], words: str) -> None:
        """A flag with a list of texts, separated by commas."""
        flags.DEFINE_list(name, list(default), words, **self._arguments)

    def integer(
        self, name: str, default: int | None, words: str, bounds: Bounds | None = None
    ) -> None:
        """A whole number."""
        self._number(int, name, default, words, bounds)

    def number(
        self, name: str, default: float | None, words: str, bounds: Bounds | None = None
    ) -> None:
        """A number."""
        self._number(float, name, default, words, bounds)

    def _number(self, kind, name, default, words, bounds):
        parser = _Number(kind, bounds or Bounds())
        serializer = flags.ArgumentSerializer()
        flags.DEFINE(parser, name, default, words, serializer=serializer, **self._arguments)

    def switch(self, name: str, default: bool | None, words: str) -> None:
        """A flag that is on or off."""
        flags.DEFINE_bool(name, default, words, **self._arguments)

    def field(
        self,
        owner: typing.Any,
        name: str,
        flag: str | None = None,
        *,
        default: object = _SAME,
        kind: type | None = None,
        more: str = "",
    ) -> None:
        """The flag of a field that `settings.setting` declares: its type, words, bounds, default.

        Args:
            owner: A dataclass.
            name: A field of it.
            flag: Name of the flag, if it is not the field's.
            default: Default of the flag, if it is not the field's.
            kind: Type of the flag, if it is not the field's: str, list, int, float or bool.
            more: Sentences to add to the field's.
        """
        field = owner.__dataclass_fields__[name]
        default = field.default if default is _SAME else default
        types = typing.get_args(field.type) or (field.type,)
        kind = kind or next((k for k in (bool, int, float) if k in types), str)
        words = [field.metadata["words"], more, "Required." * (default is dataclasses.MISSING)]
        bounds = {"bounds": field.metadata["bounds"]} if kind in (int, float) else {}
        definitions: dict[type, Callable[..., None]] = {
            str: self.text,
            list: self.texts,
            bool: self.switch,
            int: self.integer,
            float: self.number,
        }
        if default in (dataclasses.MISSING, ()):
            default = () if kind is list else None
        definitions[kind](flag or name, default, " ".join(filter(None, words)), **bounds)

    def refused(self, reasons: Mapping[str, str]) -> None:
        """Flags of other scripts, which end the command with a reason; not in what --help shows."""
        for name, reason in reasons.items():
            flag = _Refused(
                parser=flags.ArgumentParser(),
                serializer=flags.ArgumentSerializer(),
                name=name,
                default=None,
                help_string=f"Refused: --{name} {reason}",
                boolean=True,  # which --name, --noname and --name=value all can be
            )
            flags.DEFINE_flag(flag, self._values, "flags of other scripts")


def require_finite(values: flags.FlagValues) -> None:
    """Refuses infinities and NaN, which comparisons with bounds let through."""
    for name in values:
        value = values[name].value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--{name} must be a finite number; got {value}.")


def several(values: flags.FlagValues, name: str) -> tuple[str, ...]:
    """The members of a flag that is a list with commas; none if it is not given.

    Raises:
        ValueError: one of them is empty.
    """
    text = values[name].value
    members = tuple(member.strip() for member in text.split(",")) if text else ()
    if not all(members):
        raise ValueError(
            f"--{name} must be one or more names with single commas between them; got {text!r}. "
            "Is a variable of the shell empty?"
        )
    return members
