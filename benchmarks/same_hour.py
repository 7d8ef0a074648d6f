"""Defines the arms of the study of equal time and their data, and trains Hugging Face's peer.

An arm is one set of ingredients of a small pre-training on the English text that comes with Python.

The peer is `BertForMaskedLM` with the `Trainer`, collator and blocks of text of `transformers`' own
script for masked words, `run_mlm.py`, on the same text, vocabulary, model and machine.
"""

import os
import pathlib

import machine
import numpy as np
import trials

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.protocols import Lengths
from official_bert.stages import Optimizer, Run, Stage
from official_bert.system import locks
from official_bert.tasks.pretraining import Pretraining

# Stages: steps (the time decides how many there are; these are proportions), tokens per sequence,
# tokens to predict of each, steps of warm-up.
STAGES_BEFORE = ((1_000, 16, 3, 200), (6_500, 64, 16, 200))
STAGES_NOW = ((1_000, 16, 7, 100), (3_000, 64, 26, 200))
STAGES_OF_THREE = ((1_000, 16, 7, 100), (1_500, 32, 13, 100), (1_500, 64, 26, 200))
BEFORE = {"rows": "documents", "optimizer": "lamb", "stages": STAGES_BEFORE}
NOW = {"rows": "full", "optimizer": "muon", "stages": STAGES_NOW}
ARMS = {  # name: ingredients
    "before": BEFORE,
    "now": NOW,
    "now with fewer masks": {**NOW, "stages": ((1_000, 16, 3, 100), (3_000, 64, 16, 200))},
    "now with falling masks": {**NOW, "stages": ((1_000, 16, 7, 100), (3_000, 64, 13, 200))},
    "now with a growing batch": {**NOW, "batch_shares": (0.5, 1.0)},
    "now with LAMB": {**NOW, "optimizer": "lamb"},
    "now with AdamW": {**NOW, "optimizer": "adamw"},
    "now with OrScale": {**NOW, "optimizer": "orscale"},
    "now with fewer short rows": {**NOW, "stages": ((500, 16, 7, 50), (3_500, 64, 26, 200))},
    "now with three lengths": {**NOW, "stages": STAGES_OF_THREE},
    "now with documents as rows": {**NOW, "rows": "documents"},
    "now with packed rows": {**NOW, "rows": "packed"},
    "now with [MASK] only": {**NOW, "only_masks": True},
    "now with dropout": {**NOW, "dropout": 0.1},
    "now with a growing depth": {**NOW, "depths": (1, None)},
    "now with repeated positions": {**NOW, "new_positions": "repeat", "as_fast_as": "now"},
}
PEER = "Hugging Face"
HELD_OUT = Lengths(64, 10)  # the rows on which all are compared at the end
HELD_OUT_SHARE = 0.15  # of their tokens is masked
SCORED_ROWS = 128


# Data


def make_data(folder, settings):
    """Text, vocabulary, and the records of all arms, once."""
    trials.make_data(folder, settings, {}, {1: "held_out"})
    with locks.exclusive(folder, "Waiting for the data that another trial makes …", ".data.lock"):
        _write_records(scored(folder), "held_out", "documents", *HELD_OUT)
        for ingredients in (ARMS[arm] for arm in settings["arms"] if arm != PEER):
            rows, stages = ingredients["rows"], ingredients["stages"]
            for _, length, predicted, _ in stages:
                _write_records(
                    trained(folder, rows, length, predicted), "train", rows, length, predicted
                )
                path = evaluated(folder, stages).format(max_seq_length=length)
                _write_records(path, "held_out", "documents", length, predicted)


def _write_records(path, split, rows, length, predicted):
    path = pathlib.Path(path)
    if path.exists():
        return
    form = Settings(
        max_seq_length=length,
        max_predictions_per_seq=predicted,
        masked_lm_prob=predicted / length if split == "train" else HELD_OUT_SHARE,
        row_filling=rows,
    )
    text, vocab = path.parent / f"{split}.txt", path.parent / "vocab.txt"
    create_pretraining_data(
        str(text), str(path), str(vocab), form, dynamic_masking=True, input_format="paragraphs"
    )


def trained(folder, rows, length, predicted):
    """The records of a stage."""
    return f"{folder}/train_{rows}_{length}_{predicted}.tfrecord"


def evaluated(folder, stages):
    """The held-out records of an arm's curve, with the placeholder for the length."""
    predicted = "_".join(str(each) for _, _, each, _ in stages)
    return f"{folder}/held_out_{predicted}_of_{{max_seq_length}}.tfrecord"


def scored(folder):
    """The held-out records on which all are compared."""
    return f"{folder}/held_out.tfrecord"


def held_out(folder, config):
    """The batches on which every trial is scored at its end, with the same masks."""
    return Pretraining(use_next_sentence_label=False).batches(
        [scored(folder)],
        HELD_OUT,
        SCORED_ROWS,
        config,
        seed=0,
        shard=(0, 1),
        held_out=True,
    )


# Runs


def score(trainer, batches, numbers=None):
    """The loss in nats and the accuracy of a trained model over batches; None: over all."""
    numbers = numbers or range(batches.num_batches)
    step = trainer.engine.evaluation_step(trainer.run.task, trainer.model)
    feed = trainer.engine.feed(lambda *_: batches, numbers)
    sums = sum(np.asarray(step(feed), np.float64) for _ in numbers)
    metrics = trainer.run.task.metrics(sums)
    return metrics["masked_lm_loss"], metrics["masked_lm_accuracy"]


def run_of(folder, settings, trial, values):
    """The run of an arm.

    Args:
        values: Its `rate`, `one_minus_beta_1` and `weight_decay`, and the `updates` of its stages,
            or None where the proportions of the arm stand.
    """
    ingredients, rate = ARMS[trial["arm"]], values["rate"]
    kind, stages, count = ingredients["optimizer"], [], len(ingredients["stages"])
    shares = ingredients.get("batch_shares", [1.0] * count)
    depths = ingredients.get("depths", [None] * count)
    updates = values["updates"] or [steps for steps, *_ in ingredients["stages"]]
    for index, (steps, length, predicted, warmup_steps) in enumerate(ingredients["stages"]):
        path = trained(folder, ingredients["rows"], length, predicted)
        stages.append(
            Stage(
                steps=updates[index],
                batch_size=int(shares[index] * settings["tokens"]) // length,
                max_seq_length=length,
                max_predictions_per_seq=predicted,
                learning_rate=rate,
                warmup_steps=round(warmup_steps * updates[index] / steps),
                end_learning_rate=0.0 if index == count - 1 else rate / 2,
                input_files=(path,),
                depth=depths[index],
                new_positions=ingredients.get("new_positions", "fresh") if index else "fresh",
            )
        )
    momentum = 1 - values["one_minus_beta_1"]
    of_matrices = {"settings": {"momentum": momentum}}
    of_kind = of_matrices if kind in ("orscale", "muon") else {"beta_1": momentum}
    task = OnlyMasks if ingredients.get("only_masks") else Pretraining
    dropout = ingredients.get("dropout", 0.0)
    return Run(
        config=trials.config_of(folder, settings, 128, settings["initial_stddev"], dropout),
        stages=tuple(stages),
        input_files=(),
        task=task(use_next_sentence_label=False),
        optimizer=Optimizer(
            type=kind, beta_2=settings["beta_2"], weight_decay=values["weight_decay"], **of_kind
        ),
        seed=trial["seed"],
    )


class OnlyMasks(Pretraining):
    """As `Pretraining`, but in training [MASK] replaces every token to predict."""

    def batches(self, files, *arguments, held_out=False, **options):
        batches = super().batches(files, *arguments, held_out=held_out, **options)
        if held_out:
            return batches
        vocab = tokenization.read_vocabulary(f"{os.path.dirname(files[0])}/vocab.txt")
        return MaskedBatches(batches, vocab["[MASK]"])


class MaskedBatches:
    """Batches with [MASK] in place of every token to predict."""

    def __init__(self, batches, mask):
        self._batches, self._mask = batches, mask

    def __getattr__(self, name):
        return getattr(self._batches, name)

    def __getitem__(self, step):
        batch = self._batches[step]
        rows, places = np.nonzero(batch["masked_lm_weights"])
        positions = batch["masked_lm_positions"][rows, places]
        batch["input_ids"][rows, positions] = self._mask
        return batch


def peer(folder, model_dir, settings, seed, values):
    """`run_mlm.py`'s way: text cut into blocks, 15 % masked, AdamW with linear decay to zero.

    Args:
        values: As of `run_of`; the updates are given to the function that is returned.

    Returns:
        Their model, and a function of (steps, callbacks of theirs) that trains it.
    """
    import hugging_face
    import torch
    import transformers

    torch.set_num_threads(machine.cores())
    transformers.set_seed(seed)
    tokenizer = transformers.BertTokenizerFast(f"{folder}/vocab.txt")
    length = HELD_OUT.max_seq_length
    config = trials.config_of(folder, settings, 128, settings["initial_stddev"])
    theirs = hugging_face.bert_for_pretraining(config, "BertForMaskedLM")
    rows = _blocks((folder / "train.txt").read_text(), tokenizer, length)

    def train_for(steps, callbacks):
        arguments = {
            "output_dir": str(model_dir),
            "max_steps": steps,
            "warmup_steps": round(settings["peer_warmup"] * steps),
            "learning_rate": values["rate"],
            "weight_decay": values["weight_decay"],
            "adam_beta1": 1 - values["one_minus_beta_1"],
            "adam_beta2": settings["beta_2"],
            "per_device_train_batch_size": settings["tokens"] // length,
            "seed": seed,
            "disable_tqdm": True,
            "logging_steps": 10**9,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
        }
        arguments = transformers.TrainingArguments(**arguments)
        collator = transformers.DataCollatorForLanguageModeling(tokenizer)
        transformers.Trainer(
            model=theirs,
            args=arguments,
            train_dataset=rows,
            data_collator=collator,
            callbacks=[*callbacks],
        ).train()

    return theirs, train_for


def _blocks(text, tokenizer, length):
    """All of a text in blocks of one length, the rest dropped, as `run_mlm.py` groups texts."""
    ids = [i for line in text.splitlines() if line for i in tokenizer(line)["input_ids"]]
    starts = range(0, len(ids) - length + 1, length)
    return [{"input_ids": ids[s : s + length], "attention_mask": [1] * length} for s in starts]
