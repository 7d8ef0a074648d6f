"""Devices that TensorFlow's XLA compiles for: a CPU needs other operations than a TPU."""

import contextlib
from collections.abc import Iterator

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Private, as there is no public way; without it, steps are slower but correct.
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        GraphOrParentsInXlaContext = None
else:
    GraphOrParentsInXlaContext = None

KNOWS_XLA = GraphOrParentsInXlaContext is not None
"""Whether a graph that XLA will compile can be distinguished from another."""

_target = None  # set by `compiling_for`; None: the devices of this machine


@contextlib.contextmanager
def compiling_for(device_type: str) -> Iterator[None]:
    """The context in which traced programs run on devices of this type, such as "TPU"."""
    global _target
    before, _target = _target, device_type
    try:
        yield
    finally:
        _target = before


def target() -> str | None:
    """The type of device that `compiling_for` names; None outside of it."""
    return _target


def in_xla() -> bool:
    """Whether TensorFlow is tracing a program that XLA will compile; False if unknown."""
    if GraphOrParentsInXlaContext is None or tf.executing_eagerly():
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def compiles_for_cpu() -> bool:
    """Whether TensorFlow is tracing a program that XLA will compile for CPUs only."""
    if not in_xla():
        return False
    types = [_target] if _target else [d.device_type for d in tf.config.list_logical_devices()]
    return set(types) == {"CPU"}
