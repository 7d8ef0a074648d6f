"""Layerwise adaptive optimizers for large batches, with their schedules and telemetry."""

from lamb_tf import schedules, telemetry
from lamb_tf.lamb import LAMB
from lamb_tf.lars import LARS
from lamb_tf.loss_scale import LossScaleOptimizer

__version__ = "0.1.0"

__all__ = ["LAMB", "LARS", "LossScaleOptimizer", "__version__", "schedules", "telemetry"]
