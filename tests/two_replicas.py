"""The two CPU replicas of all tests in a process: one strategy, made once.

A second MirroredStrategy would count its collective operations from the same number as the first,
and the runtime takes them for each other.
"""

import functools

import tensorflow as tf


@functools.cache
def two_replicas():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
