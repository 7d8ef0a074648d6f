"""A small BERT on the documentation that comes with Python, trained as `run_pretraining` does.

Text, model and vocabulary of `make demo`, with two held-out sets: one to choose by, one to report
on. The next sentence is not trained.
"""

import contextlib
import io
import math
import pathlib
import tempfile
from typing import Any

import trials

from official_bert.stages import Optimizer, Stage
from official_bert.tasks.pretraining import Pretraining

MODEL = {  # the settings of `make demo`
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initializer_range": 0.06,
    "masked_lm_prob": 0.25,  # in training; 15 % in the held-out text
}
DIVERGED = 20.0  # nats
LOST = f"the training loss was not finite or above {DIVERGED:g} nats"
PARTS = {1: "select", 3: "report"}  # of every 12 documents, the ones that are held out
EVAL_BATCH, EVAL_BATCHES = 256, 6  # sequences of each held-out set
CHUNK = 50  # steps per call and per line of the log
MICRO_TOKENS = 1024  # of the part of a batch that is computed at once: fits into a cache


class StudyTask(Pretraining):
    """Masked words only; an evaluation reads the first `EVAL_BATCHES` batches."""

    def batches(self, *arguments, held_out=False, **options):
        found = super().batches(*arguments, held_out=held_out, **options)
        if held_out:
            found.num_batches = min(found.num_batches, EVAL_BATCHES)
        return found


def make_data(folder: pathlib.Path, settings: dict, lengths: dict[int, int]) -> None:
    """Vocabulary, and records of three sets for each length; see `trials.make_data`."""
    trials.make_data(folder, settings, lengths, PARTS)


def train(
    folder: pathlib.Path,
    settings: dict,
    stage: Stage,
    optimizer: Optimizer,
    seed: int,
    evaluations: int,
    positions: int | None = None,
    keep: pathlib.Path | None = None,
    **start: Any,
) -> dict[str, Any]:
    """Trains one stage.

    Args:
        folder: The data; the run is made in it and removed.
        settings: The settings of the study, with those of `MODEL`.
        seed: Of initial values, order and masks, of the held-out sets too.
        evaluations: Number of evaluations, evenly spread, the last at the end.
        positions: The longest sequence of the model; None: of the stage.
        keep: Where to keep the folder of a run that has not diverged.
        **start: `init_checkpoint` and `init_moments` of the run.

    Returns:
        The values of a record: `start` (held-out loss before the first step), `curve` (lines with
        `step`, `report` and `report_accuracy`, in per cent), `select`, `report` and
        `report_accuracy` at the end, None if the run diverged, and `diverged`. Losses are in nats.
    """
    from official_bert.training.trainer import Diverged
    from official_bert.training.training_log import Stopped

    length = stage.max_seq_length
    rows = math.gcd(stage.batch_size, max(1, MICRO_TOKENS // length))
    config = trials.config_of(folder, settings, positions or length, settings["initializer_range"])
    fields = {"optimizer": optimizer, "seed": seed} | start
    fields["gradient_accumulation_steps"] = stage.batch_size // rows
    run = trials.make_run(folder, settings, config, (stage,), StudyTask, **fields)
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        contextlib.redirect_stdout(io.StringIO()),  # the lines of the log
    ):
        model_dir, diverged = pathlib.Path(scratch) / "run", False
        trainer = trials.trainer(
            run,
            model_dir,
            log_steps=CHUNK,
            steps_per_loop=CHUNK,
            eval_steps=math.ceil(stage.steps / evaluations),
            eval_files=(trials.file_of(folder, "report"),),
            eval_batch_size=EVAL_BATCH,
        )

        def loss(split):
            files = stage.resolve([trials.file_of(folder, split)])
            given = files, stage.lengths, EVAL_BATCH, config
            return trainer._evaluate_on(
                lambda *shard: run.task.batches(*given, seed=seed, shard=shard, held_out=True)
            )["masked_lm_loss"]

        before = loss("report")
        try:
            trainer.train()
        except Diverged:
            diverged = True
        except Stopped:
            raise KeyboardInterrupt from None
        select = loss("select")
        log = model_dir / "train_log.jsonl"
        losses = [line["loss"] for line in trials.read_log(log, "train")]
        lines = trials.read_log(log, "eval")
        if keep and not diverged:
            model_dir.replace(keep)
    curve = [
        {
            "step": line["step"],
            "report": line["masked_lm_loss"],
            "report_accuracy": 100 * (line["masked_lm_accuracy"] or 0.0),
        }
        for line in lines
    ]
    known = [*losses, select, *(line["report"] for line in curve)]
    diverged |= not all(loss is not None and loss < DIVERGED for loss in known)
    end = (curve[-1] if curve else {}) | {"select": select}
    names = ("select", "report", "report_accuracy")
    values = {name: None if diverged else end[name] for name in names}
    said = "no held-out loss" if diverged else f"held-out loss {values['report']:.3f}"
    return values | {"start": before, "curve": curve, "diverged": diverged, "said": said}
