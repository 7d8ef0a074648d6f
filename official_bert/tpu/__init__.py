"""The TPU compiler without a TPU."""
