"""The checkpoint known to be good is one that a run gone astray can return to."""

import dataclasses
import json
import math
import os
import types

import numpy as np
import pytest
from small_runs import QUIET, SHORT, make_run, train

from official_bert.engines import loop_state
from official_bert.stages import Optimizer
from official_bert.tasks.classification import Classification
from official_bert.tasks.labels import Classes, Numbers
from official_bert.tasks.pretraining import Pretraining
from official_bert.tasks.tables import Columns
from official_bert.training import checkpoints
from official_bert.training.known_good import KnownGood
from official_bert.training.trainer import Diverged

EVERY_STEP = dataclasses.replace(QUIET, steps_per_loop=1, save_checkpoints_steps=1)


def sums(loss):
    """Sums of one update with this loss."""
    values = {"masked_lm_loss": loss, "masked_lm_weight": 1.0, "next_sentence_weight": 1.0}
    return [values.get(name, 0.0) for name in Pretraining.sums]


GOOD = {"kernel": np.full(3, 0.1, np.float32), "optimizer/iterations": np.int64(10**9)}


@pytest.fixture
def saves(small_corpus, tmp_path):
    """A function that saves tensors, and the losses of the updates before it; and the store."""
    store = checkpoints.CheckpointStore(tmp_path, keep=2)
    good = KnownGood(make_run(small_corpus), store)
    steps = iter(range(1, 100))

    def save(loss, tensors=GOOD):
        exploded = good.judge(sums(loss) if loss is not None else [0.0] * len(Pretraining.sums))
        state = good.state(tensors)
        prefix = store.save(tensors, next(steps), {"loop": {}, "seconds": 0.0, **state})
        good.saved(os.path.basename(prefix), state["suspect"])
        return exploded

    return save, store


def test_a_checkpoint_is_known_to_be_good_once_the_updates_after_it_went_well(saves):
    save, store = saves
    save(6.0)
    assert store.known_good() is None
    save(5.0)
    assert store.known_good() == "ctl_step_1.ckpt-1"
    save(5.9)
    assert store.known_good() == "ctl_step_2.ckpt-2"


@pytest.mark.parametrize("loss", [math.nan, math.inf, 4.5e13, 6.1, None])  # None: all were skipped
def test_updates_that_went_wrong_or_were_skipped_confirm_nothing_and_rotation_spares_the_good(
    saves, loss
):
    save, store = saves
    save(6.0)
    assert save(5.0) is None
    for _ in range(5):
        exploded = save(loss)
        assert exploded is None if loss is None else exploded == pytest.approx(loss, nan_ok=True)
    assert store.known_good() == "ctl_step_1.ckpt-1"
    left = {path.stem for path in store.directory.glob("ctl_step_*.json")}
    assert left == {"ctl_step_1.ckpt-1", "ctl_step_6.ckpt-6", "ctl_step_7.ckpt-7"}
    assert checkpoints.read_tensors(store.directory / "ctl_step_1.ckpt-1").keys() == GOOD.keys()


@pytest.mark.parametrize(
    "tensors",
    [
        {"kernel": np.array([0.1, -4.5e13], np.float32)},
        {"kernel": np.array([np.nan], np.float32)},
        {"kernel": GOOD["kernel"], "kernel/adam_v": np.array([np.inf], np.float32)},
    ],
)
def test_weights_that_are_huge_or_not_finite_are_never_good_whatever_the_losses(saves, tensors):
    save, store = saves
    save(6.0, tensors)
    save(5.0)
    assert store.known_good() is None
    save(5.0)
    assert store.known_good() == "ctl_step_2.ckpt-2"


def judged(task, losses):
    """Which mean losses have exploded, from one checkpoint to the next."""
    run, store = types.SimpleNamespace(task=task, config=None), types.SimpleNamespace()
    good, found = KnownGood(run, store), []
    for loss in losses:
        values = {"loss": loss, "examples": 1.0}
        found.append(good.judge([values.get(name, 0.0) for name in task.sums]))
        copy = KnownGood(run, store)
        copy.resume(types.SimpleNamespace(name="a", state=good.state({}) | {"suspect": "b"}))
        good = copy  # as if the run were resumed
    return [loss is not None for loss in found]


def classification(labels):
    return Classification(labels=labels, columns=Columns("text"), vocab_file="vocab.txt")


def test_a_loss_of_two_classes_explodes_by_less_than_a_nat():
    task = classification(Classes(("no", "yes")))
    assert judged(task, [0.7, 0.3, 0.1, 0.4, 0.5, 0.1]) == [False] * 4 + [True, False]
    assert judged(task, [1.0, 1.1]) == [False, True]  # what guessing gets is 0.69


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("bounded", [False, True])
def test_a_loss_of_numbers_is_judged_on_the_scale_that_it_has(scale, bounded):
    bounds = (0.0, 2 * scale**0.5) if bounded else ()
    task = classification(Numbers(*bounds))
    losses = [scale * loss for loss in (0.9, 0.2, 0.6, 0.1, 0.7, 0.2)]
    assert judged(task, losses) == [False] * 4 + [True, False]


def test_large_moments_and_counters_are_no_fault(saves):
    save, store = saves
    save(6.0, GOOD | {"kernel/adam_v": np.array([1e6], np.float32)})
    save(6.0)
    assert store.known_good() == "ctl_step_1.ckpt-1"


@pytest.mark.parametrize("optimizer", ["adamw", "keras.optimizers:Adam"])
def test_a_run_whose_weights_are_ruined_keeps_a_checkpoint_from_before(
    optimizer, small_corpus, tmp_path, capsys
):
    """Its first update is at rate 0; the next ones leave finite weights of 1e5 and more."""
    ruinous = dataclasses.replace(SHORT, steps=12, learning_rate=1e6, warmup_steps=10)
    run = make_run(small_corpus, [ruinous], optimizer=Optimizer(type=optimizer))
    options = dataclasses.replace(EVERY_STEP, keep_checkpoint_max=1, max_skipped_updates=3)
    with pytest.raises(
        Diverged, match=r"ckpt-1: resume there \(--resume_from=1\) with a lower learning"
    ):
        train(run, tmp_path, options)
    store = checkpoints.CheckpointStore(tmp_path)
    assert store.known_good() == "ctl_step_1.ckpt-1"
    tensors = store.at(1).tensors()
    assert max(np.abs(value).max() for name, value in tensors.items() if "bert" in name) < 2
    ruined = store.latest().tensors()
    assert max(np.abs(value).max() for name, value in ruined.items() if "bert" in name) > 1e5
    said = capsys.readouterr().out
    assert f"diverged: in {tmp_path}/ctl_step_2.ckpt-2, " in said
    assert "known to be good is ctl_step_1.ckpt-1: resume there (--resume_from=1)" in said


def test_no_checkpoint_is_written_amid_skipped_updates_but_for_the_last(
    small_corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(loop_state, "FIRST_LOSS_SCALE", 2.0**40)
    monkeypatch.setattr(loop_state, "MAX_LOSS_SCALE", 2.0**40)
    for steps, folder in ((40, tmp_path / "long"), (4, tmp_path / "short")):
        stage = dataclasses.replace(SHORT, steps=steps, warmup_steps=0)
        options = dataclasses.replace(
            EVERY_STEP, save_checkpoints_steps=2, keep_checkpoint_max=0, max_skipped_updates=100
        )
        train(make_run(small_corpus, [stage], dtype="fp16"), folder, options)
        saved = {}
        for path in folder.glob("ctl_step_*.json"):
            manifest = json.loads(path.read_text())
            saved[manifest["step"]] = manifest["state"]["loop"]["skipped_in_a_row"]
        assert saved.pop(steps) == (4 if steps == 4 else 0)
        assert set(saved.values()) <= {0}
        if saved:  # the first is of the first update, though one was due before
            tensors = checkpoints.CheckpointStore(folder).at(min(saved)).tensors()
            assert tensors["optimizer/skipped_updates"] == min(saved) - 1 > 2
