"""How a command defines its flags, and refuses those of other scripts with a reason."""

import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping

from absl import flags

_SAME = object()  # as the field's


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

    def integer(self, name: str, default: int | None, words: str, **bounds: int) -> None:
        """A whole number, within `lower_bound` and `upper_bound`."""
        flags.DEFINE_integer(name, default, words, **bounds, **self._arguments)

    def number(self, name: str, default: float | None, words: str, **bounds: float) -> None:
        """A number, within `lower_bound` and `upper_bound`."""
        flags.DEFINE_float(name, default, words, **bounds, **self._arguments)

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
        bounds = {"lower_bound": field.metadata["minimum"]} if kind in (int, float) else {}
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
        """Flags of other scripts, which `require_no_refused` refuses; not in what --help shows."""
        for name, reason in reasons.items():
            flag = flags.Flag(
                parser=flags.ArgumentParser(),
                serializer=flags.ArgumentSerializer(),
                name=name,
                default=None,
                help_string=f"Refused: --{name} {reason}",
                boolean=True,  # which --name, --noname and --name=value all can be
            )
            flags.DEFINE_flag(flag, self._values, "flags of other scripts")


def require_no_refused(values: flags.FlagValues, reasons: Mapping[str, str]) -> None:
    """Raises a ValueError with the reason if a flag of another script was given."""
    for name, reason in reasons.items():
        if values[name].present:
            raise ValueError(f"--{name} {reason}")


def require_finite(values: flags.FlagValues) -> None:
    """Refuses infinities and NaN, which comparisons with bounds let through."""
    for name in values:
        value = values[name].value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--{name} must be a finite number; got {value}.")


def refuse(values: flags.FlagValues, names: Iterable[str], condition: bool, reason: str) -> None:
    """Raises a ValueError with those of `names` that were given, if there is cause."""
    given = [f"--{name}" for name in names if values[name].present]
    if condition and given:
        raise ValueError(f"{', '.join(given)}: {reason}")
