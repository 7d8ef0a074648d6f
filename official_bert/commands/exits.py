"""Trains and maps the outcome to an exit code."""

from official_bert.system import messages
from official_bert.training.trainer import Diverged, Trainer
from official_bert.training.training_log import Stopped

DIVERGED = 3  # exit code


def train(trainer: Trainer) -> int:
    """Trains to the end, or until the process is asked to stop; returns the exit code.

    Raises:
        messages.Failed: the run diverged, or the disk failed it.
        ValueError: as `Trainer.train`.
    """
    try:
        trainer.train()
    except Stopped as stopped:
        print(stopped)
        return stopped.code
    except Diverged as error:
        raise messages.Failed(error, DIVERGED) from error
    except OSError as error:  # the disk, in the middle of the run
        reason = str(error).rstrip(".")
        raise messages.Failed(
            f"{reason}. The checkpoints already written in {trainer.model_dir} are intact."
        ) from error
    return 0
