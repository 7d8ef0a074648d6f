"""Layerwise adaptive optimizers for large batches, with their schedules and telemetry."""

from lamb_tf import schedules, telemetry
from lamb_tf.lamb import LAMB
from lamb_tf.lars import LARS

__version__ = "0.1.0"

__all__ = ["LAMB", "LARS", "__version__", "schedules", "telemetry"]
