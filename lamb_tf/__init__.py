"""Layerwise adaptive optimizers for large batches, with their schedules and telemetry."""

from typing import TYPE_CHECKING

import keras

from lamb_tf._selection import biases_and_norms

__version__ = "0.2.0"

__all__ = [
    "LAMB",
    "LARS",
    "LossScaleOptimizer",
    "OrScale",
    "__version__",
    "biases_and_norms",
    "schedules",
    "telemetry",
]

# With Keras 2, as in TensorFlow 2.15, only `lamb_tf.legacy` works. Type checkers must not see
# `__getattr__`: they would accept every name.
if not TYPE_CHECKING and keras.__version__.startswith("2."):

    def __getattr__(name):
        if name in __all__:
            raise ImportError(
                f"lamb_tf.{name} needs Keras 3 and this is Keras {keras.__version__}: "
                "`pip install --upgrade keras`, or use lamb_tf.legacy with tf_keras."
            )
        raise AttributeError(f"module 'lamb_tf' has no attribute {name!r}")

else:
    from lamb_tf import schedules, telemetry
    from lamb_tf.lamb import LAMB
    from lamb_tf.lars import LARS
    from lamb_tf.loss_scale import LossScaleOptimizer
    from lamb_tf.orscale import OrScale
