"""Devices that TensorFlow's XLA compiles for: a CPU needs other operations than a TPU."""

import contextlib
from collections.abc import Iterator

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Private, as there is no public way: without it steps are slower, and no less right.
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        GraphOrParentsInXlaContext = None
else:
    GraphOrParentsInXlaContext = None

KNOWS_XLA = GraphOrParentsInXlaContext is not None
"""Whether a graph that XLA will compile can be told from another."""

_target = None  # what `compiling_for` says; else the devices of this machine are meant


@contextlib.contextmanager
def compiling_for(device_type: str) -> Iterator[None]:
    """The context in which what is traced runs on devices of this type, such as "TPU"."""
    global _target
    before, _target = _target, device_type
    try:
        yield
    finally:
        _target = before


def target() -> str | None:
    """The type of device that is compiled for, where `compiling_for` names one; else None."""
    return _target


def in_xla() -> bool:
    """Whether TensorFlow is tracing something that XLA will compile; False if that is not known."""
    if GraphOrParentsInXlaContext is None or tf.executing_eagerly():
        return False
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def compiles_for_cpu() -> bool:
    """Whether TensorFlow is tracing something that XLA will compile for CPUs alone."""
    if not in_xla():
        return False
    types = [_target] if _target else [d.device_type for d in tf.config.list_logical_devices()]
    return set(types) == {"CPU"}
