"""Per-layer norms and trust ratios: what a layerwise optimizer decided in its last update.

`record(optimizer)` before the first step; `read` and `gradient_norm` at any time after one.
"""

LAYER_FIGURES = ("weight_norm", "update_norm", "trust_ratio")


def record(optimizer):
    """From the next step on, each update stores the norms and trust ratio of every variable and the gradient's norm."""
    _layerwise(optimizer).record_telemetry()


def read(optimizer):
    """`{variable.path: {"weight_norm": …, "update_norm": …, "trust_ratio": …}}` of the last update, as floats.

    The weight norm is that before the update; the update norm is ‖u‖, before the trust ratio and the learning rate.
    """
    optimizer = _layerwise(optimizer)
    rows = _recorded(optimizer)["layers"].numpy()
    return {
        variable.path: {name: float(value) for name, value in zip(LAYER_FIGURES, row)}
        for variable, row in zip(optimizer._trainable_variables, rows)
    }


def gradient_norm(optimizer):
    """The global norm of the last gradient: summed over replicas, loss scale undone, before clipping."""
    return float(_recorded(_layerwise(optimizer))["gradient_norm"].numpy())


def _layerwise(optimizer):
    """The optimizer itself, out of a LossScaleOptimizer around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _recorded(optimizer):
    if not optimizer._telemetry:
        raise ValueError(
            f"{optimizer.name!r} records no telemetry. Call `telemetry.record(optimizer)` before the first step."
        )
    return optimizer._telemetry
