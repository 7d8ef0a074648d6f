"""At which update does a small BERT leave the plateau of word frequencies, and what moves that?

    python benchmarks/plateau.py --demo_dir=demo_output --output=benchmarks/results/plateau.md

Takes the text, the vocabulary and the model of a finished demo, changes one setting at a time, and
trains with each until the training loss is `plots.PLATEAU_MARGIN` below what word frequencies get,
or to --updates. Every update has 2,048 tokens, at a constant rate after the warm-up. The figures
are numbers of updates, which do not depend on the machine.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from official_bert.create_pretraining_data import create_pretraining_data
from official_bert.data import input_pipeline, tokenization
from official_bert.data.instances import Settings
from official_bert.demonstration import demo_folder, neighbour_baseline
from official_bert.model.config import BertConfig
from official_bert.plots import PLATEAU_MARGIN

FLAGS = flags.FLAGS
flags.DEFINE_string("demo_dir", "demo_output", "A finished demo.")
flags.DEFINE_string("output", None, "The table, a .md file.", required=True)
flags.DEFINE_list("seeds", ["1", "2"], "Seeds of each setting.")
flags.DEFINE_integer("updates", 2500, "Where to give up.")

LOG = "train_log.jsonl"
TOKENS = 2048  # of an update
WARMUP_STEPS = 200
BASE = {
    "length": 32,
    "masked": 0.15,
    "optimizer": "lamb",
    "rate": 8e-3,
    "beta_2": 0.98,
    "initializer_range": 0.06,
    "width": 128,
    "vocab_size": 2048,
    "next sentence": False,
}
CHANGES = [
    {},
    {"length": 16},
    {"length": 64},
    {"rate": 2e-3},
    {"rate": 1.6e-2},
    {"beta_2": 0.999},
    {"initializer_range": 0.02},
    {"initializer_range": 0.09},
    {"masked": 0.3},
    {"vocab_size": 8192},
    {"next sentence": True},
    {"width": 256},
    {"optimizer": "adamw", "rate": 2e-3},
]


def main(_):
    layout = demo_folder.DemoFolder(pathlib.Path(FLAGS.demo_dir))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for change in CHANGES:
            setting = BASE | change
            ends = [
                plateau_end(layout, pathlib.Path(scratch), setting, int(s)) for s in FLAGS.seeds
            ]
            name = ", ".join(f"{key} {value}" for key, value in change.items()) or "as above"
            rows.append(f"| {name} | {' | '.join(describe(end) for end in ends)} |")
            print(rows[-1], flush=True)
            pathlib.Path(FLAGS.output).write_text(page(rows))


def describe(end):
    return f"> {FLAGS.updates:,}" if end is None else f"{end:,}"


def page(rows):
    base = ", ".join(f"{name} {value}" for name, value in BASE.items())
    head = [f"seed {seed}" for seed in FLAGS.seeds]
    return "\n".join(
        [
            "# When the plateau ends",
            "",
            f"`python benchmarks/plateau.py --demo_dir={FLAGS.demo_dir} --output={FLAGS.output} "
            f"--seeds={','.join(FLAGS.seeds)} --updates={FLAGS.updates}`",
            "",
            "The update after which the training loss, a mean over 25 updates, is first "
            f"{PLATEAU_MARGIN} nats below what word frequencies get. Text and model of the demo, "
            f"2 layers, {TOKENS:,} tokens per update, {WARMUP_STEPS} updates of warm-up and then "
            f"a constant rate; {base}; and of that one thing changed:",
            "",
            f"| change | {' | '.join(head)} |",
            f"|---{'|---:' * len(head)}|",
            *rows,
            "",
        ]
    )


def plateau_end(layout, scratch, setting, seed):
    """The update, or `None`."""
    length, predictions = setting["length"], max(2, round(setting["length"] * setting["masked"]))
    vocab, records = prepare(layout, scratch, setting, predictions)
    config = dataclasses.replace(
        BertConfig.from_json_file(layout.config),
        vocab_size=len(tokenization.read_vocabulary(vocab)),
        initializer_range=setting["initializer_range"],
        hidden_size=setting["width"],
        num_attention_heads=setting["width"] // 64,
        intermediate_size=4 * setting["width"],
    )
    level = word_frequencies(layout, vocab, records, setting, predictions) - PLATEAU_MARGIN
    with tempfile.TemporaryDirectory(dir=scratch) as model_dir:
        config_file, log = pathlib.Path(model_dir, "config.json"), pathlib.Path(model_dir, LOG)
        config_file.write_text(config.to_json())
        command = [
            *(sys.executable, "-m", "official_bert.run_pretraining", f"--model_dir={model_dir}"),
            f"--bert_config_file={config_file}",
            f"--input_files={records}",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={predictions}",
            f"--train_batch_size={TOKENS // length}",
            f"--num_steps_per_epoch={FLAGS.updates}",
            "--num_train_epochs=1",
            f"--optimizer_type={setting['optimizer']}",
            f"--learning_rate={setting['rate']}",
            f"--end_lr={setting['rate']}",
            f"--warmup_steps={WARMUP_STEPS}",
            f"--beta_2={setting['beta_2']}",
            f"--use_next_sentence_label={setting['next sentence']}",
            f"--seed={seed}",
            "--log_steps=25",
            "--steps_per_loop=25",
            "--save_checkpoints_steps=100000",
            "--train_summary_interval=-1",
            "--distribution_strategy=off",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                time.sleep(1)
                if (end := first_below(log, level)) is not None:
                    process.terminate()
                    return end
        if process.returncode:
            raise SystemExit(process.returncode)
        return first_below(log, level)


def prepare(layout, scratch, setting, predictions):
    """The vocabulary and the records of a setting; made if need be."""
    size, length = setting["vocab_size"], setting["length"]
    vocab = scratch / f"vocab_{size}.txt"
    if not vocab.exists():
        with open(layout.text("train"), encoding="utf-8") as lines:
            tokenization.learn(lines, str(vocab), size)
    records = scratch / f"{size}_{length}_{predictions}.tfrecord"
    if not records.exists():
        create_pretraining_data(
            str(layout.text("train")),
            str(records),
            str(vocab),
            Settings(
                max_seq_length=length,
                max_predictions_per_seq=predictions,
                masked_lm_prob=predictions / length,
            ),
            dynamic_masking=True,
        )
    return str(vocab), str(records)


def word_frequencies(layout, vocab, records, setting, predictions):
    """The loss of guessing the masked tokens of the training records by word frequencies."""
    tokenizer = tokenization.load(vocab)
    counts = neighbour_baseline.NeighbourCounts(
        demo_folder.documents(layout.text("train"), tokenizer), tokenizer.get_vocab_size()
    )
    batches = input_pipeline.Batches(
        [records],
        TOKENS // setting["length"],
        setting["length"],
        predictions,
        use_next_sentence=setting["next sentence"],
    )
    some = [batches[step] for step in range(20)]
    mask_id = tokenizer.token_to_id(tokenization.MASK)
    return neighbour_baseline.evaluate(counts, some, mask_id)["word frequencies"]["loss"]


def first_below(log, level):
    """The step of the first whole line of a log whose loss is below `level`, or `None`."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    for line in map(json.loads, (line for line in lines if line.endswith("\n"))):
        if line["masked_lm_loss"] is not None and line["masked_lm_loss"] < level:
            return line["step"]
    return None


if __name__ == "__main__":
    app.run(main)
