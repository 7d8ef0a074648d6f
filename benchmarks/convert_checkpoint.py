"""Time and memory of converting a BERT checkpoint: each direction as its own process.

    python benchmarks/convert_checkpoint.py [--model=large] [--rounds=3]

The model is random; a round converts it from Hugging Face's format to each other format and back.
Memory is the largest resident set of the process, TensorFlow included, compared with the bytes of
the weights. CPU seconds count all threads and the system, and are meaningful on a busy machine too.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import numpy as np

from official_bert.checkpoints import names, safetensors_files
from official_bert.checkpoints.source import Tensor
from official_bert.data.tokenization import SPECIAL_TOKENS
from official_bert.model.config import BertConfig

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
HEAD = ("from", "to", "seconds", "CPU seconds", "peak memory, GB", "of the weights")


def main():
    parser = machine.parser(__doc__, rounds=(3, "conversions per direction"))
    parser.add_argument("--model", choices=[*SHAPES], default="large", help="size of the model")
    given = parser.parse_args()
    shape, rows = SHAPES[given.model], []
    config = BertConfig(**shape, intermediate_size=4 * shape["hidden_size"])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        size = make_model(folder / "hf", config)
        for source, output, output_format in DIRECTIONS:
            runs = []
            for _ in range(given.rounds):
                shutil.rmtree(folder / output, ignore_errors=True)
                runs.append(convert(folder / source, folder / output, output_format))
            seconds, busy, peak = (statistics.median(values) for values in zip(*runs))
            sides = source.split("_")[0], output.split("_")[0]
            figures = f"{seconds:.1f}", f"{busy:.1f}", f"{peak / 1e9:.2f}", f"{peak / size:.2f}"
            rows.append((*sides, *figures))
            print(*rows[-1], flush=True)
    about = (
        f"Weights of {size / 1e9:.2f} GB. Medians of {given.rounds} processes per direction, start "
        "and TensorFlow's import included. The limits are 15 seconds and 1.3 times the weights."
    )
    title = f"Converting a BERT of {config.num_hidden_layers} layers × {config.hidden_size}"
    path = machine.dated(given.output_dir, "convert_checkpoint")
    machine.write(path, machine.page(title, about, [HEAD, *rows]))


def make_model(folder, config):
    """Writes a random model in Hugging Face's format; returns the bytes of its weights."""
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


if __name__ == "__main__":
    main()
