"""The updates of LAMB and LARS, dense and sparse, pass the real compiler of each kind of TPU."""

import keras
import peers
import pytest
import tensorflow as tf

import lamb_tf
from official_bert import tpu_compiler

peers.load("jax")
peers.load("libtpu")

SHAPES = {"embedding": (512, 128), "kernel": (256, 128), "bias": (128,)}


@pytest.mark.parametrize("topology", ["v3:2x2", "v4:2x2x1", "v5e:2x2", "v6e:2x2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer_class", [lamb_tf.LAMB, lamb_tf.LARS])
def test_an_update_compiles_for(topology, dtype, optimizer_class):
    topology = tpu_compiler.Topology(topology)
    strategy = tpu_compiler.ReplicaStrategy(topology.num_cores)
    with strategy.scope():
        variables = [
            keras.Variable("normal", shape, dtype=dtype, name=name)
            for name, shape in SHAPES.items()
        ]
        optimizer = optimizer_class(0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"])
        optimizer.build(variables)

    def update(rows, indices, kernel, bias):
        table = tf.IndexedSlices(rows, indices, tf.constant(SHAPES["embedding"]))
        strategy.run(lambda: optimizer.apply([table, kernel, bias], variables))

    compiled = tpu_compiler.compile_for(
        topology,
        tpu_compiler.lower(
            update,
            tf.TensorSpec((64, 128), dtype),
            tf.TensorSpec((64,), tf.int32),
            tf.TensorSpec(SHAPES["kernel"], dtype),
            tf.TensorSpec(SHAPES["bias"], dtype),
        ),
    )
    # One sum over the replicas of every gradient, dense by then and in float32.
    sizes = [tf.TensorShape(shape).num_elements() for shape in SHAPES.values()]
    assert compiled.reduced_bytes == 4 * sum(sizes)
    # The state in float32: what comes in are at least the weights and the slots.
    weight_bytes = {"float32": 4, "bfloat16": 2}[dtype]
    assert compiled.argument_bytes >= sum(sizes) * (weight_bytes + 4 * len(optimizer.slot_names))
