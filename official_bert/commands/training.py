"""Runs a training to its end: exit codes, and scores, report and weights for the trackers."""

import datetime
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from official_bert.system import messages, whole_files

if TYPE_CHECKING:
    from official_bert.training.trainer import Trainer

DIVERGED = 3  # exit code
# Files of a model besides its weights.
_OF_A_MODEL = ("bert_config.json", "vocab.txt", "tokenizer_config.json", "labels.json", "run.json")


def train(trainer: "Trainer") -> int:
    """Trains to the end, or until the process is asked to stop; returns the exit code.

    Raises:
        messages.Failed: the run diverged, or the disk failed.
        ValueError: as `Trainer.train`.
    """
    from official_bert.training.trainer import Diverged
    from official_bert.training.training_log import Stopped

    code = messages.USAGE
    try:
        trainer.train()
        code = 0
    except Stopped as stopped:
        print(stopped)
        code = stopped.code
    except Diverged as error:
        code = DIVERGED
        raise messages.Failed(error, code) from error
    except OSError as error:  # the disk, during the run
        reason = str(error).rstrip(".")
        raise messages.Failed(
            f"{reason}. The checkpoints already written in {trainer.model_dir} are intact."
        ) from error
    finally:
        if code:
            trainer.trackers.end(code)
    return code


def publish(trainer: "Trainer", scores: Mapping[str, float] | None = None) -> int:
    """Sends scores, report and final weights of a finished run to its trackers; returns 0.

    Files in a bucket are not sent. A report that cannot be made is a warning.
    """
    if not trainer.trackers:
        return 0
    from official_bert.reporting import contents, page

    folder, files = trainer.model_dir, []
    if scores:
        trainer.trackers.write("scores", trainer.step, scores)
    if isinstance(folder, pathlib.Path):
        files = [path for name in _OF_A_MODEL if (path := folder / name).exists()]
        files.append(folder / "pretrained")
        report = folder / "report.html"
        try:
            text = page.render(contents.read(folder), datetime.datetime.now())
            whole_files.write_text(report, text)
            files.append(report)
        except (OSError, ValueError) as error:
            messages.warn(f"{report} could not be made, so no tracker gets it: {error}")
    trainer.trackers.end(0, files)
    return 0
