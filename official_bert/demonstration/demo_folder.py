"""The folder of a demo: its files, a lock for one process, and the time taken."""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from official_bert.system import file_locks, whole_files


class DemoFolder(NamedTuple):
    """The paths below the output folder."""

    folder: pathlib.Path

    def text(self, split: str) -> pathlib.Path:
        return self.folder / "text" / f"{split}.txt"

    def records(self, split: str, length: int | str) -> pathlib.Path:
        return self.folder / "records" / f"{split}_{length}.tfrecord"

    vocab = property(lambda self: self.folder / "vocab.txt")
    config = property(lambda self: self.folder / "bert_config.json")
    model = property(lambda self: self.folder / "model")
    log = property(lambda self: self.model / "train_log.jsonl")
    baselines = property(lambda self: self.folder / "baselines.json")
    blanks = property(lambda self: self.folder / "blanks.json")
    blanks_table = property(lambda self: self.folder / "blanks.md")
    plots = property(lambda self: self.folder / "plots")
    results = property(lambda self: self.folder / "results.json")
    settings = property(lambda self: self.folder / "demo.json")

    @property
    def written(self) -> list[pathlib.Path]:
        """The files and whole folders that a demo writes."""
        names = ("text", "records", "model", "plots")
        folders = [self.folder / name for name in names]
        files = (self.vocab, self.config, self.baselines, self.blanks, self.results, self.settings)
        return [*folders, *files, self.blanks_table]


def alone_in(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    """Waits until no other demo, nor a command that one started, works in `folder`."""

    def tell():
        print(f"Another demo is running in {folder}; waiting until it ends …", flush=True)

    return file_locks.hold(folder / ".lock", tell, with_children=True)


@contextlib.contextmanager
def clock(
    layout: DemoFolder, paths: Sequence[str], corpus_format: str, recipe: str, vocab_size: int
) -> Iterator[Callable[[], float]]:
    """The seconds that this demo has taken so far, earlier starts in the same folder included.

    Raises:
        ValueError: if the folder holds a demo with other settings.
    """
    settings = {"corpus": [os.path.abspath(p) for p in paths], "corpus_format": corpus_format}
    settings |= {"recipe": recipe, "vocab_size": vocab_size}
    earlier = json.loads(layout.settings.read_text()) if layout.settings.exists() else {}
    for name, value in settings.items():
        if earlier and earlier.get(name) != value:
            raise ValueError(
                f"{layout.folder} holds a demo with {name}={earlier.get(name)!r}, not {value!r}; "
                "give another --output_dir, or remove that folder."
            )
    finished = earlier.get("finished", False)
    started = time.monotonic() - earlier.get("seconds", 0.0)

    def seconds():
        return earlier["seconds"] if finished else time.monotonic() - started

    def note():
        values = {**settings, "seconds": seconds(), "finished": finished}
        whole_files.write_text(layout.settings, json.dumps(values, indent=1) + "\n")

    note()
    try:
        yield seconds
        finished, earlier = True, {"seconds": seconds()}
    finally:
        note()
