"""The trials of a study in a JSON-lines file; text, model and processes of whole trainings.

A finished trial is a line of the file, so that a killed study resumes with the next one.
"""

import contextlib
import datetime
import itertools
import json
import os
import platform
import shlex
import shutil
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
from official_bert.stages import LoopOptions, Run, Stage
from official_bert.system import child_commands, locks, memory, quiet_tensorflow
from official_bert.system.whole_files import write_text
from official_bert.tasks.pretraining import Pretraining

PACKAGES = ("tensorflow", "tensorflow-cpu", "torch", "transformers", "numpy", "jax", "keras")


class Study:
    """The trials with one set of settings, in a file.

    Args:
        results: The JSON-lines file, a `pathlib.Path`; other settings' lines in it stay.
        settings: Dictionary of JSON values; trials with others do not count.
        lists: Function of the records so far that returns all trials in order, dictionaries of
            JSON values.
        extent: Names of settings in which records may differ and count: those that determine the
            number of trials, so that a study that grows keeps its records, and those that `stands`
            compares.
        stands: Function of (record, all records): whether the record counts.
    """

    def __init__(self, results, settings, lists, extent=(), stands=None):
        self.results, self.settings, self.extent = results, settings, extent
        self._lists, self._stands = lists, stands

    def done(self):
        """The records that count, by the trial's name.

        They are of the study's own trials, with settings that it would choose now. What was chosen
        from a trial that does not count does not count either. Of several records of a trial the
        newest of those counts, so that one file may hold a study and its beginning with a longer
        search.
        """
        ours = self._decisive(self.settings)
        found = [r for r in read(self.results) if self._decisive(r["settings"]) == ours]
        names = map(stats.trial_name, self._lists(list(_newest(found).values())))
        place = {name: number for number, name in enumerate(names)}
        found = [r for r in found if stats.trial_name(r["trial"]) in place]
        while True:
            newest = _newest(found)
            known = list(newest.values())
            others = [r for r in known if self._stands and not self._stands(r, known)]
            if not others:
                return newest
            # Only the first: later ones may have been chosen from an older record of that trial.
            first = min(others, key=lambda record: place[stats.trial_name(record["trial"])])
            found = [record for record in found if record is not first]

    def _decisive(self, settings):
        return {key: value for key, value in settings.items() if key not in self.extent}

    def trials(self):
        """All trials of the study."""
        return self._lists(list(self.done().values()))

    def missing(self):
        """The trials without a record."""
        done = self.done()
        return [t for t in self._lists(list(done.values())) if stats.trial_name(t) not in done]

    def announce(self, trial, left, begun, jobs):
        """Prints which trial begins and, by those that are done, how long all may take.

        Args:
            left: The trials without a record, this one included.
            begun: Number of other trials that have begun and have no record.
            jobs: Number of trials that run side by side.
        """
        seconds = [record["wall_seconds"] for record in self.done().values()]
        remaining = "time left not known yet"
        if seconds:
            remaining = f"about {mean(seconds) * len(left) / jobs / 60:.0f} min left in all"
        number, name = len(seconds) + begun + 1, stats.trial_name(trial)
        print(f"trial {number} of {len(self.trials())}: {name}; {remaining}", flush=True)

    def record(self, trial, run_trial):
        """Runs a trial and returns its record, or `None` if it failed."""
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
        """Appends a record to the file."""
        self.results.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.results, _whole_lines(self.results) + json.dumps(record) + "\n")


def _newest(records):
    """The last record of each trial, by the trial's name."""
    return {stats.trial_name(record["trial"]): record for record in records}


@contextlib.contextmanager
def exclusive(folder, results):
    """Locks the folder and the records of a study: a second study would spoil the first's times."""
    wait = "Waiting for another study …"
    for each in (folder, results.parent):
        each.mkdir(parents=True, exist_ok=True)
    with (
        locks.exclusive(folder, wait),
        locks.exclusive(results.parent, wait, f".{results.name}.lock"),
    ):
        yield


def read(results):
    """The records in a file; ValueError where a line is none."""
    found = []
    for number, line in enumerate(_whole_lines(results).splitlines(), 1):
        try:
            record = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{results}, line {number} must be JSON; got {error}. Remove it."
            ) from None
        if record is None:
            continue
        if not isinstance(record, dict) or not {"trial", "settings"} <= record.keys():
            raise ValueError(
                f"{results}, line {number} must be the record of a trial; got another. Remove it."
            )
        found.append(record)
    return found


def _whole_lines(results):
    """The text without a last line that a killed study has left incomplete."""
    try:
        text = results.read_text() if results.exists() else ""
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{results} must be a text file; got other bytes ({error}). Restore or rename it."
        ) from None
    whole, _, rest = text.rpartition("\n")
    with contextlib.suppress(json.JSONDecodeError):
        json.loads(rest)  # a line without its end, as an editor may leave it
        return f"{text}\n"
    return f"{whole}\n" if whole else ""


# Data and model


def make_data(folder, settings, lengths, held_out):
    """Writes vocabulary and records for dynamic masks of the text that comes with Python, once.

    Args:
        folder: Where they are written.
        settings: With `vocab_size` and `documents`, the number of documents or None for all.
        lengths: {tokens per sequence: predictions}; `train_16.tfrecord` has 16 tokens.
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
    found = itertools.islice(stdlib_text.documents(), settings["documents"])
    documents = ["\n".join(lines) for _, lines in found]
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


def before_the_cut(deviation):
    """The standard deviation of a normal that has this one when cut at two of its own."""
    from official_bert.model.layers import STDDEV_RATIO  # it imports TensorFlow

    return deviation / STDDEV_RATIO


# Trials


def halton(ranges, number):
    """A point of Halton's sequence, from number 1, in at most four {name: (lowest, highest)}.

    They are evenly spread in logarithms.
    """
    return {
        name: low * (high / low) ** _van_der_corput(number, base)
        for (name, (low, high)), base in zip(ranges.items(), (2, 3, 5, 7))
    }


def _van_der_corput(number, base):
    """The digits of a number after the point, in reverse order; in [0, 1)."""
    value, digit = 0.0, 1.0
    while number:
        number, rest = divmod(number, base)
        digit /= base
        value += rest * digit
    return value


def stage_of(settings, **fields):
    """A stage with the lengths of the settings."""
    names = ("max_seq_length", "max_predictions_per_seq")
    return Stage(**{name: settings[name] for name in names}, **fields)


def make_run(folder, settings, config, stages, task=Pretraining, **fields):
    """A run on the study's data, without the next sentence."""
    return Run(
        config=config,
        stages=stages,
        input_files=(file_of(folder, "train"),),
        task=task(use_next_sentence_label=False, masked_lm_prob=settings["masked_lm_prob"]),
        **fields,
    )


def file_of(folder, split):
    """The records of a set, with the placeholder of `stages.Run` for the length."""
    return f"{folder}/{split}_{{max_seq_length}}.tfrecord"


def trainer(run, model_dir, **options):
    """A `Trainer` of a run in this process; `options` are fields of `LoopOptions`.

    A run with `minutes` gets the updates that fit into them.
    """
    from official_bert.training import budget
    from official_bert.training.trainer import Trainer

    options, engine = loop_options_and_engine(**options)
    if run.minutes:
        run = budget.fix(run, options, engine, model_dir)
    return Trainer(run, options, engine, model_dir)


def loop_options_and_engine(**options):
    """`LoopOptions` of a study, without checkpoints, and TensorFlow's engine in this process."""
    memory.tune_malloc()  # as the commands do
    quiet_tensorflow.import_tensorflow()
    from official_bert.engines.strategies import make_strategy
    from official_bert.engines.tf_distribute import TfDistribute

    options = LoopOptions(save_checkpoints_steps=0, tensorboard=False, **options)
    return options, TfDistribute(make_strategy("off"))


def train_in_child(script, name, options, settings, trial, read, **more):
    """Makes the data and runs a trial by `python SCRIPT --trial=…`, which trains with a log.

    Args:
        name: Of the trial's folder; the other arguments as of `in_child`.
        **more: Arguments of the script's trial besides folders, settings and trial.
    """
    lengths = {settings["max_seq_length"]: settings["max_predictions_per_seq"]}
    make_data(options.data_dir, settings, lengths, {1: "held_out"})
    model_dir = options.data_dir / name
    shutil.rmtree(model_dir, ignore_errors=True)  # of a trial that was killed
    model_dir.mkdir()
    arguments = {"folder": str(options.data_dir), "model_dir": str(model_dir)}
    arguments = json.dumps(arguments | {"settings": settings, "trial": trial} | more)
    return in_child([os.path.relpath(script), f"--trial={arguments}"], model_dir, trial, read)


def in_child(command, folder, trial, read):
    """Runs a trial by `python COMMAND…`; its record, or None if it failed.

    Args:
        folder: Where it leaves its results; removed.
        read: Function of the folder that returns the results, a dictionary for the record.
    """
    if code := run_child(command):
        print(f"{stats.trial_name(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    found = {"command": shlex.join(["python", *map(str, command)])} | read(folder)
    shutil.rmtree(folder)
    return found


def run_child(command):
    """Runs `python COMMAND…`, which ends with this process at the latest; returns the exit code."""
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


def read_curve(folder):
    """Step, seconds of training, stage (from 0), loss and accuracy of every held-out evaluation."""
    path = folder / "train_log.jsonl"
    seconds = {line["step"]: line["timing"]["seconds"] for line in read_log(path, "train")}
    names = ("stage", "masked_lm_loss", "masked_lm_accuracy")
    return [
        {"step": line["step"], "seconds": seconds[line["step"]]}
        | {name: line[name] for name in names if name in line}
        for line in read_log(path, "eval")
    ]


def about_machine():
    """The machine and the versions, for a record."""
    return {
        "cpu": machine.processor(),
        "cores": machine.cores(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **machine.versions(*PACKAGES),
    }
