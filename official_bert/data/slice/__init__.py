"""The batch of a step as a TensorFlow graph, for hosts of a TPU slice that run no Python."""
