"""The updates of the optimizers, dense and sparse, pass the real compiler of each kind of TPU."""

import keras
import peers
import pytest
import tensorflow as tf

import lamb_tf
from official_bert.rehearsal import tpu_compiler

peers.load("jax")
peers.load("libtpu")

SHAPES = {"embedding": (512, 128), "kernel": (256, 128), "bias": (128,)}


def compiled_update(topology, make_optimizer, dtype="float32"):
    """What the compiler says of an update with a sparse and two dense gradients; the optimizer."""
    topology = tpu_compiler.Topology(topology)
    strategy = tpu_compiler.ReplicaStrategy(topology.num_cores)
    with strategy.scope():
        variables = [
            keras.Variable("normal", shape, dtype=dtype, name=name)
            for name, shape in SHAPES.items()
        ]
        optimizer = make_optimizer()
        optimizer.build(variables)

    def update(rows, indices, kernel, bias):
        table = tf.IndexedSlices(rows, indices, tf.constant(SHAPES["embedding"]))
        strategy.run(lambda: optimizer.apply([table, kernel, bias], variables))

    signature = (
        tf.TensorSpec((64, 128), dtype),
        tf.TensorSpec((64,), tf.int32),
        tf.TensorSpec(SHAPES["kernel"], dtype),
        tf.TensorSpec(SHAPES["bias"], dtype),
    )
    return tpu_compiler.compile_for(topology, tpu_compiler.lower(update, *signature)), optimizer


@pytest.mark.parametrize(
    ("topology", "dtype", "optimizer_class"),
    [
        *((topology, "float32", lamb_tf.LAMB) for topology in ("v3:2x2", "v4:2x2x1", "v6e:2x2")),
        *(("v5e:2x2", "bfloat16", make) for make in (lamb_tf.LAMB, lamb_tf.LARS, lamb_tf.OrScale)),
        ("v6e:2x2", "float32", lamb_tf.LARS),
        ("v4:2x2x1", "float32", lamb_tf.OrScale),
    ],
)
def test_an_update_compiles_for(topology, dtype, optimizer_class):
    arguments = {"weight_decay": 0.1, "exclude_from_weight_decay": ["bias"]}
    compiled, optimizer = compiled_update(
        topology, lambda: optimizer_class(0.1, **arguments), dtype
    )
    # One sum over the replicas of every gradient, dense by then and in float32.
    sizes = [tf.TensorShape(shape).num_elements() for shape in SHAPES.values()]
    assert compiled.reduced_bytes == 4 * sum(sizes)
    # The state in float32: what comes in are at least the weights and the slots.
    weight_bytes = {"float32": 4, "bfloat16": 2}[dtype]
    slots = [slot for v in optimizer.trainable_variables for slot in optimizer.slots(v).values()]
    slot_bytes = 4 * sum(tf.TensorShape(slot.shape).num_elements() for slot in slots)
    assert compiled.argument_bytes >= sum(sizes) * weight_bytes + slot_bytes


def test_nothing_meant_for_another_device_is_compiled():
    variable = keras.Variable("normal", (256, 128))
    optimizer = lamb_tf.LAMB(0.1, weight_decay=0.1)
    optimizer.build([variable])
    gradient = tf.TensorSpec(variable.shape)
    module = tpu_compiler.lower(lambda g: optimizer.apply([g], [variable]), gradient)
    assert b"multiply" in module
    assert b"optimization_barrier" not in module


def recording():
    optimizer = lamb_tf.LAMB(0.1)
    lamb_tf.telemetry.record(optimizer)
    return optimizer


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: lamb_tf.LAMB(0.1, global_clipnorm=1.0, use_ema=True, nesterov="both"),
        lambda: lamb_tf.LAMB(0.1, gradient_accumulation_steps=2),
        lambda: lamb_tf.LossScaleOptimizer(lamb_tf.LAMB(0.1)),
        recording,
    ],
    ids=["clipping, averages, Nesterov", "accumulation", "loss scale", "telemetry"],
)
def test_an_update_compiles_with(make_optimizer):
    compiled, _ = compiled_update("v5e:2x2", make_optimizer)
    elements = sum(tf.TensorShape(shape).num_elements() for shape in SHAPES.values())
    assert compiled.reduced_bytes == 4 * elements
