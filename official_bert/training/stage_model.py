"""Makes the model and the optimizer of a stage: trained variables and their learning rates."""

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import keras

from lamb_tf import telemetry
from official_bert import stacking
from official_bert.optimizers import optimizers
from official_bert.stages import DTYPE_POLICIES

if TYPE_CHECKING:
    from official_bert.stages import Run, Stage

_LAYER = re.compile(r"(?:^|/)encoder/layer_(\d+)/")
_EMBEDDINGS = re.compile("(?:^|/)embeddings/")


def make_model_and_optimizer(
    run: "Run", stage: "Stage"
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """The model of a stage and the optimizer of its trained variables, with their first values.

    Returns:
        The task's model and its optimizer, built. Make them in the engine's scope.

    Raises:
        ValueError: if the optimizer's `freeze` has an expression that matches no variable, or
            leaves nothing to train.
    """
    depth = stage.depth_in(run.config)
    config = dataclasses.replace(run.config, num_hidden_layers=depth)
    model = run.task.make_model(config, run.seed, DTYPE_POLICIES[run.dtype])
    _require_matches(run, [variable.path for variable in model.weights])
    for variable in model.weights:
        variable.trainable = _trains(run, stage, variable.path)
    if not model.trainable_variables:
        raise ValueError(
            "freeze must leave some variables to train, such as the head; got "
            f"{','.join(run.optimizer.freeze)!r}, which matches all. Narrow its expressions."
        )
    multipliers = layer_rates(model.trainable_variables, depth, run.optimizer.layer_decay)
    settings = _without_frozen(run.optimizer, model)
    optimizer = settings.make(model.trainable_variables, multipliers)
    if optimizers.has_trust_ratios(optimizer):
        telemetry.record(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def layer_rates(
    variables: Iterable[keras.Variable], depth: int, layer_decay: float
) -> list[tuple[keras.Variable, float]] | None:
    """Factors on the learning rate by the layer of a variable, as `lamb_tf.LAMB` takes them.

    Args:
        variables: Those that train.
        depth: L, the number of encoder layers.
        layer_decay: Factor from each layer to the one below it: 1 for the head and the pooler,
            `layer_decay` for the top layer, to the power L for the lowest one, and to the power
            L + 1 for the embeddings.

    Returns:
        Pairs of variable and factor; `None` where all factors are 1.
    """
    if layer_decay == 1:
        return None
    return [(v, layer_decay ** _steps_below_head(v.path, depth)) for v in variables]


def _steps_below_head(path, depth):
    layer = _LAYER.search(path)
    if layer:
        return depth - int(layer[1])
    return depth + 1 if _EMBEDDINGS.search(path) else 0


def part_of(path: str) -> str:
    """The part of the model that a variable belongs to: `embeddings`, `layer_0`, …, or `head`."""
    if layer := _LAYER.search(path):
        return f"layer_{layer[1]}"
    return "embeddings" if _EMBEDDINGS.search(path) else "head"


def _trains(run, stage, path):
    is_frozen = any(re.search(pattern, path) for pattern in run.optimizer.freeze)
    return not is_frozen and run.task.is_trainable(path) and stacking.trained(path, stage)


def _without_frozen(settings, model):
    """The settings without the exclusions that match only frozen variables."""
    trained = [variable.path for variable in model.trainable_variables]
    frozen = [variable.path for variable in model.non_trainable_variables]

    def names_trained(pattern):
        hits = [any(re.search(pattern, path) for path in paths) for paths in (trained, frozen)]
        # The optimizer refuses, or warns of, patterns without any match.
        return hits != [False, True]

    adapted = settings.exclude_from_layer_adaptation
    return dataclasses.replace(
        settings,
        exclude_from_weight_decay=tuple(filter(names_trained, settings.exclude_from_weight_decay)),
        exclude_from_layer_adaptation=adapted and tuple(filter(names_trained, adapted)),
    )


def _require_matches(run, paths):
    """Each expression of `freeze` matches a variable, be it of a layer that a later stage adds."""
    layers = range(run.config.num_hidden_layers)
    deeper = [path.replace("/layer_0/", f"/layer_{i}/") for path in paths for i in layers]
    for pattern in run.optimizer.freeze:
        if not any(re.search(pattern, path) for path in (*paths, *deeper)):
            some = ", ".join(dict.fromkeys((*paths[:2], *paths[5:7], *paths[-2:])))
            raise ValueError(
                "freeze must hold regular expressions that each match a variable's path; got "
                f"{pattern!r}, which matches none of {len(paths)}. Paths are like {some}."
            )
