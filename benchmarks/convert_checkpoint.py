"""How long a BERT takes to convert, and in how much memory: each direction as its own process.

    python benchmarks/convert_checkpoint.py [--model=large] [--rounds=3]

The model is random; a round converts it from Hugging Face's form to each other and back. Memory is
the largest resident set of the process, TensorFlow's own included, beside the bytes of the weights.
CPU seconds are those of all threads, in the system too: they tell something on a busy machine, too.
"""

import datetime
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import numpy as np
from absl import app, flags

from official_bert.checkpoints import names, safetensors_files
from official_bert.checkpoints.source import Tensor
from official_bert.data.tokenization import SPECIAL_TOKENS
from official_bert.model.config import BertConfig

FLAGS = flags.FLAGS
flags.DEFINE_enum("model", "large", ["base", "large", "tiny"], "The size of the model.")
flags.DEFINE_integer("rounds", 3, "Conversions per direction.")
flags.DEFINE_string("output_dir", "benchmarks/results", "Where the table is written.")

SHAPES = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
}
DIRECTIONS = (  # from, to, format
    ("hf", "tf1", "tf1"),
    ("tf1", "hf_again", "huggingface"),
    ("hf", "hf_copy", "huggingface"),
    ("hf", "keras", "keras"),
    ("keras", "tf1_again", "tf1"),
    ("keras", "hf_from_keras", "huggingface"),
    ("tf1", "savedmodel", "savedmodel"),
    ("hf", "savedmodel_from_hf", "savedmodel"),
)


def main(_):
    shape = SHAPES[FLAGS.model]
    config = BertConfig(**shape, intermediate_size=4 * shape["hidden_size"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        size = make_model(folder / "hf", config)
        for source, output, output_format in DIRECTIONS:
            runs = []
            for number in range(FLAGS.rounds):
                name = output if number == FLAGS.rounds - 1 else f"{output}_{number}"
                runs.append(convert(folder / source, folder / name, output_format))
                if name != output:
                    shutil.rmtree(folder / name)
            seconds, busy, peak = (statistics.median(values) for values in zip(*runs))
            row = source.split("_")[0], output.split("_")[0], seconds, busy, peak, peak / size
            rows.append(row)
            print("{} -> {}: {:.1f} s, {:.1f} s of CPU, {:.2f} GB".format(*row[:4], peak / 1e9))
    text = report(config, size, rows)
    month = f"{datetime.date.today():%Y%m}"
    name = f"convert_checkpoint_cpu{machine.cores()}_{month}.md"
    pathlib.Path(FLAGS.output_dir, name).write_text(text)
    print(text)


def make_model(folder, config):
    """A random model in Hugging Face's form; returns the bytes of its weights."""
    folder.mkdir()
    generator = np.random.default_rng(0)

    def tensor(row):
        shape = names.shape(row, config)
        if "hugging_face" in row.transposed:
            shape = shape[::-1]
        return Tensor(
            shape, np.dtype("<f4"), lambda: generator.standard_normal(shape, dtype=np.float32)
        )

    tensors = [(row.hugging_face, tensor(row)) for row in names.rows(config)]
    safetensors_files.write(folder / "model.safetensors", tensors)
    (folder / "bert_config.json").write_text(config.to_json())
    words = [*SPECIAL_TOKENS, *(f"word{i}" for i in range(config.vocab_size - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return sum(4 * int(np.prod(tensor.shape)) for _, tensor in tensors)


def convert(source, output, output_format):
    """(seconds, CPU seconds, largest resident bytes) of one conversion, a process of its own."""
    command = [sys.executable, "-m", "official_bert.convert_checkpoint", f"--input={source}"]
    command += [f"--output={output}", f"--output_format={output_format}"]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}.")
    busy = usage.ru_utime + usage.ru_stime
    return seconds, busy, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def report(config, size, rows):
    lines = [
        f"# Converting a BERT of {config.num_hidden_layers} layers × {config.hidden_size}",
        "",
        f"{platform.machine()}, {machine.cores()} cores, {platform.system()}; Python "
        f"{platform.python_version()}. Weights of {size / 1e9:.2f} GB.",
        f"Made by `python benchmarks/convert_checkpoint.py --model={FLAGS.model} "
        f"--rounds={FLAGS.rounds}`: medians of {FLAGS.rounds} processes per direction, start and "
        "TensorFlow's import included. The limits are 15 seconds and 1.3 times the weights.",
        "",
        "| from | to | seconds | CPU seconds | peak memory, GB | of the weights |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {source} | {output} | {seconds:.1f} | {busy:.1f} | {peak / 1e9:.2f} | {share:.2f} |"
        for source, output, seconds, busy, peak, share in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
