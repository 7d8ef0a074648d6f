"""The JAX engine's program for devices that are not here, or to ask the compiler about."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import keras

from official_bert.engines.jax_placement import DATA, STACKED_ROWS, Placement
from official_bert.engines.jax_update import make_updates

if TYPE_CHECKING:
    from official_bert.protocols import UpdateSettings


def lower(
    run: "UpdateSettings",
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    placement: Placement,
    batch: Mapping[str, tuple[tuple[int, ...], str]],
    steps: int = 1,
) -> jax.stages.Lowered:
    """The program of some updates, before it is compiled.

    Args:
        run: A `stages.Run`.
        model: The task's model; of its variables only shapes matter.
        optimizer: The optimizer, built on the model's trainable variables.
        placement: The devices, which may be those of a described topology.
        batch: Shape and type of each array of a global batch.
        steps: Number of updates.
    """
    whole = placement.whole

    def like(variables, shardings):
        return [
            jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)
            for variable, sharding in zip(variables, shardings, strict=True)
        ]

    trained, frozen = model.trainable_variables, model.non_trainable_variables
    stacked = placement.sharding(STACKED_ROWS)
    batches = {
        name: jax.ShapeDtypeStruct((steps, *shape), dtype, sharding=stacked)
        for name, (shape, dtype) in batch.items()
    }
    by_device = placement.sharding(jax.sharding.PartitionSpec(DATA))
    integer, number = (
        jax.ShapeDtypeStruct((), dtype, sharding=whole) for dtype in (jnp.int32, jnp.float32)
    )
    return make_updates(run, model, optimizer, placement).lower(
        like(trained, [whole] * len(trained)),
        like(optimizer.variables, placement.of_optimizer(optimizer)),
        like(frozen, [whole] * len(frozen)),
        batches,
        jax.ShapeDtypeStruct((placement.mesh.size,), jnp.float32, sharding=by_device),
        integer,
        integer,
        number,
        integer,
    )


def batch_of_pretraining(
    rows: int, length: int, predictions: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of each array of a global batch of pre-training."""
    tokens, masked = (rows, length), (rows, predictions)
    return {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (tokens, "int32")),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (masked, "int32")),
        "masked_lm_weights": (masked, "float32"),
        "next_sentence_labels": ((rows,), "int32"),
        "example_weights": ((rows,), "float32"),
    }
