"""Ownership of a model directory: `run.json` records its run; any other run is refused.

Files are known by digests of their content: the same records and initial weights may be spelled
in another way, or be moved. Their paths are only shown.

Two changes of a run are possible on purpose. It can be lengthened: its last stage gets more steps.
And it can return to an earlier checkpoint and train on from there, with a lower learning rate for
instance (`resume_from`). `run.json` lists both under `changes`.
"""

import dataclasses
import json
import re

from official_bert.model.config import BertConfig
from official_bert.system.places import Place
from official_bert.system.whole_files import write_text
from official_bert.training.run_files import Abandoned, step_and_count

CONFIG = "bert_config.json"
# Files of a run next to its checkpoints.
_OF_A_RUN = (
    "train_log.jsonl",
    *(f"{name}/bert_model.ckpt-*.index" for name in ("best", "initial", "pretrained")),
)
# Settings that may differ when a run returns to a checkpoint: no tensor's shape and no part of the
# saved state depends on them.
_CHANGED_ON_RETURN = re.compile(
    r"stages\[\d+\]\.(learning_rate|warmup_steps|end_learning_rate|decay_power|decay_from)"
    r"|optimizer\.(beta_1|beta_2|epsilon|weight_decay|global_clipnorm|layer_decay)"
    r"|optimizer\.settings\.(adam_)?(beta_1|beta_2|epsilon|weight_decay)"
    r"|seed|records\[\d+\]|init_weights"
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run's right to a model directory, from `check`.

    Attributes:
        description: The settings that decide the run's weights, as JSON values.
        changes: The changes made on purpose so far.
        differences: Sentences on the changes of this start.
        return_to: The step of the checkpoint to return to; `None` resumes the newest one.
        has_returned: Whether an earlier start has made the return that `resume_from` requests.
    """

    description: dict
    changes: tuple[dict, ...] = ()
    differences: tuple[str, ...] = ()
    return_to: int | None = None
    has_returned: bool = False

    def abandoned(self) -> list[Abandoned]:
        """The checkpoints that the run has abandoned: a list of `Abandoned`."""
        return [
            Abandoned.between(change["resumed_from"], change["instead_of"])
            for change in self.changes
            if "instead_of" in change
        ]

    def change(self, resumed_from: str | None, newest: str | None) -> dict | None:
        """The entry of this start under `changes`, or `None` if it changes nothing.

        Args:
            resumed_from: Name of the checkpoint that is resumed, `None` if there is none yet.
            newest: Name of the newest checkpoint.
        """
        if self.return_to is not None:
            names = {"resumed_from": resumed_from, "instead_of": newest}
        elif self.differences:
            names = {"resumed_from": resumed_from}
        else:
            return None
        return names | {"differences": list(self.differences)}

    def write(self, directory: Place, config: BertConfig) -> None:
        """Records which run owns the directory; `bert_config.json` is for other tools."""
        contents = self.description | ({"changes": self.changes} if self.changes else {})
        write_text(directory / "run.json", json.dumps(contents, indent=1))
        # It may be the user's own, with more in it.
        if not _matches_config(directory / CONFIG, config):
            write_text(directory / CONFIG, config.to_json())


def check(
    directory: Place, config: BertConfig, description: dict, resume_from: int | None = None
) -> Claim:
    """Refuses the directory of another run.

    Args:
        directory: The model directory, which need not exist.
        description: The settings that decide the run's weights, as JSON values.
        resume_from: Step of the checkpoint to return to.

    Returns:
        A `Claim`.

    Raises:
        ValueError: listing the differences, or if `run.json` is damaged, or if a file that is not a
            run's would be overwritten.
    """
    theirs = read_run_json(directory)
    if theirs is None:
        _check_unclaimed(directory, config, resume_from)
        return Claim(description)
    claim = Claim(description, tuple(theirs.pop("changes", ())))
    theirs = _by_content(theirs, description)
    if theirs.get("init_weights") and not description.get("init_weights"):  # no longer there
        description = description | {"init_weights": theirs["init_weights"]}
    claim = dataclasses.replace(claim, description=description)
    differences, refused = [], []
    for name, was, now in _differences(theirs, description):
        lengthens = name == f"stages[{len(theirs['stages']) - 1}].steps" and was < now
        returns = resume_from is not None and _CHANGED_ON_RETURN.fullmatch(name)
        (differences if lengthens or returns else refused).append((name, _said(name, was, now)))
    if refused:
        may_return = all(_CHANGED_ON_RETURN.fullmatch(name) for name, _ in refused)
        hint = "resume from one of its checkpoints with the new settings (--resume_from=STEP), "
        raise ValueError(
            f"{directory} must hold this run; got another: "
            f"{'; '.join(said for _, said in refused)}. Use that run's settings, "
            f"{hint * may_return}"
            "or choose another folder (with its checkpoint as init_checkpoint, to start from its "
            "weights)."
        )
    last = claim.changes[-1] if claim.changes else {}
    has_returned = (
        resume_from is not None
        and not differences
        and "instead_of" in last
        and step_and_count(last["resumed_from"])[0] == resume_from
    )
    return dataclasses.replace(
        claim,
        differences=tuple(said for _, said in differences),
        return_to=None if has_returned else resume_from,
        has_returned=has_returned,
    )


def _check_unclaimed(directory, config, resume_from):
    if any(directory.glob("*.index")):
        raise ValueError(
            f"{directory} must hold the run.json of its checkpoints; got none, so another program "
            "wrote them. Choose another folder."
        )
    for name in _OF_A_RUN:
        if any(directory.glob(name)):
            raise ValueError(
                f"{directory} must hold the run.json of its {name}; got none, so its run is "
                "unknown and would be overwritten. Restore run.json, or choose another folder."
            )
    if (directory / CONFIG).exists() and not _matches_config(directory / CONFIG, config):
        raise ValueError(
            f"{directory / CONFIG} must describe the run's model; got another, which would be "
            "overwritten. Choose another folder."
        )
    if resume_from is not None:
        raise ValueError(
            f"resume_from must be the step of a checkpoint in {directory}; got {resume_from}, but "
            "no run has begun there. Leave it out."
        )


def _matches_config(path, config):
    """Whether a `bert_config.json` is there that means `config`."""
    try:
        return type(config).from_json_file(path) == config
    except (ValueError, OSError):
        return False


def read_run_json(directory: Place) -> dict | None:
    """The content of `run.json`, a dictionary; `None` if there is none.

    Raises:
        ValueError: if it is damaged.
    """
    path = directory / "run.json"
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        for stage in held["stages"]:
            for count in (stage["steps"], stage["warmup_steps"]):
                if not isinstance(count, int):
                    raise TypeError(f"{count!r} is not a number of steps")
        Claim({}, tuple(held.get("changes", ()))).abandoned()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged, so the run of these checkpoints is unknown "
            f"({type(error).__name__}: {error}). Restore it, or choose another folder."
        ) from None
    return held


def same_examples(was: str, now: str) -> bool:
    """Whether two fingerprints of examples are of the same content: their last parts are equal."""
    return was.rpartition("-")[2] == now.rpartition("-")[2]


def deciding(description: dict) -> dict:
    """The parts of a run's description that decide its weights: all but the paths of its files."""
    stages = [_without(stage, "input_files") for stage in description["stages"]]
    return _without(description, "input_files", "init_checkpoint") | {"stages": stages}


def _without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def _by_content(theirs, mine):
    """Their description, with my paths for files of the same content."""
    theirs, records = dict(theirs), mine.get("records", ())
    if isinstance(theirs.get("records"), list) and len(theirs["records"]) == len(records):
        pairs = list(zip(theirs["records"], records, strict=True))
        theirs["records"] = [now if same_examples(str(was), now) else was for was, now in pairs]
        theirs["input_files"] = mine.get("input_files")
        if len(theirs["stages"]) == len(mine["stages"]):
            theirs["stages"] = [
                stage | {"input_files": my_stage.get("input_files")}
                for stage, my_stage in zip(theirs["stages"], mine["stages"], strict=True)
            ]
    if theirs.get("init_weights") and mine.get("init_weights"):
        theirs["init_checkpoint"] = mine["init_checkpoint"]
    return theirs


def _said(name, was, now):
    if name == "init_weights":
        return "init_checkpoint holds other weights than the run began with"
    if name.startswith("records["):
        number = int(name.removeprefix("records[").removesuffix("]")) + 1
        return f"the records of stage {number} have changed"
    return f"{name} was {json.dumps(was)} and is {json.dumps(now)}"


def _differences(theirs, mine, name=""):
    """Where two JSON values differ: (name, their value, mine) each time."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted({*theirs, *mine}):
            inner = f"{name}.{key}" if name else key
            absent = {"settings": {}, "new_positions": "fresh"}.get(key)  # not written
            yield from _differences(theirs.get(key, absent), mine.get(key, absent), inner)
    elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        for index, pair in enumerate(zip(theirs, mine, strict=True)):
            yield from _differences(*pair, f"{name}[{index}]")
    elif theirs != mine:
        yield name, theirs, mine
