"""The work of a TPU slice's hosts per step does not grow with the number of replicas."""

import collections
from typing import NamedTuple

import named_tpus
import numpy as np
import pytest
import tensorflow as tf
from bert_shapes import tiny
from tensorflow.python.distribute.values import PerReplica

from lamb_tf import compile_target
from official_bert import stages
from official_bert.engines import loop_state, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.training.stage_model import make_model_and_optimizer

ROWS, LENGTH, PREDICTIONS = 2, 16, 3
CONFIG = tiny(num_hidden_layers=1)
SHAPES = {
    **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ((ROWS, LENGTH), np.int32)),
    **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), ((ROWS, PREDICTIONS), np.int32)),
    "masked_lm_weights": ((ROWS, PREDICTIONS), np.float32),
    "next_sentence_labels": ((ROWS,), np.int32),
    "example_weights": ((ROWS,), np.float32),
}


class SameRows:
    """An iterator that gives all replicas the same tensors, so that input makes no nodes."""

    def __init__(self, replicas):
        self._replicas = replicas

    def __next__(self):
        return {
            name: PerReplica([tf.constant(np.zeros(shape, dtype))] * self._replicas)
            for name, (shape, dtype) in SHAPES.items()
        }


def make_run(replicas):
    stage = stages.Stage(
        steps=10,
        batch_size=ROWS * replicas,
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        learning_rate=1e-3,
        warmup_steps=2,
    )
    return stages.Run(
        config=CONFIG,
        stages=(stage, stage),
        optimizer=stages.Optimizer(),
        input_files=("not read",),
        dtype="bf16",
    )


def graphs(hosts, cores):
    """The graphs of (the training loop, an evaluation step) of a slice."""
    run = make_run(hosts * cores)
    with tf.Graph().as_default(), compile_target.compiling_for("TPU"):
        strategy = named_tpus.strategy(hosts, cores)
        with strategy.scope():
            model, optimizer = make_model_and_optimizer(run, run.stages[0])
        rows = SameRows(hosts * cores)
        loop = tf_update.make_training_loop(run, model, optimizer, strategy)
        state = tf_update._tensors(loop_state.first_state(run))
        arguments = (rows, tf.constant(0), tf.constant(4), state)
        evaluation = tf_update.make_evaluation_step(run.task, model, strategy)
        return (
            loop._loop.get_concrete_function(*arguments).graph.as_graph_def(),
            evaluation.get_concrete_function(rows).graph.as_graph_def(),
            len(model.trainable_variables),
        )


def operations(nodes):
    """How many operations of each kind are (outside, inside) the TPU's program."""
    parts = [[], []]
    for node in nodes:
        if node.op not in ("Const", "NoOp"):  # which do nothing in a step
            parts["_tpu_replicate" in node.attr].append(node.op)
    return tuple(map(collections.Counter, parts))


class Work(NamedTuple):
    """The operations of a step of training and of one of evaluation."""

    step: tuple
    evaluation: tuple
    assigned: int  # variables in a step
    trainable: int


def work(hosts, cores):
    loop, evaluation, trainable = graphs(hosts, cores)
    bodies = [function.node_def for function in loop.library.function]
    body = max(bodies, key=lambda nodes: sum(node.op == "TPUReplicatedInput" for node in nodes))
    assigned = {node.input[0] for node in body if node.op == "AssignVariableOp"}
    return Work(operations(body), operations(evaluation.node), len(assigned), trainable)


@pytest.fixture(scope="module")
def of_two():
    return work(1, 2)


def require_as_much(found, expected):
    assert found.step == expected.step
    assert found.assigned == expected.assigned
    assert found.step[0]["AssignVariableOp"] == 0
    # the sums, and the skipped updates before and after
    assert found.step[0]["ReadVariableOp"] == 3
    assert found.evaluation[1] == expected.evaluation[1]
    # a placeholder is a variable's copy; where there are TPUs, TensorFlow packs the copies into one
    named = ("Placeholder",)
    assert without(found.evaluation[0], named) == without(expected.evaluation[0], named)
    assert found.evaluation[0]["AssignVariableOp"] == 0
    assert found.evaluation[0]["ReadVariableOp"] == 1  # the sums


def without(counts, names):
    return {name: count for name, count in counts.items() if name not in names}


def test_eight_replicas_make_as_many_operations_as_two(of_two):
    assert of_two.step[1]["CrossReplicaSum"] >= 2  # gradients, sums: this is the body
    assert of_two.evaluation[1]["CrossReplicaSum"] == 1
    require_as_much(work(2, 4), of_two)


def test_each_variable_is_moved_with_moments_of_its_own(of_two):
    assert of_two.trainable > 20
    others = 6  # rate, updates, skipped updates, telemetry of layers and gradient, the sums
    assert of_two.assigned == 3 * of_two.trainable + others


def test_a_wait_that_cannot_be_measured_is_not_reported():
    with tf.Graph().as_default():
        assert not TfDistribute(named_tpus.strategy(2, 2)).measures_input_wait
    assert TfDistribute(tf.distribute.get_strategy()).measures_input_wait
