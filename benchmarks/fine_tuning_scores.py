"""Scores of fine-tuning: with pre-training, without, and by the Trainer of `transformers`.

    python benchmarks/fine_tuning_scores.py --task=sst2 --data=glue_data/SST-2 \\
        --pretrained=MODEL_DIR --vocab_file=vocab.txt
    python benchmarks/fine_tuning_scores.py --task=squad --data=train.json,dev.json \\
        --pretrained=MODEL_DIR --vocab_file=vocab.txt

A trial is one fine-tuning with one seed, in a process of its own, by one of three ways: our command
from the pre-trained weights; the same command from fresh weights; and the `Trainer` of
`transformers` from the same pre-trained weights, with the same settings on the same examples. Each
finished trial is a line of `--results`; the command, given again, continues with the next one, and
draws the page anew after each.

Needs torch, transformers, accelerate and matplotlib.
"""

import hashlib
import json
import pathlib
import shlex
import shutil
import sys

import fine_tuning_page as page
import trials as studies
from absl import app, flags

from official_bert.system import child_commands
from official_bert.training import model_directory

FLAGS = flags.FLAGS
flags.DEFINE_enum("task", "sst2", ["sst2", "squad"], "What is learned.")
flags.DEFINE_string("data", None, "The folder of SST-2, or SQUAD_TRAIN.json,SQUAD_DEV.json.")
flags.DEFINE_string("pretrained", None, "The folder that run_pretraining has left.")
flags.DEFINE_string("vocab_file", None, "Its vocabulary.")
flags.DEFINE_integer("seeds", 5, "Number of seeds of each way: 1, 2, …")
flags.DEFINE_list("ways", ["pretrained", "fresh", "trainer"], "Which of the ways.")
flags.DEFINE_string("settings", "{}", "JSON object of settings that differ from the script's.")
flags.DEFINE_string("data_dir", "build/fine_tuning", "Where runs and converted weights lie.")
flags.DEFINE_string("results", "benchmarks/results", "Folder of the JSON lines, a file per task.")
flags.DEFINE_string("page", "docs/evidence/fine_tuning.md", "The page; its picture, beside it.")
flags.DEFINE_bool("page_only", False, "Write the page from the results that there are.")
flags.DEFINE_string("trainer_trial", None, "For the script itself: one trial of Trainer, as JSON.")

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
}
METRICS = {"sst2": ("eval_accuracy",), "squad": ("exact_match", "f1")}


def main(_):
    child_commands.raise_on_signals()
    try:
        if FLAGS.trainer_trial:
            import fine_tuning_trainer

            fine_tuning_trainer.run(**json.loads(FLAGS.trainer_trial))
            return 0
        return study(SETTINGS[FLAGS.task] | json.loads(FLAGS.settings))
    except child_commands.Interrupted:
        print("\nStopped. The same command continues with the next trial.", flush=True)
        return 130


def study(settings):
    """Runs the trials that are missing; returns the exit code."""
    trials = [
        {"task": FLAGS.task, "way": way, "seed": seed}
        for seed in range(1, FLAGS.seeds + 1)
        for way in FLAGS.ways
    ]
    folder = pathlib.Path(FLAGS.data_dir) / FLAGS.task
    results = pathlib.Path(FLAGS.results) / f"fine_tuning_{FLAGS.task}.jsonl"
    if FLAGS.page_only:
        page.write(FLAGS.page, results.parent)
        return 0
    settings |= {"pretrained": digest(exported(FLAGS.pretrained))}
    work = studies.Study(results, settings, key, len(trials), (("way",), ()))
    with studies.exclusive(folder):
        make_start(folder, settings)
        failed = work.run(
            trials,
            lambda trial: run_trial(folder, settings, trial),
            lambda: page.write(FLAGS.page, results.parent),
        )
        return 1 if failed else 0


def key(trial):
    return f"{trial['task']}, {trial['way']}, seed {trial['seed']}"


def exported(model_dir):
    """The weights that a run of pre-training has exported, as `--init_checkpoint` takes them."""
    (index,) = (pathlib.Path(model_dir) / "pretrained").glob("*.index")
    return index.with_suffix("")


def digest(prefix):
    """Which weights a study begins with."""
    (data,) = prefix.parent.glob(f"{prefix.name}.data-*")
    return hashlib.sha256(data.read_bytes()).hexdigest()[:16]


# What every trial begins with


def make_start(folder, settings):
    """The pre-trained model's configuration with the dropout of fine-tuning; and both for peers."""
    config = json.loads((pathlib.Path(FLAGS.pretrained) / model_directory.CONFIG).read_text())
    dropout = {
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["dropout"],
    }
    (folder / "bert_config.json").write_text(json.dumps(config | dropout))
    if "trainer" in FLAGS.ways and not (folder / "hugging_face").exists():
        converting = ["-m", "official_bert.convert_checkpoint", f"--input={FLAGS.pretrained}"]
        options = [f"--output={folder}/hugging_face", "--output_format=huggingface"]
        if code := studies.run_child([*converting, *options, f"--vocab_file={FLAGS.vocab_file}"]):
            raise SystemExit(f"convert_checkpoint ended with exit code {code}")


# Trials


def run_trial(folder, settings, trial):
    """One trial in a process of its own: its record, or None if it failed."""
    output_dir = folder / f"{trial['way']}_{trial['seed']}"
    shutil.rmtree(output_dir, ignore_errors=True)  # of a trial that was killed
    of_way = trainer_command if trial["way"] == "trainer" else our_command
    command = of_way(folder, settings, trial, output_dir)
    if code := studies.run_child(command):
        print(f"{key(trial)} ended with exit code {code}", file=sys.stderr, flush=True)
        return None
    (run,) = json.loads((output_dir / "results.json").read_text())["runs"]
    shutil.rmtree(output_dir)
    metrics = {name: run["metrics"][name] for name in METRICS[trial["task"]]}
    return {"command": shlex.join(["python", *map(str, command)]), "metrics": metrics}


def our_command(folder, settings, trial, output_dir):
    names = {
        name: value for name, value in settings.items() if name not in ("dropout", "pretrained")
    }
    values = names | {
        "bert_config_file": folder / "bert_config.json",
        "vocab_file": FLAGS.vocab_file,
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
        values["init_checkpoint"] = exported(FLAGS.pretrained)
    given = [f"--{name}={value}" for name, value in (values | of_task(trial["task"])).items()]
    script = {"sst2": "run_classifier", "squad": "run_squad"}[trial["task"]]
    return ["-m", f"official_bert.{script}", "--do_train", "--do_eval", *given]


def of_task(task):
    if task == "sst2":
        return {"task_name": "SST-2", "data_dir": FLAGS.data}
    train, dev = FLAGS.data.split(",")
    return {"train_file": train, "predict_file": dev}


def trainer_command(folder, settings, trial, output_dir):
    arguments = {
        "start": str(folder / "hugging_face"),
        "config_file": str(folder / "bert_config.json"),
        "vocab_file": FLAGS.vocab_file,
        "files": of_task(trial["task"]),
        "output_dir": str(output_dir),
        "settings": settings,
        "trial": trial,
    }
    return [sys.argv[0], f"--trainer_trial={json.dumps(arguments)}"]


if __name__ == "__main__":
    app.run(main)
