"""The folder of a demo: its files, a lock for one process, and the time taken."""

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

from official_bert.system import whole_files


@dataclasses.dataclass(frozen=True)
class DemoFolder:
    """The paths below the output folder."""

    folder: pathlib.Path

    def text(self, split: str) -> pathlib.Path:
        return self.folder / "text" / f"{split}.txt"

    def records(self, split: str, length: int | str) -> pathlib.Path:
        return self.folder / "records" / f"{split}_{length}.tfrecord"

    @property
    def vocab(self) -> pathlib.Path:
        return self.folder / "vocab.txt"

    @property
    def config(self) -> pathlib.Path:
        return self.folder / "bert_config.json"

    @property
    def model(self) -> pathlib.Path:
        return self.folder / "model"

    @property
    def log(self) -> pathlib.Path:
        return self.model / "train_log.jsonl"

    @property
    def baselines(self) -> pathlib.Path:
        return self.folder / "baselines.json"

    @property
    def blanks(self) -> pathlib.Path:
        return self.folder / "blanks.json"

    @property
    def blanks_table(self) -> pathlib.Path:
        return self.folder / "blanks.md"

    @property
    def plots(self) -> pathlib.Path:
        return self.folder / "plots"

    @property
    def results(self) -> pathlib.Path:
        return self.folder / "results.json"

    @property
    def settings(self) -> pathlib.Path:
        return self.folder / "demo.json"

    @property
    def written(self) -> list[pathlib.Path]:
        """The files and whole folders that a demo writes."""
        names = ("text", "records", "model", "plots")
        folders = [self.folder / name for name in names]
        files = (self.vocab, self.config, self.baselines, self.blanks, self.results, self.settings)
        return [*folders, *files, self.blanks_table]


@contextlib.contextmanager
def clock(
    layout: DemoFolder, paths: Sequence[str], corpus_format: str, recipe: str, vocab_size: int
) -> Iterator[Callable[[], float]]:
    """The seconds that this demo has taken so far, earlier starts in the same folder included.

    Once the demo has finished they are what it was told last, for every later start too. A setting
    of an earlier start is binding when something has been made with it.

    Raises:
        ValueError: if the folder holds a demo with other settings, or files that are no demo's.
    """
    settings: dict[str, object] = {
        "corpus": [os.path.abspath(p) for p in paths],
        "corpus_format": corpus_format,
    }
    settings |= {"recipe": recipe, "vocab_size": vocab_size}
    made = {"corpus": layout.text("train"), "corpus_format": layout.text("train")}
    made |= {"recipe": layout.folder / "records", "vocab_size": layout.vocab}
    earlier = _earlier(layout)
    for name, value in settings.items():
        if made[name].exists() and earlier.get(name) != value:
            raise ValueError(
                f"{name} must be {earlier.get(name)!r}, as in the demo in {layout.folder}; got "
                f"{value!r}. Give another --output_dir, or remove that folder."
            )
    finished = earlier.get("finished", False)
    taken = earlier.get("seconds", 0.0)
    started = time.monotonic() - taken

    def seconds():
        nonlocal taken
        if not finished:
            taken = time.monotonic() - started
        return taken

    def note():
        values = {**settings, "seconds": seconds(), "finished": finished}
        whole_files.write_text(layout.settings, json.dumps(values, indent=1) + "\n")

    note()
    try:
        yield seconds
        finished = True
    finally:
        note()


def _earlier(layout):
    """The settings and the time of earlier starts; empty where there was none."""
    try:
        earlier = json.loads(layout.settings.read_text())
        if {"corpus", "recipe", "seconds"} <= {*earlier}:
            return earlier
    except FileNotFoundError:
        if not any(path.exists() for path in layout.written):
            return {}
    except (ValueError, TypeError):
        pass
    found = next(path for path in layout.written if path.exists())
    raise ValueError(
        f"output_dir must be a new folder, or one of an earlier demo; got {layout.folder}, whose "
        f"{found.name} is from elsewhere. Give another --output_dir."
    )
