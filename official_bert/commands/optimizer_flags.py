"""Optimizer flags, shared by all training commands."""

from typing import Any

from absl import flags

from official_bert.commands.flag_definitions import FlagDefinitions, idle
from official_bert.stages import Optimizer

FIELDS = {  # the field of `stages.Optimizer` that each one sets
    "optimizer_type": "type",
    "weight_decay": "weight_decay",
    "beta_1": "beta_1",
    "beta_2": "beta_2",
    "epsilon": "epsilon",
    "global_clipnorm": "global_clipnorm",
    "layer_decay": "layer_decay",
    "freeze": "freeze",
}
RULES = (
    idle(
        ["beta_2"],
        lambda v: v.optimizer_type == "lars",
        "with --optimizer_type=lars, which has no second moment.",
    ),
    idle(["loss_scale"], lambda v: v.dtype != "fp16", "with --dtype={dtype}, which needs none."),
)


def define(definitions: FlagDefinitions) -> None:
    """Defines the flags; by default the optimizer is that of the official scripts, AdamW."""
    for flag, field in FIELDS.items():
        changes: Any = {"type": {"default": "adamw"}, "freeze": {"kind": list}}.get(field, {})
        definitions.field(Optimizer, field, flag, **changes)


def optimizer(values: flags.FlagValues) -> Optimizer:
    """The optimizer of the flags.

    Raises:
        ValueError: naming what is out of bounds.
    """
    return Optimizer(**{field: values[name].value for name, field in FIELDS.items()})
