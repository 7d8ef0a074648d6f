"""Where the state lies under `keras.distribution`: like its variable, or divided further.

Replicas that hold the same weights need not hold the same moments: each may keep, and compute, a
part of them (arXiv 2004.13336; the first stage of ZeRO, arXiv 1910.02054). XLA divides the
computation as the state is divided; a norm is then the root of the sum over all parts.
"""

from typing import Any

import keras

from lamb_tf import _replicas, _selection


def of_slot(variable: keras.Variable, axis: str | None, is_restored: bool) -> Any:
    """The layout of a variable's slots: that of the variable, divided along one more axis.

    Args:
        variable: What is trained.
        axis: Name of an axis of the mesh, `shard_state` of an optimizer; None divides no further.
        is_restored: Whether the name comes from a saved config, which may be read where there is
            no such mesh: the slots then lie as their variable does.

    Returns:
        A `keras.distribution.TensorLayout`, or None without a distribution. No dimension is divided
        that is not a multiple of the devices along the axis.
    """
    layout = getattr(variable, "_layout", None)  # private: Keras has no public way to ask
    if axis is None:
        return layout
    problem = _problem(layout, axis)
    if problem is None:
        return _divided(layout, variable.shape, axis)
    if not is_restored:
        raise ValueError(
            "`shard_state` must be an axis of the mesh of the distribution under which the "
            f"variables were made; got {axis!r}, but {problem} (variable "
            f"{_selection.path_of(variable)!r}). Pass `shard_state=None`; or, on the JAX backend, "
            "call `keras.distribution.set_distribution(keras.distribution.DataParallel())`, "
            "whose axis is 'batch', before the model is made."
        )
    return layout


def _problem(layout, axis):
    if _replicas.BACKEND != "jax":
        return f"the backend {_replicas.BACKEND} cannot divide the state"
    if not isinstance(layout, keras.distribution.TensorLayout) or layout.device_mesh is None:
        return "there was no distribution"
    names = layout.device_mesh.axis_names
    return None if axis in names else f"the mesh has only {', '.join(map(repr, names))}"


def _divided(layout, shape, axis):
    mesh, axes = layout.device_mesh, list(layout.axes)
    devices = mesh.shape[mesh.axis_names.index(axis)]
    free = [i for i, size in enumerate(shape) if axes[i] is None and size % devices == 0]
    if axis in axes or not free:
        return layout
    axes[free[0]] = axis
    return keras.distribution.TensorLayout(axes, mesh)
