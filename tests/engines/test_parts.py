"""Parts of the rows that the cores of a CPU compute side by side."""

import os
import subprocess
import sys

import numpy as np
import pytest
import small_runs
import tensorflow as tf
from two_replicas import two_replicas

from official_bert.data import input_pipeline
from official_bert.engines import strategies, tf_update
from official_bert.engines.tf_distribute import TfDistribute
from official_bert.training import stage_model

THREADS = """
import tensorflow as tf
from official_bert.engines import strategies
strategies.make_strategy("off")
tf.constant(1.0)
print(tf.config.threading.get_intra_op_parallelism_threads())
"""


@pytest.fixture(scope="module")
def trained(small_corpus):
    """Run, model and engine of one replica."""
    run = small_runs.make_run(small_corpus, [small_runs.SHORT])
    model, _ = stage_model.make_model_and_optimizer(run, small_runs.SHORT)
    return run, model, TfDistribute(tf.distribute.get_strategy())


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (2, 2), (13, 3), (16, 3)])
def test_outputs_are_those_of_all_rows_at_once_and_in_their_order(
    trained, monkeypatch, rows, parts
):
    run, model, engine = trained
    files = small_runs.SHORT.resolve(run.input_files)
    batch = input_pipeline.Batches(files, 16, 32, 5, seed=1)[0]
    batch = {name: values[:rows] for name, values in batch.items()}
    monkeypatch.setattr(tf_update, "parts_at_once", lambda _: 1)
    whole = engine.outputs(model)(batch)
    monkeypatch.setattr(tf_update, "parts_at_once", lambda _: 3)
    made = small_runs.counted_parts(monkeypatch)
    in_parts = engine.outputs(model)(batch)
    assert made == [parts]
    assert tf.nest.map_structure(np.shape, whole) == tf.nest.map_structure(np.shape, in_parts)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, in_parts
    )


def test_an_evaluation_in_parts_has_the_sums_of_the_whole(trained, monkeypatch):
    run, model, engine = trained
    files = small_runs.SHORT.resolve(run.input_files)
    batches = input_pipeline.Batches(files, 14, 32, 5, seed=1)
    made, found = small_runs.counted_parts(monkeypatch), []
    for parts in (1, 3):
        monkeypatch.setattr(tf_update, "parts_at_once", lambda _, parts=parts: parts)
        step = engine.evaluation_step(run.task, model)
        found.append(np.asarray(step(engine.feed(lambda *_: batches, range(1)))))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert {*made} == {1, 3}


@pytest.mark.parametrize("name", ["off", "one_device", "mirrored"])
def test_one_replica_on_a_cpu_divides_its_rows(monkeypatch, name):
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 1)
    strategy = strategies.make_strategy(name, 0)
    for cores, parts in ((1, 1), (2, 2), (4, 4), (5, 1), (64, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: {*range(n)})
        assert tf_update.parts_at_once(strategy) == parts
        assert tf_update.parts_at_once(two_replicas()) == 1
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert tf_update.parts_at_once(strategy) == 1


def test_no_command_gives_operations_one_thread():
    """Some runs whose rows were divided ended in a segmentation fault."""
    ended = subprocess.run(
        [sys.executable, "-c", THREADS],
        env={name: v for name, v in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(ended.stdout) == 0


@pytest.mark.parametrize(
    ("rows", "most", "sizes"), [(7, 3, [2, 2, 3]), (2, 4, [1, 1]), (5, 1, [5])]
)
def test_parts_are_the_rows_in_order_and_of_about_the_same_size(rows, most, sizes):
    parts = tf_update.row_parts({"ids": tf.range(rows)}, most)
    assert [len(part["ids"]) for part in parts] == sizes
    np.testing.assert_array_equal(np.concatenate([part["ids"] for part in parts]), np.arange(rows))
