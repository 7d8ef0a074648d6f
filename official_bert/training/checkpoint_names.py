"""Parses checkpoint names, `ctl_step_{step}.ckpt-{count}`, without TensorFlow."""

import re
from typing import NamedTuple, Self

_NAME = re.compile(r"ctl_step_(\d+)\.ckpt-(\d+)")


def is_name(name: str) -> bool:
    """Whether a checkpoint can have this name."""
    return _NAME.fullmatch(name) is not None


def step_and_count(name: str) -> tuple[int, int]:
    """The step and the running number in a checkpoint's name.

    Raises:
        ValueError: if it is no such name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"A checkpoint's name must be like ctl_step_8.ckpt-2; got {name!r}.")
    return int(match[1]), int(match[2])


class Abandoned(NamedTuple):
    """The checkpoints abandoned by a return to an earlier one: later steps, smaller numbers."""

    after_step: int
    up_to_count: int

    @classmethod
    def between(cls, resumed_from: str, instead_of: str) -> Self:
        """Of a run that returned to one checkpoint when another was the newest, by name."""
        return cls(step_and_count(resumed_from)[0], step_and_count(instead_of)[1])

    def includes(self, name: str) -> bool:
        step, count = step_and_count(name)
        return step > self.after_step and count <= self.up_to_count
