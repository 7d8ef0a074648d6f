"""The trials of a study in a JSON-lines file; text, model and processes of whole trainings.

A finished trial is a line of the file, so that a killed study goes on with the next one.
"""

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from statistics import mean

import machine
import stats

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.demonstration import stdlib_text
from official_bert.model.config import BertConfig
from official_bert.system import child_commands, locks
from official_bert.system.whole_files import write_text

UNKNOWN = "time left not known yet"
PACKAGES = ("tensorflow", "tensorflow-cpu", "torch", "transformers", "numpy", "jax", "keras")


class Study:
    """The trials with one set of settings, in a file.

    Args:
        results: The JSON-lines file, a `pathlib.Path`; other settings' lines in it stay.
        settings: Dictionary of JSON values; trials with others do not count.
        lists: Function of the records so far; the trials of the study in order, dictionaries of
            JSON values.
        alike: Tuples of a trial's keys. How long a trial takes is guessed from those that agree
            with it in the first tuple, or else in the second, …
        extent: Names of settings in which records may differ and count: those that say how many
            trials there are, so that a study that grows keeps what is done, and what `stands`
            looks at.
        stands: Function of (record, all records); whether the record counts.
    """

    def __init__(self, results, settings, lists, alike, extent=(), stands=None):
        self.results, self.settings, self.alike, self.extent = results, settings, alike, extent
        self._lists, self._stands = lists, stands

    def done(self):
        """The records of the finished trials, by name: the study's own that it would run so now.

        What was chosen from a trial that does not count does not count either.
        """
        ours = self._decisive(self.settings)
        found = {
            stats.trial_name(record["trial"]): record
            for record in read(self.results)
            if self._decisive(record["settings"]) == ours
        }
        names = {stats.trial_name(trial) for trial in self._lists(list(found.values()))}
        found = {name: record for name, record in found.items() if name in names}
        while True:
            known = list(found.values())
            standing = {
                n: r for n, r in found.items() if not self._stands or self._stands(r, known)
            }
            if len(standing) == len(found):
                return found
            found = standing

    def _decisive(self, settings):
        return {key: value for key, value in settings.items() if key not in self.extent}

    def trials(self):
        """All trials of the study."""
        return self._lists(list(self.done().values()))

    def missing(self):
        """The trials that have no record."""
        done = self.done()
        return [t for t in self._lists(list(done.values())) if stats.trial_name(t) not in done]

    def announce(self, trial, left, begun, jobs):
        """Prints which trial begins and how long all may take.

        Args:
            trial: The trial.
            left: What has to be run, with it.
            begun: Number of other trials that were begun and have no record.
            jobs: Number of trials that run side by side.
        """
        done = self.done()
        expected = [self._expected(each, done.values()) for each in left]
        known = None not in expected
        left = f"about {sum(expected) / jobs / 60:.0f} min left in all" if known else UNKNOWN
        number, name = len(done) + begun + 1, stats.trial_name(trial)
        print(f"trial {number} of {len(self.trials())}: {name}; {left}", flush=True)

    def record(self, trial, run_trial):
        """Runs a trial; what is to be kept of it, or `None` if it failed."""
        started, before = time.perf_counter(), about_machine()
        found = run_trial(trial)
        if found is None:
            return None
        about = {
            "trial": trial,
            "settings": self.settings,
            "wall_seconds": time.perf_counter() - started,
            "machine": before,
            "date": datetime.date.today().isoformat(),
        }
        return about | found

    def add(self, record):
        """Keeps what `record` returned."""
        self.results.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.results, _whole_lines(self.results) + json.dumps(record) + "\n")

    def _expected(self, trial, done):
        for names in self.alike:
            like = [r for r in done if all(r["trial"][n] == trial[n] for n in names)]
            if like:
                return mean(record["wall_seconds"] for record in like)
        return None


@contextlib.contextmanager
def exclusive(folder, results):
    """The folder, made if need be, for this study alone: a second would spoil the first's times.

    Args:
        folder: The study's.
        results: A file that no other study may write to either, whatever its folder is.
    """
    wait = "Waiting for another study …"
    with contextlib.ExitStack() as held:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(locks.exclusive(folder, wait))
        results.parent.mkdir(parents=True, exist_ok=True)
        held.enter_context(locks.exclusive(results.parent, wait, f".{results.name}.lock"))
        yield


def read(results):
    """The records in a file; ValueError where a line is none."""
    found = []
    for number, line in enumerate(_whole_lines(results).splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            raise ValueError(f"{results}, line {number}: no JSON ({error}); remove it.") from None
        if record is None:
            continue
        if not isinstance(record, dict) or not {"trial", "settings"} <= record.keys():
            raise ValueError(f"{results}, line {number}: no record of a trial; remove it.")
        found.append(record)
    return found


def _whole_lines(results):
    """The text up to the last end of a line: a killed study may have left a part of one."""
    try:
        text = results.read_text() if results.exists() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{results} is no text ({error}).") from None
    whole, _, rest = text.rpartition("\n")
    with contextlib.suppress(json.JSONDecodeError):
        json.loads(rest)  # a line without its end, as an editor may leave it
        return f"{text}\n"
    return f"{whole}\n" if whole else ""


# Data and model


def make_data(folder, settings, lengths, held_out):
    """Vocabulary, and records for dynamic masks of the text that comes with Python.

    Those that are there stay.

    Args:
        folder: Where.
        settings: With `vocab_size`, and `documents`: how many of the text's; None: all.
        lengths: {tokens per sequence: predictions}; `train_16.tfrecord` has those of 16.
        held_out: {index among every 12 documents: the set it belongs to}; the rest trains.
    """
    with locks.exclusive(folder, "Waiting for the data that another trial makes …", ".data.lock"):
        wanted = [settings["vocab_size"], settings["documents"], sorted(lengths.items())]
        marker = folder / "data.json"
        if marker.exists() and json.loads(marker.read_text()) == json.loads(json.dumps(wanted)):
            return
        marker.unlink(missing_ok=True)  # a killed study leaves some of the old data, some new
        _make_data(folder, settings, lengths, held_out)
        marker.write_text(json.dumps(wanted))


def _make_data(folder, settings, lengths, held_out):
    documents = ["\n".join(lines) for _, lines in stdlib_text.documents()][: settings["documents"]]
    sets = {"train": []} | {split: [] for split in held_out.values()}
    for index, document in enumerate(documents):
        sets[held_out.get(index % 12, "train")].append(document)
    vocab = str(folder / "vocab.txt")
    tokenization.learn(sets["train"], vocab, settings["vocab_size"])
    for split, texts in sets.items():
        (folder / f"{split}.txt").write_text("\n\n".join(texts) + "\n")
        for length, predictions in lengths.items():
            create_pretraining_data(
                str(folder / f"{split}.txt"),
                str(folder / f"{split}_{length}.tfrecord"),
                vocab,
                Settings(max_seq_length=length, max_predictions_per_seq=predictions),
                dynamic_masking=True,
                input_format="paragraphs",
            )


def config_of(folder, settings, positions, initializer_range, dropout=0.0):
    """The model of a study; `positions` is its longest sequence."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return BertConfig(
        vocab_size=len(tokenization.read_vocabulary(str(folder / "vocab.txt"))),
        **{name: settings[name] for name in names},
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=initializer_range,
    )


# Trials


def run_child(command):
    """Runs `python COMMAND…` to its end, or to this process' own; returns the exit code."""
    child = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        start_new_session=True,
        preexec_fn=child_commands.end_with_parent,
    )
    try:
        return child.wait()
    except child_commands.Interrupted:
        child.kill()
        child.wait()
        raise


def read_log(path, kind):
    """The lines of a kind in a `train_log.jsonl`."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def read_curve(path):
    """Step, seconds of training, stage, loss and accuracy of every held-out evaluation.

    Stages are counted from 0; a log without any has none here.
    """
    seconds = {line["step"]: line["timing"]["seconds"] for line in read_log(path, "train")}
    names = ("stage", "masked_lm_loss", "masked_lm_accuracy")
    return [
        {"step": line["step"], "seconds": seconds[line["step"]]}
        | {name: line[name] for name in names if name in line}
        for line in read_log(path, "eval")
    ]


def about_machine():
    """What a record says of the machine, before its trial."""
    return {
        "cpu": machine.processor(),
        "cores": machine.cores(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **machine.versions(*PACKAGES),
    }
