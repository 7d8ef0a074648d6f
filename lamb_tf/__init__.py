"""Layerwise adaptive optimizers for large batches: LAMB and LARS, their schedules and their telemetry."""

from lamb_tf import schedules, telemetry
from lamb_tf.lamb import LAMB

__version__ = "0.1.0"

__all__ = ["LAMB", "__version__", "schedules", "telemetry"]
