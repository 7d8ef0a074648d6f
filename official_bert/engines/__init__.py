"""Where a model lives and how N updates are made: tf.distribute, and the workers of one machine."""
