"""Compares fillings of rows by padding, tokens per second, and held-out loss at equal time.

    python benchmarks/row_filling.py --make --data_dir=FOLDER --wikipedia=TEXT \\
        --lines TRAIN HELD_OUT
    python benchmarks/row_filling.py --data_dir=FOLDER

The first makes the records: of Wikipedia in rows of 128 and of 512 tokens, and of documents of one
line in rows of 128, each with `--row_filling` documents, full and packed, without sentence pairs.
The second trains. First it times the updates of every filling in turns, on batches in memory. Each
trial then makes as many updates as fit into the same seconds, so that it does not matter what else
runs meanwhile; rows with the same arrays in a batch count as equally fast. All models of a data set
are then evaluated on the same held-out records, with the same masks: `documents`, a sequence of one
document in each row, and `full`. Each finished trial is a line of `--results`; the command, given
again, resumes with the next one.

Needs JAX, not TensorFlow. Trials run in `--jobs` processes that share the accelerator and a cache
of compiled programs.
"""

import argparse
import concurrent.futures
import functools
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from statistics import mean, median, stdev

import evidence
import machine
import numpy as np
import stats
import trials

from official_bert.data import tokenization
from official_bert.data.instances import Settings
from official_bert.system import child_commands

FILLINGS = "documents", "full", "packed"
LENGTHS = {"wikipedia 128": 128, "wikipedia 512": 512, "one line 128": 128}
SETTINGS = {
    "vocab_size": 8192,
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "initializer_range": 0.04,
    "tokens": 16384,  # of an update, padding included
    "masked_lm_prob": 0.15,
    "learning_rate": 2e-3,
    "warmup_steps": 100,  # then the rate stays, so that all trials share their programs
    "beta_2": 0.98,
    "dtype": "bf16",
    "seconds": {"wikipedia 128": 6, "wikipedia 512": 6, "one line 128": 3},
    "updates_per_call": 20,
    "seeds": 3,
    "held_out_rows": {"wikipedia 128": 2048, "wikipedia 512": 512, "one line 128": 872},
}
QUICK = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "tokens": 1024,
    "dtype": "fp32",
    "seconds": dict.fromkeys(LENGTHS, 0.5),
    "updates_per_call": 2,
    "seeds": 1,
    "held_out_rows": dict.fromkeys(LENGTHS, 16),
}
RESULTS = pathlib.Path(__file__).parent / "results/row_filling.jsonl"
PAGE = pathlib.Path(__file__).parents[1] / "docs/evidence/row_filling.md"


def predictions(length):
    """Masked tokens of a row, at most: 15 % of it."""
    return math.ceil(0.15 * length)


# Records


def make(folder, wikipedia, lines, held_out_share=0.04):
    """Writes vocabulary and records of both texts, those that a killed call has not finished.

    Args:
        wikipedia: A file of articles, of which the last are held out.
        lines: A pair of files with a sentence in each line, for training and held out.
    """
    from official_bert.create_pretraining_data import create_pretraining_data

    folder.mkdir(parents=True, exist_ok=True)
    articles = [text for text in wikipedia.read_text().split("</doc>\n") if text.strip()]
    cut = round(len(articles) * (1 - held_out_share))
    texts = {
        "wikipedia": {"train": articles[:cut], "held_out": articles[cut:]},
        "one line": dict(zip(("train", "held_out"), (p.read_text().splitlines() for p in lines))),
    }
    vocab, noted = str(folder / "vocab.txt"), folder / "summaries.json"
    summaries = json.loads(noted.read_text()) if noted.exists() else {}
    if not summaries:
        parts = [*texts["wikipedia"]["train"], *texts["one line"]["train"]]
        tokenization.learn(parts, vocab, SETTINGS["vocab_size"])
    for data, length in LENGTHS.items():
        for split, documents in texts[data.removesuffix(f" {length}")].items():
            text = folder / "text.txt"
            end = "</doc>\n" if data.startswith("wikipedia") else "\n\n"
            text.write_text("".join(document + end for document in documents))
            # "pairs": static, as the official script makes them
            for filling in (*FILLINGS, "pairs") if split == "train" else FILLINGS[:2]:
                records = file_of(folder, data, split, filling)
                if records.name in summaries:
                    continue
                is_static = filling == "pairs"
                settings = Settings(
                    length,
                    predictions(length),
                    dupe_factor=1,
                    row_filling="documents" if is_static else filling,
                )
                made = create_pretraining_data(
                    str(text), str(records), vocab, settings, dynamic_masking=not is_static
                )
                summaries[records.name] = made
                noted.write_text(json.dumps(summaries))
                padding = 1 - made["tokens"] / (made["sequences"] * length)
                print(f"{records.name}: {made['sequences']:,} rows, {padding:.1%} padding")
                if is_static:
                    records.unlink()
            text.unlink()


def file_of(folder, data, split, filling):
    return folder / f"{data.replace(' ', '_')}_{split}_{filling}.tfrecord"


def padding_of_pairs(folder, data):
    """The share of the tokens of records with sentence pairs, by the builder."""
    summaries = json.loads((folder / "summaries.json").read_text())
    made = summaries.get(file_of(folder, data, "train", "pairs").name)
    if not made:  # the call that makes them was killed
        return math.nan
    return 1 - made["tokens"] / (made["sequences"] * LENGTHS[data])


# Training


class Shape:
    """The programs of rows of one length, packed or not, and their model."""

    def __init__(self, folder, settings, length, packed):
        from official_bert.engines.jax_mesh import JaxMesh
        from official_bert.stages import Optimizer, Run, Stage
        from official_bert.tasks.pretraining import Pretraining
        from official_bert.training.stage_model import make_model_and_optimizer

        longest, deviation = max(LENGTHS.values()), settings["initializer_range"]
        config = trials.config_of(folder, settings, longest, deviation)
        stage = Stage(
            steps=1_000_000,
            batch_size=settings["tokens"] // length,
            max_seq_length=length,
            max_predictions_per_seq=predictions(length),
            learning_rate=settings["learning_rate"],
            end_learning_rate=settings["learning_rate"],
            warmup_steps=settings["warmup_steps"],
        )
        self.run = Run(
            config=config,
            stages=(stage,),
            optimizer=Optimizer(type="adamw", beta_2=settings["beta_2"]),
            input_files=("",),
            task=Pretraining(
                use_next_sentence_label=False, masked_lm_prob=settings["masked_lm_prob"]
            ),
            dtype=settings["dtype"],
        )
        self.folder, self.settings, self.stage = folder, settings, stage
        self.engine = JaxMesh()
        self.model, self.optimizer = make_model_and_optimizer(self.run, stage)
        self._first = self.engine.to_host(self.optimizer.variables)
        self.loop = self.engine.training_loop(self.run, self.model, self.optimizer)
        self._evaluate = self.engine.evaluation_step(self.run.task, self.model)

    def batches(self, data, split, filling, seed=0):
        files, stage = [str(file_of(self.folder, data, split, filling))], self.stage
        given = files, stage.lengths, stage.batch_size, self.run.config
        return self.run.task.batches(*given, seed=seed, shard=(0, 1), held_out=split == "held_out")

    def restart(self, seed):
        """First values of the weights, by the seed, and of the optimizer.

        Positions begin as sinusoids: else short trainings would not leave the plateau on which only
        the frequencies of words are known.
        """
        fresh = self.run.task.make_model(self.run.config, seed, self.model.dtype_policy.name)
        for variable, other in zip(self.model.weights, fresh.weights, strict=True):
            variable.assign(other)
            if variable.path.endswith("position_embeddings"):
                variable.assign(sinusoids(*variable.shape, self.run.config.initializer_range))
        for variable, value in zip(self.optimizer.variables, self._first, strict=True):
            variable.assign(value)

    def train(self, feed, steps):
        """Makes updates; returns the sums over them."""
        from official_bert.engines.loop_state import first_state

        state, each = first_state(self.run), self.settings["updates_per_call"]
        for step in range(0, steps, each):
            state = self.loop(feed, step, each, state)
        return dict(zip(self.run.task.sums, state.sums, strict=True))

    def held_out(self, data, filling):
        """Masked-LM loss in nats and accuracy on the held-out records of a filling."""
        rows = self.settings["held_out_rows"][data]
        opened = self.batches(data, "held_out", filling)
        steps = range(min(opened.num_batches, -(-rows // self.stage.batch_size)))
        feed = self.engine.feed(lambda *_: opened, steps)
        sums = np.sum([self._evaluate(feed) for _ in steps], axis=0, dtype=np.float64)
        metrics = self.run.task.metrics(sums)
        return metrics["masked_lm_loss"], metrics["masked_lm_accuracy"]


def sinusoids(positions, width, deviation):
    """Position vectors (arXiv 1706.03762) with this standard deviation."""
    rates = 10000.0 ** -np.linspace(0, 1, width // 2)
    angles = np.arange(positions)[:, None] * rates
    return math.sqrt(2) * deviation * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class InMemory:
    """Some batches again and again, in place of a `Feed`."""

    def __init__(self, batches, count):
        self._batches = [batches[step] for step in range(count)]

    def padding(self):
        """The share of the tokens."""
        return 1 - float(mean(batch["input_mask"].mean() for batch in self._batches))

    def text(self, special):
        """Tokens of a batch that are neither padding nor special ones."""
        return mean(
            int(batch["input_mask"].sum() - sum((batch["input_ids"] == i).sum() for i in special))
            for batch in self._batches
        )

    def take(self, count):
        return [self._batches[n % len(self._batches)] for n in range(count)]


def calibrate(folder, settings, rounds=7):
    """Milliseconds of an update of each filling, timed in turns, and what is in a batch."""
    shapes, feeds = {}, {}
    vocabulary = tokenization.read_vocabulary(str(folder / "vocab.txt"))
    special = vocabulary[tokenization.CLS], vocabulary[tokenization.SEP]
    for data, length in LENGTHS.items():
        for filling in FILLINGS:
            key = length, filling == "packed"
            if key not in shapes:
                shapes[key] = Shape(folder, settings, *key)
            batches = shapes[key].batches(data, "train", filling)
            feeds[data, filling] = shapes[key], InMemory(batches, settings["updates_per_call"])
    times = {name: [] for name in feeds}
    for number in range(rounds + 1):  # the first compiles
        for name, (shape, feed) in feeds.items():
            started = time.perf_counter()
            shape.train(feed, settings["updates_per_call"])
            if number:
                times[name].append((time.perf_counter() - started) / settings["updates_per_call"])
    return [
        {
            "data": data,
            "filling": filling,
            "ms": [1000 * seconds for seconds in times[data, filling]],
            "padding": feeds[data, filling][1].padding(),
            "text_tokens": feeds[data, filling][1].text(special),
        }
        for data, filling in feeds
    ]


def milliseconds(timed, data, filling):
    """Of an update: the median over all fillings that have the same arrays in a batch."""
    alike = [
        median(each["ms"])
        for each in timed
        if LENGTHS[each["data"]] == LENGTHS[data]
        and (each["filling"] == "packed") == (filling == "packed")
    ]
    return median(alike)


def updates_of(settings, timed, data, filling):
    """The updates of a trial: a multiple of those of a call."""
    each = settings["updates_per_call"]
    calls = settings["seconds"][data] * 1000 / milliseconds(timed, data, filling) / each
    return max(1, round(calls)) * each


def run_trials(folder, settings, jobs):
    """Trains one trial after another and prints a line for each; `jobs` are (trial, updates)."""
    shapes = {}
    for trial, steps in jobs:
        started, data, filling = time.perf_counter(), trial["data"], trial["filling"]
        key = LENGTHS[data], filling == "packed"
        if key not in shapes:
            shapes[key] = Shape(folder, settings, *key)
        shape = shapes[key]
        shape.restart(trial["seed"])
        opened = shape.batches(data, "train", filling, trial["seed"])
        feed = shape.engine.feed(lambda *_, opened=opened: opened, range(steps))
        sums = shape.train(feed, steps)
        result = {
            "updates": steps,
            "tokens": sums["tokens"],
            "training_loss": sums["masked_lm_loss"] / sums["masked_lm_weight"],
            "held_out": {form: shape.held_out(data, form) for form in FILLINGS[:2]},
            "wall_seconds": time.perf_counter() - started,
        }
        print(json.dumps({"trial": trial, **result}), flush=True)


# The results


def kept():
    """The page and its tables; see `evidence`."""
    yield PAGE, contents(study_of(RESULTS, SETTINGS).done().values(), [RESULTS])


def contents(records, files=()):
    """The tables of a page of records."""
    (calibration,) = (r for r in records if r["trial"]["filling"] == "calibration")
    by_name = {}
    for record in records:
        trial = record["trial"]
        by_name.setdefault((trial["data"], trial["filling"]), []).append(record)
    return evidence.Contents(
        "What filling rows is worth",
        {
            "padding": _padding_table(calibration),
            "speed": _speed_table(calibration["timed"]),
            "loss": _loss_table(by_name),
        },
        files,
    )


def _padding_table(calibration):
    rows = [("", "sentence pairs", *FILLINGS, "tokens of a full row ÷ of pairs")]
    for data in LENGTHS:
        found = {e["filling"]: e["padding"] for e in calibration["timed"] if e["data"] == data}
        shares = calibration["padding_of_pairs"][data], *(found[filling] for filling in FILLINGS)
        ratio = (1 - found["full"]) / (1 - shares[0])
        rows.append((data, *(f"{share:.1%}" for share in shares), f"{ratio:.2f}"))
    return rows


def _speed_table(timed):
    head = "ms per update", "tokens/s", "of documents", "tokens of text/s", "of documents"
    rows = [("", "rows", *head)]
    for each in timed:
        data, filling = each["data"], each["filling"]
        if filling == "documents":
            first = None
        seconds = milliseconds(timed, data, filling) / 1000
        speeds = (1 - each["padding"]) / seconds, each["text_tokens"] / seconds
        first = first or speeds
        low, high = min(each["ms"]), max(each["ms"])
        cells = [f"{median(each['ms']):.2f} ({low:.2f} … {high:.2f})"]
        for number, (speed, other) in enumerate(zip(speeds, first, strict=True)):
            of_batch = 1 if number else SETTINGS["tokens"]
            cells += [f"{speed * of_batch:,.0f}", f"{speed / other:.2f}"]
        rows.append((data, filling, *cells))
    return rows


def _loss_table(by_name):
    form = "held out as {}: loss", "accuracy"
    head = [text.format(each) for each in FILLINGS[:2] for text in form]
    rows = [("", "rows", "runs", "updates", "million tokens", *head, "loss less documents'")]
    for (data, filling), runs in by_name.items():
        if filling == "calibration":
            continue
        cells = []
        for each in FILLINGS[:2]:
            losses, hits = zip(*(run["held_out"][each] for run in runs), strict=True)
            cells += [stats.spread(losses, "{:.3f}"), f"{mean(hits):.1%}"]
        others = {r["trial"]["seed"]: r for r in by_name.get((data, "documents"), ())}
        apart = [
            run["held_out"]["documents"][0] - others[seed]["held_out"]["documents"][0]
            for run in runs
            if (seed := run["trial"]["seed"]) in others and filling != "documents"
        ]
        tokens = mean(run["tokens"] for run in runs) / 1e6
        updates = f"{runs[0]['updates']:,}"
        deviation = f" ± {stdev(apart):.3f}" if len(apart) > 1 else ""
        cells.append(f"{mean(apart):+.3f}{deviation}" if apart else "–")
        rows.append((data, filling, len(runs), updates, f"{tokens:.1f}", *cells))
    return sorted(rows, key=lambda r: (list(LENGTHS).index(r[0]), r[1]) if r[0] else (-1, ""))


# The study


def all_trials(settings, _):
    """By seeds, so that a study that is cut has whole comparisons."""
    return [{"data": "all", "filling": "calibration", "seed": 0}] + [
        {"data": data, "filling": filling, "seed": seed}
        for seed in range(1, settings["seeds"] + 1)
        for data in LENGTHS
        for filling in FILLINGS
    ]


def study_of(results, settings):
    return trials.Study(
        results, settings, functools.partial(all_trials, settings), extent=("seeds",)
    )


def child(folder, settings, work, on_line):
    """Runs work in a process of JAX; `on_line` is called with each value that it prints."""
    environment = {
        "KERAS_BACKEND": "jax",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # other processes need memory, too
        "JAX_COMPILATION_CACHE_DIR": os.path.join(tempfile.gettempdir(), "row_filling_programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    arguments = json.dumps({"folder": str(folder), "settings": settings, **work})
    process = subprocess.Popen(
        [sys.executable, __file__, "--child"],
        env=environment | os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=child_commands.end_with_parent,
    )
    process.stdin.write(arguments)
    process.stdin.close()
    for line in process.stdout:
        on_line(json.loads(line))
    if process.wait():
        raise RuntimeError(f"a process ended with exit code {process.returncode}")


def answer():
    """The work of a process, from its standard input."""
    work = json.loads(sys.stdin.read())
    folder, settings = pathlib.Path(work["folder"]), work["settings"]
    if "jobs" in work:
        run_trials(folder, settings, work["jobs"])
        return
    print(json.dumps({"timed": calibrate(folder, settings), "gpus": machine.gpus()}), flush=True)


def shares(missing, count):
    """Divides trials among processes: each gets trials of few programs."""
    by_program = sorted(missing, key=lambda t: (LENGTHS[t["data"]], t["filling"] == "packed"))
    count = min(count, len(missing))
    cuts = [len(missing) * n // count for n in range(count + 1)]
    parts = [by_program[a:b] for a, b in itertools.pairwise(cuts)]
    return [sorted(part, key=lambda t: t["seed"]) for part in parts]


def run(options, settings):
    """Runs what is missing."""
    study, adding, started = study_of(options.results, settings), threading.Lock(), time.monotonic()
    about = {"settings": settings, "machine": trials.about_machine()}

    def add(found):
        with adding:
            study.add(about | found)
        print(
            f"{time.monotonic() - started:4.0f} s: {stats.trial_name(found['trial'])}", flush=True
        )

    first, *rest = study.trials()
    if first in study.missing():
        pairs = {data: padding_of_pairs(options.data_dir, data) for data in LENGTHS}
        found = {"trial": first, "padding_of_pairs": pairs}
        child(options.data_dir, settings, {}, lambda timed: add(found | timed))
    timed = study.done()[stats.trial_name(first)]["timed"]
    for data in LENGTHS:
        for filling in FILLINGS:
            steps = updates_of(settings, timed, data, filling)
            print(
                f"{data}, {filling}: {milliseconds(timed, data, filling):.2f} ms, {steps} updates"
            )
    missing = [trial for trial in rest if trial in study.missing()]
    if options.calibrate or not missing:
        report(study)
        return
    parts = [
        [(t, updates_of(settings, timed, t["data"], t["filling"])) for t in part]
        for part in shares(missing, options.jobs)
    ]
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        done = [
            pool.submit(child, options.data_dir, settings, {"jobs": part}, add) for part in parts
        ]
        for each in done:
            each.result()
    report(study)


def report(study):
    """Prints the tables."""
    for name, rows in contents(study.done().values()).tables.items():
        print(f"\n{name}\n\n{evidence.table(rows)}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", type=pathlib.Path, required=True, help="the records")
    parser.add_argument("--make", action="store_true", help="make the records")
    parser.add_argument("--wikipedia", type=pathlib.Path, help="text of articles, for --make")
    parser.add_argument(
        "--lines", type=pathlib.Path, nargs=2, help="sentences: training and held out, for --make"
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--calibrate", action="store_true", help="only time the updates")
    parser.add_argument("--seconds", type=float, default=1.0, help="factor on those of a trial (1)")
    parser.add_argument("--jobs", type=int, default=4, help="processes of trials (4)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    options.data_dir = options.data_dir.resolve()
    if options.make:
        make(options.data_dir, options.wikipedia, options.lines)
        return
    settings = SETTINGS | (QUICK if options.quick else {})
    settings["seconds"] = {k: options.seconds * v for k, v in settings["seconds"].items()}
    run(options, settings)


if __name__ == "__main__":
    answer() if sys.argv[1:] == ["--child"] else main()
