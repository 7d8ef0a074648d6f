"""What a small BERT learns in equal time: before and now, each ingredient, and Hugging Face.

    python benchmarks/same_hour.py

A trial is one pre-training, with one set of ingredients and one seed, on the English text that
comes with Python. All end after the same time, in which measuring the speed, tracing and
evaluations are included; a faster step makes more updates. Each finished trial is a line of
`--results`; the command, given again, resumes with the next one. With `--jobs=2`, two trials run at
a time, each on its share of the cores.

The peer is `BertForMaskedLM` with the `Trainer`, collator and blocks of text of `transformers`' own
script for masked words, `run_mlm.py`, on the same text, vocabulary, model and machine.

Needs torch, transformers, accelerate and matplotlib, and a machine that does nothing else
meanwhile.
"""

import copy
import json
import os
import pathlib
import shutil
import sys
import time
from statistics import mean

import claim
import machine
import numpy as np
import stats
import trials

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.protocols import Lengths
from official_bert.stages import Optimizer, Run, Stage
from official_bert.system import locks
from official_bert.tasks.pretraining import Pretraining

SETTINGS = {
    "training_minutes": 3.0,
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initial_stddev": 0.06,
    "tokens": 2048,  # of a batch
    "lamb_rate": 8e-3,
    "adamw_rate": 3e-3,
    "orscale_rate": 2e-3,
    "muon_rate": 4e-3,
    "lamb_decay": 0.01,
    "adamw_decay": 0.01,
    "orscale_decay": 0.1,
    "muon_decay": 0.1,
    "beta_2": 0.98,
    "eval_steps": 250,
    "peer_rate": 1e-3,
    "peer_warmup": 0.06,  # share of its updates
    "seeds": 3,
    "arms": [],  # filled below
}
# Stages: steps (the time decides how many there are; these are proportions), tokens per sequence,
# tokens to predict of each, steps of warm-up.
STAGES_BEFORE = ((1_000, 16, 3, 200), (6_500, 64, 16, 200))
STAGES_NOW = ((1_000, 16, 7, 100), (3_000, 64, 26, 200))
BEFORE = {"rows": "documents", "optimizer": "lamb", "stages": STAGES_BEFORE}
NOW = {"rows": "full", "optimizer": "muon", "stages": STAGES_NOW}
ARMS = {  # name: ingredients
    "before": BEFORE,
    "now": NOW,
    "before + Muon": {**BEFORE, "optimizer": "muon"},
    "before + more masks": {**BEFORE, "stages": ((1_000, 16, 7, 200), (6_500, 64, 26, 200))},
    "before + full rows": {**BEFORE, "rows": "full"},
    "before + more short rows": {**BEFORE, "stages": ((1_000, 16, 3, 100), (3_000, 64, 16, 200))},
    "now with fewer masks": {**NOW, "stages": ((1_000, 16, 3, 100), (3_000, 64, 16, 200))},
    "now with falling masks": {**NOW, "stages": ((1_000, 16, 7, 100), (3_000, 64, 13, 200))},
    "now with a growing batch": {**NOW, "batch_shares": (0.5, 1.0)},
    "now with LAMB": {**NOW, "optimizer": "lamb"},
    "now with AdamW": {**NOW, "optimizer": "adamw"},
    "now with OrScale": {**NOW, "optimizer": "orscale"},
}
PEER = "Hugging Face"
SETTINGS["arms"] = [*list(ARMS)[:2], PEER, *list(ARMS)[2:]]
THREE_LENGTHS = ((1_000, 16, 7, 100), (1_500, 32, 13, 100), (1_500, 64, 26, 200))
ARMS |= {  # of the search
    "now with fewer short rows": {**NOW, "stages": ((500, 16, 7, 50), (3_500, 64, 26, 200))},
    "now with three lengths": {**NOW, "stages": THREE_LENGTHS},
    "now with documents as rows": {**NOW, "rows": "documents"},
    "now with packed rows": {**NOW, "rows": "packed"},
    "now with [MASK] only": {**NOW, "only_masks": True},
    "now with dropout": {**NOW, "dropout": 0.1},
    "now with a growing depth": {**NOW, "depths": (1, None)},
}
HELD_OUT = Lengths(64, 10)  # the rows on which all are compared at the end
HELD_OUT_SHARE = 0.15  # of their tokens is masked
SCORED_ROWS = 128
MEASURED_UPDATES = 40  # of the peer, to know how many fit into the time


def all_trials(settings, records):
    return [
        {"arm": arm, "seed": seed}
        for seed in range(1, settings["seeds"] + 1)
        for arm in settings["arms"]
    ]


def problem(settings):
    if unknown := [arm for arm in settings["arms"] if arm not in (*ARMS, PEER)]:
        return f"arms must be among {', '.join((*ARMS, PEER))}; got {', '.join(unknown)}."
    return None


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


# Trials


def run(options, settings, trial, records):
    """One trial in a process of its own; see `claim.Claim`."""
    folder = options.data_dir / f"text_{settings['vocab_size']}_{settings['documents']}"
    folder.mkdir(parents=True, exist_ok=True)
    make_data(folder, settings)
    model_dir = options.data_dir / f"arm_{settings['arms'].index(trial['arm'])}_{trial['seed']}"
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    arguments = {"folder": str(folder), "model_dir": str(model_dir)}
    arguments |= {"settings": settings, "trial": trial}
    command = [os.path.relpath(__file__), f"--trial={json.dumps(arguments)}"]
    found = trials.in_child(command, model_dir, trial, results_in)
    if found is None:
        return None
    del found["command"]  # of the child, with all settings in it
    found["said"] = f"{found['curve'][-1]['step']} updates, {found['report']:.3f} nats"
    return found


def results_in(folder):
    return {"curve": trials.read_curve(folder), "diverged": False} | json.loads(
        (folder / "scores.json").read_text()
    )


def train(folder, model_dir, settings, trial):
    """Runs a trial in this process, which leaves its log and its scores."""
    folder, model_dir = pathlib.Path(folder), pathlib.Path(model_dir)
    train_one = train_peer if trial["arm"] == PEER else train_ours
    loss, accuracy = train_one(folder, model_dir, settings, trial)
    scores = {"report": loss, "report_accuracy": 100 * accuracy}
    (model_dir / "scores.json").write_text(json.dumps(scores))


def train_ours(folder, model_dir, settings, trial):
    """Trains an arm; returns the loss and the accuracy on the held-out rows."""
    ingredients = ARMS[trial["arm"]]
    run = run_of(folder, settings, ingredients, trial["seed"])
    trainer = trials.trainer(
        run,
        model_dir,
        eval_files=(evaluated(folder, ingredients["stages"]),),
        eval_batch_size=SCORED_ROWS,
        steps_per_loop=50,
        **dict.fromkeys(("log_steps", "eval_steps"), settings["eval_steps"]),
    )
    trainer.train()
    return score(trainer, held_out(folder, run.config))


def score(trainer, batches, numbers=None):
    """The loss in nats and the accuracy of a trained model over batches; None: over all."""
    numbers = numbers or range(batches.num_batches)
    step = trainer.engine.evaluation_step(trainer.run.task, trainer.model)
    feed = trainer.engine.feed(lambda *_: batches, numbers)
    sums = sum(np.asarray(step(feed), np.float64) for _ in numbers)
    metrics = trainer.run.task.metrics(sums)
    return metrics["masked_lm_loss"], metrics["masked_lm_accuracy"]


def run_of(folder, settings, ingredients, seed):
    """The run of an arm."""
    kind, stages, count = ingredients["optimizer"], [], len(ingredients["stages"])
    shares = ingredients.get("batch_shares", [1.0] * count)
    depths = ingredients.get("depths", [None] * count)
    for index, (steps, length, predicted, warmup_steps) in enumerate(ingredients["stages"]):
        rate = settings[f"{kind}_rate"]
        path = trained(folder, ingredients["rows"], length, predicted)
        stages.append(
            Stage(
                steps=steps,
                batch_size=int(shares[index] * settings["tokens"]) // length,
                max_seq_length=length,
                max_predictions_per_seq=predicted,
                learning_rate=rate,
                warmup_steps=warmup_steps,
                end_learning_rate=0.0 if index == count - 1 else rate / 2,
                input_files=(path,),
                depth=depths[index],
            )
        )
    optimizer = Optimizer(
        type=kind, beta_2=settings["beta_2"], weight_decay=settings[f"{kind}_decay"]
    )
    dropout = ingredients.get("dropout", 0.0)
    kind_of_task = OnlyMasks if ingredients.get("only_masks") else Pretraining
    return Run(
        config=trials.config_of(folder, settings, 128, settings["initial_stddev"], dropout),
        stages=tuple(stages),
        input_files=(),
        task=kind_of_task(use_next_sentence_label=False),
        optimizer=optimizer,
        minutes=settings["training_minutes"],
        seed=seed,
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


def train_peer(folder, model_dir, settings, trial):
    """Trains Hugging Face's way; returns the loss and the accuracy on the held-out rows."""
    import hugging_face

    ends = time.monotonic() + 60 * settings["training_minutes"]
    theirs, train_for = peer(folder, model_dir, settings, trial["seed"])
    each = seconds_of_peer(theirs, train_for)
    steps = max(1, int((ends - time.monotonic()) / each))
    seconds = train_for(steps, theirs)
    config = trials.config_of(folder, settings, 128, settings["initial_stddev"])
    loss, accuracy = hugging_face.evaluate(theirs, held_out(folder, config), "logits")
    values = {"masked_lm_loss": loss, "masked_lm_accuracy": accuracy}
    lines = {"train": {"timing": {"seconds": seconds}}, "eval": values}
    with open(model_dir / "train_log.jsonl", "w") as log:
        for kind, line in lines.items():
            log.write(json.dumps({"kind": kind, "step": steps, **line}) + "\n")
    return loss, accuracy


def peer(folder, model_dir, settings, seed, **changed):
    """`run_mlm.py`'s way: text cut into blocks, 15 % masked, AdamW with linear decay to zero.

    Args:
        **changed: Arguments of `TrainingArguments` that replace the study's.

    Returns:
        Their model, and a function of (steps, model, callbacks of theirs) that trains it and
        returns the seconds.
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

    def train_for(steps, model, callbacks=()):
        arguments = {
            "output_dir": str(model_dir),
            "max_steps": steps,
            "warmup_steps": round(settings["peer_warmup"] * steps),
            "learning_rate": settings["peer_rate"],
            "per_device_train_batch_size": settings["tokens"] // length,
            "seed": seed,
            "disable_tqdm": True,
            "logging_steps": 10**9,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
        }
        arguments = transformers.TrainingArguments(**(arguments | changed))
        collator = transformers.DataCollatorForLanguageModeling(tokenizer)
        begun = time.monotonic()
        transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=collator,
            callbacks=[*callbacks],
        ).train()
        return time.monotonic() - begun

    return theirs, train_for


def seconds_of_peer(theirs, train_for):
    """Seconds of one of their updates, measured on a copy of their model."""
    tried = copy.deepcopy(theirs)
    few = train_for(5, tried)
    return (train_for(5 + MEASURED_UPDATES, tried) - few) / MEASURED_UPDATES


def _blocks(text, tokenizer, length):
    """All of a text in blocks of one length, the rest dropped, as `run_mlm.py` groups texts."""
    ids = [i for line in text.splitlines() if line for i in tokenizer(line)["input_ids"]]
    starts = range(0, len(ids) - length + 1, length)
    return [{"input_ids": ids[s : s + length], "attention_mask": [1] * length} for s in starts]


# The results


def by_arm(work, settings):
    """{arm: its records, by seed}, in the order of the settings."""
    found = {arm: [r for r in work if r["trial"]["arm"] == arm] for arm in settings["arms"]}
    return {arm: sorted(r, key=lambda r: r["trial"]["seed"]) for arm, r in found.items() if r}


def tables(work, settings):
    """Updates, loss and accuracy of each arm, and its loss compared with `now`, by seed."""
    found = by_arm(work, settings)

    head = {
        "ingredients": lambda arm, _: arm,
        "updates": lambda _, runs: f"{round(mean(r['curve'][-1]['step'] for r in runs)):,}",
        **stats.loss_columns("held-out loss"),
        "less that of now": lambda arm, runs: (
            "–" if arm == "now" else stats.signed(stats.paired(runs, found.get("now", [])))
        ),
    }
    return {"arms": stats.columns(head, found.items())}


def draw(work, settings):
    """Held-out loss over minutes, a line per seed."""
    found = by_arm(work, settings)
    figure, ((axis,),) = stats.figure(1, 1, (8, 5))
    shown = [arm for arm in ("before", "now", PEER) if arm in found]
    shown += [arm for arm in found if arm not in shown]
    for number, arm in enumerate(shown):
        color = f"C{number}" if number < 3 else "#bbbbbb"
        for index, each in enumerate(found[arm]):
            minutes = [point["seconds"] / 60 for point in each["curve"]]
            losses = [point["masked_lm_loss"] for point in each["curve"]]
            label = (arm if number < 3 else "other ingredients" * (number == 3)) * (not index)
            style = {"color": color, "zorder": 3 if number < 3 else 1, "lw": 1.6}
            axis.plot(minutes, losses, ".-", label=label or None, **style)
    axis.set(xlabel="minutes of training", ylabel="held-out masked-LM loss, nats")
    axis.legend()
    return figure


CLAIM = claim.of(
    globals(),
    "same_hour",
    "What a small BERT learns in the same time",
    results="same_hour",
    trials=all_trials,
    flags={
        "seeds": (int, "seeds: 1, 2, …, of each arm (3)"),
        "arms": (claim.comma_separated, "names of ARMS, or Hugging Face (all)"),
        "training_minutes": (float, "minutes of a training (3)"),
    },
    lost="the loss is not a number",
    extent=("seeds", "arms"),
)


if __name__ == "__main__":
    sys.exit(claim.script(CLAIM, __doc__, train))
