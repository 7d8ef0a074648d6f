"""The flags of the optimizer, which all commands that train have alike."""

from absl import flags

from official_bert.system.flag_definitions import FlagDefinitions, refuse

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


def define(definitions: FlagDefinitions) -> None:
    """Defines the flags."""
    number = definitions.number
    definitions.text("optimizer_type", "adamw", "The optimizer: lamb, adamw or lars.")
    number("weight_decay", 0.01, "Weight decay; LayerNorms and biases have none.")
    number("beta_1", 0.9, "Decay rate of the first moment, or LARS' momentum, in [0, 1).")
    number("beta_2", 0.999, "Decay rate of the second moment, in [0, 1); LARS has none.")
    number(
        "epsilon",
        1e-6,
        "Added to the square root of the second moment; with lars, to the norm of the update.",
    )
    number(
        "global_clipnorm",
        1.0,
        "Maximum global norm of the gradient; a larger gradient is scaled down. 0: no clipping.",
    )
    number(
        "layer_decay",
        1.0,
        "Factor on the learning rate from each encoder layer to the one below it. The head and the "
        "pooler have --learning_rate, the top layer that times the factor, the embeddings the "
        "least. 1: one rate for all.",
    )
    definitions.texts(
        "freeze",
        (),
        "Variables that are not trained: comma-separated regular expressions, found in their "
        "paths. The embeddings and the first six layers: --freeze='embeddings/,layer_[0-5]/'.",
    )


def check(values: flags.FlagValues) -> None:
    """Refuses a flag that the optimizer has no use for."""
    reason = "LARS has no second moment; leave it out."
    refuse(values, ("beta_2",), values.optimizer_type == "lars", reason)
