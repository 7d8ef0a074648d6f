"""The model and the optimizer of one stage of a run."""

import dataclasses
from typing import TYPE_CHECKING

import keras

from lamb_tf import telemetry
from official_bert import stacking
from official_bert.stages import DTYPE_POLICIES

if TYPE_CHECKING:
    from official_bert.stages import Run, Stage


def make_model_and_optimizer(
    run: "Run", stage: "Stage"
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """The model of a stage and the optimizer of what trains in it, with their first values.

    Args:
        run: A `stages.Run`.
        stage: One of its stages.

    Returns:
        The task's model and a `lamb_tf` optimizer, built. Make them in the engine's scope.
    """
    depth = stage.depth_in(run.config)
    config = dataclasses.replace(run.config, num_hidden_layers=depth)
    model = run.task.make_model(config, run.seed, DTYPE_POLICIES[run.dtype])
    for variable in model.weights:
        variable.trainable = run.task.trains(variable.path) and stacking.trained(
            variable.path, stage
        )
    optimizer = run.optimizer.make()
    telemetry.record(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer
