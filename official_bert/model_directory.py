"""Whose a model directory is: `run.json` says which run's, and another run's is refused."""

import json

from official_bert.whole_files import write_text


def check(directory, run):
    """Refuses the directory of another run.

    Raises:
        ValueError: listing what differs.
    """
    path = directory / "run.json"
    if path.exists():
        theirs = json.loads(path.read_text())
        differences = list(_differences(theirs, run.describe()))
        if differences:
            raise ValueError(
                f"{directory} holds another run: {'; '.join(differences)}. Go on with its "
                "settings, or choose another model_dir (and its checkpoint as init_checkpoint, to "
                "start from its weights)."
            )
    elif any(directory.glob("*.index")):
        raise ValueError(
            f"{directory} holds checkpoints but no run.json, so they are not of such a run; choose "
            "another model_dir."
        )


def claim(directory, run):
    """Says in the directory whose it is; `bert_config.json` is what other tools ask for."""
    write_text(directory / "run.json", json.dumps(run.describe(), indent=1))
    write_text(directory / "bert_config.json", run.config.to_json())


def _differences(theirs, mine, name=""):
    """Sentences on where two JSON values differ."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted({*theirs, *mine}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(theirs.get(key), mine.get(key), inner)
    elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        for index, pair in enumerate(zip(theirs, mine, strict=True)):
            yield from _differences(*pair, f"{name}[{index}]")
    elif theirs != mine:
        yield f"{name} was {json.dumps(theirs)} and is {json.dumps(mine)}"
