"""The settings of a command, the names of those given, and rules for flags without effect.

Each `Rule` is in a table next to the settings. An idle flag gets a warning: official scripts share
flags between phases, so it must not end a run. A flag that contradicts another, or would promise
a result that the user does not get, is an error.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, TypeVar

from official_bert.system import messages, settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """The settings of a command; each field declared with `settings.setting` is a flag.

    Attributes:
        given: Names of the settings that were given, also if equal to the default.

    Raises:
        ValueError: a number is out of bounds.
    """

    given: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, **given: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "given", frozenset(given))
        return self

    def __post_init__(self):
        settings.check(self)

    def replaced(self, **changes: Any) -> Self:
        """A copy with some settings changed."""
        return type(self)(**{name: getattr(self, name) for name in self.given} | changes)

    def without(self, names: Iterable[str]) -> Self:
        """A copy with some settings at their defaults."""
        return type(self)(**{name: getattr(self, name) for name in self.given.difference(names)})


Args = TypeVar("Args", bound=Arguments)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition under which some flags have no effect.

    Args:
        names: Of the flags.
        when: Function of the command's arguments: whether the condition holds.
        reason: Completes "--a has no effect …", or "--a: …" of an error; `{b}` is the value of --b.
        is_error: Whether the flags contradict others; otherwise they are idle.
    """

    names: Iterable[str]
    when: Callable[[Any], object]
    reason: str
    is_error: bool = False


def idle(names: Iterable[str], when: Callable[[Any], object], reason: str) -> Rule:
    """A `Rule` for a warning: the command does the right thing without these flags."""
    return Rule(tuple(names), when, reason)


def contradiction(names: Iterable[str], when: Callable[[Any], object], reason: str) -> Rule:
    """A `Rule` for an error."""
    return Rule(tuple(names), when, reason, is_error=True)


def apply(args: Args, rules: Iterable[Rule]) -> Args:
    """Refuses contradictions; warns about idle flags, and resets them to their defaults.

    An idle flag thus changes neither the work nor its records.

    Args:
        rules: The command's; the first that fits gives a flag's reason.

    Raises:
        ValueError: names the flags, the reason, and what to do.
    """
    for rule in sorted(rules, key=lambda rule: not rule.is_error):  # the errors first
        given = [n for n in rule.names if n in args.given and getattr(args, n) != ""]
        if not given or not rule.when(args):
            continue
        listed = ", ".join(f"--{name}" for name in given)
        reason = rule.reason.format_map(vars(args))
        if rule.is_error:
            raise ValueError(f"{listed}: {reason}")
        messages.warn(f"{listed} {'has' if len(given) == 1 else 'have'} no effect {reason}")
        args = args.without(given)
    return args
