"""The arguments of a command: settings that know which of them were given, and rules about them.

A flag without effect is a `Rule` in a table next to the settings. Where it is only idle, `apply`
warns: official scripts share flags between phases, so it must not end a run. Where it contradicts
another flag, or the user would get another result than the flag names, it is an error.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, TypeVar

from official_bert.system import messages, settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """The settings of a command; each field that `settings.setting` declares is a flag.

    Attributes:
        given: Names of the settings that were given, with whatever value.

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
        """The same with some settings changed."""
        return type(self)(**{name: getattr(self, name) for name in self.given} | changes)

    def without(self, names: Iterable[str]) -> Self:
        """The same with the defaults of some settings."""
        return type(self)(**{name: getattr(self, name) for name in self.given.difference(names)})


Args = TypeVar("Args", bound=Arguments)


@dataclasses.dataclass(frozen=True)
class Rule:
    """When some flags have no effect, and why.

    Args:
        names: Of the flags.
        when: Function of the command's arguments: whether these have no effect.
        reason: Completes "--a has no effect …", or of an error "--a: …"; `{b}` is the value of --b.
        is_error: Whether they contradict another flag, or would change the result if they worked.
    """

    names: Iterable[str]
    when: Callable[[Any], object]
    reason: str
    is_error: bool = False


def idle(names: Iterable[str], when: Callable[[Any], object], reason: str) -> Rule:
    """A `Rule` for a warning: the call does without these flags what it should."""
    return Rule(tuple(names), when, reason)


def contradiction(names: Iterable[str], when: Callable[[Any], object], reason: str) -> Rule:
    """A `Rule` for an error."""
    return Rule(tuple(names), when, reason, is_error=True)


def apply(args: Args, rules: Iterable[Rule]) -> Args:
    """Refuses contradictions; warns of idle flags, and leaves them out.

    So an idle flag changes neither the work nor what is recorded of it.

    Args:
        args: The command's arguments.
        rules: The command's; the first that fits gives a flag's reason.

    Raises:
        ValueError: naming the flags that were given, the reason, and what to do.
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
