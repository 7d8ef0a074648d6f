"""The two CPU replicas of all tests in a process, and training on them: one strategy, made once.

A second MirroredStrategy would count its collective operations from the same number as the first,
and the runtime takes them for each other.
"""

import functools

import numpy as np
import tensorflow as tf


@functools.cache
def two_replicas():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train_on_replicas(optimizer_of, weights, gradients_of_replicas, dtype="float32", reduced=False):
    """The variables and the optimizer after steps whose gradients differ between replicas.

    `reduced`: each replica hands over their sum, and says so; an argument of our optimizers.
    """
    import steps  # here, as it needs Keras 3: test_legacy.py also runs where Keras is 2.15

    strategy = two_replicas()
    with strategy.scope():
        variables = steps.make_variables(weights, dtype)
        optimizer = optimizer_of()
        optimizer.build(variables)

    @tf.function(autograph=False)
    def step(both):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            grads = tf.nest.map_structure(
                lambda *each: tf.gather(tf.stack(each), replica), *both, expand_composites=True
            )
            if reduced:
                grads = tf.distribute.get_replica_context().all_reduce("SUM", grads)
                optimizer.apply(grads, variables, skip_gradients_aggregation=True)
            else:
                optimizer.apply(grads, variables)

        strategy.run(on_replica)

    for both in gradients_of_replicas:
        step(tf.nest.map_structure(tf.convert_to_tensor, both, expand_composites=True))
    return variables, optimizer


def shares(gradients, seed=1):
    """Each step's gradients split into two addends that differ between tensors."""
    rng = np.random.default_rng(seed)
    split = []
    for grads in gradients:
        first = [g * rng.uniform(0, 1, g.shape).astype("float32") for g in grads]
        split.append([first, [g - part for g, part in zip(grads, first)]])
    return split
