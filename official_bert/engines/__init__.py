"""The engines: tf.distribute and a mesh of JAX, their processes and workers."""
