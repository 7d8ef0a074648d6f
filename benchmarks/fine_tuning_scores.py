"""Scores of fine-tuning: with pre-training, without it, and by the Trainer of `transformers`.

    python benchmarks/fine_tuning_scores.py --task=sst2 --data=glue_data/SST-2 \\
        --pretrained=MODEL_DIR --vocab_file=vocab.txt
    python benchmarks/fine_tuning_scores.py --task=squad --data=train.json,dev.json \\
        --pretrained=MODEL_DIR --vocab_file=vocab.txt
    python benchmarks/fine_tuning_scores.py --task=tags --data=train.jsonl,dev.jsonl \\
        --pretrained=MODEL_DIR --vocab_file=vocab.txt

A trial is one fine-tuning with one seed, in a process of its own, by one of three ways: our command
from the pre-trained weights; the same command from fresh weights; and the `Trainer` of
`transformers` from the same pre-trained weights, with the same settings on the same examples. Tags,
whose files `stdlib_tags.py` makes, have only the first two ways. Each finished trial is a line of
`--results`; the command, given again, resumes with the next one.

Needs torch, transformers, accelerate and matplotlib.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
from statistics import mean

import claim
import stats
import trials

from official_bert.training import model_directory

SETTINGS = {
    "sst2": {
        "max_seq_length": 32,
        "train_batch_size": 32,
        "learning_rate": 5e-4,
        "num_train_epochs": 0.5,
        "warmup_proportion": 0.1,
        "dropout": 0.1,
    },
    "squad": {
        "max_seq_length": 128,
        "doc_stride": 64,
        "train_batch_size": 32,
        "learning_rate": 5e-4,
        "num_train_epochs": 1.0,  # of the questions, as the official script counts
        "warmup_proportion": 0.1,
        "dropout": 0.1,
    },
    "tags": {
        "max_seq_length": 48,
        "train_batch_size": 32,
        "learning_rate": 2e-3,
        "num_train_epochs": 4.0,
        "warmup_proportion": 0.1,
        "dropout": 0.1,
    },
}
WAYS = {
    "pretrained": "`lamb_tf`, pre-trained",
    "fresh": "`lamb_tf`, without pre-training",
    "trainer": "`transformers.Trainer`, pre-trained",
}
COLORS = {"pretrained": "#4477aa", "fresh": "#999999", "trainer": "#cc3311"}
WAYS_OF = {"sst2": [*WAYS], "squad": [*WAYS], "tags": ["pretrained", "fresh"]}
TITLES = {
    "sst2": "SST-2",
    "squad": "SQuAD, scored on 12 new articles",
    "tags": "Code names, scored on new modules",
}
METRICS = {  # of a task: name, label, factor to per cent
    "sst2": (("eval_accuracy", "accuracy", 100),),
    "squad": (("exact_match", "exact match", 1), ("f1", "F1", 1)),
    "tags": (("f1", "entity F1", 100), ("strict_f1", "strict F1", 100)),
}


def all_trials(task, settings, records):
    return [
        {"task": task, "way": way, "seed": seed}
        for seed in range(1, settings["seeds"] + 1)
        for way in settings["ways"]
    ]


def exported(model_dir):
    """The exported weights of a run of pre-training, for `--init_checkpoint`."""
    (index,) = (pathlib.Path(model_dir) / "pretrained").glob("*.index")
    return index.with_suffix("")


def digest(prefix):
    """A digest of the weights that a study begins with."""
    (data,) = prefix.parent.glob(f"{prefix.name}.data-*")
    return hashlib.sha256(data.read_bytes()).hexdigest()[:16]


def make_start(options, settings):
    """Writes the configuration with the dropout of fine-tuning, and the peer's weights."""
    folder = options.data_dir
    config = json.loads((options.pretrained / model_directory.CONFIG).read_text())
    dropout = {
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["dropout"],
    }
    (folder / "bert_config.json").write_text(json.dumps(config | dropout))
    if "trainer" in settings["ways"] and not (folder / "hugging_face").exists():
        converting = ["-m", "official_bert.convert_checkpoint", f"--input={options.pretrained}"]
        converting += [f"--output={folder}/hugging_face", "--output_format=huggingface"]
        if code := trials.run_child([*converting, f"--vocab_file={options.vocab_file}"]):
            raise SystemExit(f"convert_checkpoint ended with exit code {code}")


# Trials


def run(options, settings, trial, records):
    """One trial in a process of its own; see `claim.Claim`."""
    make_start(options, settings)
    output_dir = options.data_dir / f"{trial['way']}_{trial['seed']}"
    shutil.rmtree(output_dir, ignore_errors=True)  # of a trial that was killed
    of_way = trainer_command if trial["way"] == "trainer" else our_command
    command = of_way(options, settings, trial, output_dir)

    def read(folder):
        (result,) = json.loads((folder / "results.json").read_text())["runs"]
        return {"metrics": {name: result["metrics"][name] for name, *_ in METRICS[trial["task"]]}}

    return trials.in_child(command, output_dir, trial, read)


def our_command(options, settings, trial, output_dir):
    ours = ("dropout", "pretrained", "seeds", "ways")
    names = {name: value for name, value in settings.items() if name not in ours}
    values = names | {
        "bert_config_file": options.data_dir / "bert_config.json",
        "vocab_file": options.vocab_file,
        "output_dir": output_dir,
        "seed": trial["seed"],
        "eval_batch_size": 64,
        "log_steps": 100,
        "steps_per_loop": 50,
        "save_checkpoints_steps": 1_000_000,
        "keep_checkpoint_max": 1,
        "distribution_strategy": "off",
    }
    if trial["way"] == "pretrained":
        values["init_checkpoint"] = exported(options.pretrained)
    given = [
        f"--{name}={value}" for name, value in (values | of_task(options, trial["task"])).items()
    ]
    script = {"sst2": "run_classifier", "squad": "run_squad", "tags": "run_tagger"}[trial["task"]]
    return ["-m", f"official_bert.{script}", "--do_train", "--do_eval", *given]


def of_task(options, task):
    if task == "sst2":
        return {"task_name": "SST-2", "data_dir": options.data}
    train, dev = options.data.split(",")
    return {"train_file": train, ("dev_file" if task == "tags" else "predict_file"): dev}


def trainer_command(options, settings, trial, output_dir):
    arguments = {
        "start": str(options.data_dir / "hugging_face"),
        "config_file": str(options.data_dir / "bert_config.json"),
        "vocab_file": options.vocab_file,
        "files": of_task(options, trial["task"]),
        "output_dir": str(output_dir),
        "settings": settings,
        "trial": trial,
    }
    return [os.path.relpath(__file__), f"--trainer_trial={json.dumps(arguments)}"]


# The results


def scores(task, records):
    """{metric: {way: its scores over the seeds, in per cent}}."""
    found = {}
    for (name, label, per_cent), way in itertools.product(METRICS[task], WAYS):
        runs = sorted(
            (r for r in records if r["trial"]["way"] == way), key=lambda r: r["trial"]["seed"]
        )
        values = [per_cent * record["metrics"][name] for record in runs]
        found.setdefault(label, {}).update({way: values} if values else {})
    return found


def tables(task, records, settings):
    """Scores of each way, the gain by pre-training, and ours compared with Trainer's."""
    rows = [
        (metric, WAYS[way], stats.spread(v), f"{min(v):.2f} … {max(v):.2f}", len(v))
        for metric, ways in scores(task, records).items()
        for way, v in ways.items()
    ]
    head = ("metric, %", "model", "mean ± standard deviation", "minimum … maximum", "seeds")
    compared = [("points of", "compared", "difference ± standard error", "standard errors")]
    for metric, ways in scores(task, records).items():
        for way in ("fresh", "trainer"):
            if min(len(ways.get(side, ())) for side in ("pretrained", way)) > 1:
                gap, error = stats.difference(ways["pretrained"], ways[way])
                sides = f"{WAYS['pretrained']} − {WAYS[way]}"
                row = (f"{gap:+.2f} ± {error:.2f}", f"{abs(gap) / error:.1f}")
                compared.append((metric, sides, *row))
    return {"scores": [head, *rows], "compared": compared}


def draw(task, records, settings):
    """A dot per seed, a bar at the mean, an axis per metric."""
    found = scores(task, records)
    figure, (axes,) = stats.figure(1, len(found), (3.6 * len(found), 3.4))
    for axis, (metric, ways) in zip(axes, found.items()):
        for place, (way, values) in enumerate(ways.items()):
            axis.plot([place] * len(values), values, "o", color=COLORS[way], alpha=0.6)
            axis.plot(place, mean(values), "_", color=COLORS[way], markersize=28, markeredgewidth=2)
        names = [WAYS[way].replace("`", "").replace(", ", ",\n") for way in ways]
        axis.set_xticks(range(len(ways)), names, fontsize=7)
        axis.set_xlim(-0.5, len(ways) - 0.5)
        axis.set_title(TITLES[task], fontsize=9)
        axis.set_ylabel(f"{metric}, %")
        axis.grid(axis="y", alpha=0.3)
    return figure


CLAIMS = {
    task: claim.of(
        globals(),
        "fine_tuning",
        "Fine-tuning with and without pre-training",
        results=f"fine_tuning_{task}",
        settings=settings | {"pretrained": "", "seeds": 5, "ways": WAYS_OF[task]},
        trials=functools.partial(all_trials, task),
        tables=functools.partial(tables, task),
        pictures={f"_{task}": functools.partial(draw, task)},
        flags={
            "seeds": (int, "seeds of each way: 1, 2, … (5)"),
            "ways": (claim.comma_separated, f"of {', '.join(WAYS_OF[task])} (all)"),
        },
        alone=True,
        extent=("seeds", "ways"),
        suffix=f" of {task}",
    )
    for task, settings in SETTINGS.items()
}


def kept():
    for each in CLAIMS.values():
        yield from claim.kept(each)


def main():
    chooser = argparse.ArgumentParser(add_help=False)
    chooser.add_argument("--task", choices=list(SETTINGS), default="sst2", help="the task")
    task = chooser.parse_known_args()[0].task
    study = CLAIMS[task]
    parser = claim.parser(study, __doc__)
    add = parser.add_argument
    add("--task", choices=list(SETTINGS), default="sst2", help="the task (sst2)")
    add("--data", help="the folder of SST-2, or TRAIN_FILE,DEV_FILE of the other tasks")
    add("--pretrained", type=pathlib.Path, help="the folder of a finished run_pretraining")
    add("--vocab_file", help="its vocabulary")
    add("--trainer_trial", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer_trial:
        import fine_tuning_trainer

        fine_tuning_trainer.run(**options.trainer_trial)
        return 0
    if options.results:  # a folder, of a file for each task
        options.results /= f"{study.results}.jsonl"
    if options.data_dir:
        options.data_dir /= task
    if options.page_only:
        newest = trials.read(options.results or claim.default_paths(study)[0])[-1]
        options.settings["pretrained"] = newest["settings"]["pretrained"]
    else:
        options.settings["pretrained"] = digest(exported(options.pretrained))
    return claim.main(study, options)


if __name__ == "__main__":
    sys.exit(main())
