r"""Writes the vectors of the word pieces of each line of a text, from any layers of a model.

    lamb-bert extract-features --input_file=sentences.txt --output_file=vectors.jsonl \
        --model_dir=google_bert --layers=-1,-2

A line is a sentence, or a pair: `first ||| second`. The output has the format of the script of the
same name in google-research/bert. Run again with the same flags, it continues where the output
ends. In Python, `official_bert.load(folder).embed(texts)` makes one vector of each text.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.commands import commands, machine
from official_bert.commands.training_settings import Casing
from official_bert.prediction import loading
from official_bert.system import local_paths, locks, whole_files
from official_bert.system.settings import documented, setting

if TYPE_CHECKING:
    from official_bert.prediction.vectors import Embedding

_DIGITS = 6  # of a value, after the point
_BYTES_AT_ONCE = 1 << 20
_SEPARATOR = " ||| "


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractFeatures(Casing):
    """The settings of the command."""

    input_file: str = setting("Text: a sentence per line, or a pair, `first ||| second`.")
    output_file: str = setting(
        "JSON lines to write: a line for each of the text. An unfinished one is continued; its "
        "settings are in a file with .settings.json appended."
    )
    model_dir: str | None = setting("Folder of a run, or any checkpoint.", None)
    init_checkpoint: str | None = setting("Another name of --model_dir.", None)
    bert_config_file: str | None = setting(
        "Model configuration. Default: from the model's folder.", None
    )
    vocab_file: str | None = setting(
        "Vocabulary: a vocab.txt or tokenizer.json. Default: from the model's folder.", None
    )
    layers: str = setting(
        "Layers whose vectors are written, comma-separated: 0 is the first, -1 the last.",
        "-1,-2,-3,-4",
    )
    max_seq_length: int = setting(
        "Maximum number of word pieces of a line, with [CLS] and [SEP]; longer lines are cut.",
        128,
        minimum=5,
    )
    batch_size: int = setting("Lines computed at once.", 32, minimum=1)
    engine: str = setting(
        "Library that computes, on one device; jax needs no TensorFlow.",
        "tensorflow",
        choices=("tensorflow", "jax"),
    )


def check(args: ExtractFeatures) -> list[int]:
    """Refuses what cannot be meant; returns the layers.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    if (args.model_dir is None) == (args.init_checkpoint is None):
        got = "neither" if args.model_dir is None else "both"
        raise ValueError(f"--model_dir or --init_checkpoint must name the model; got {got}.")
    read = {"input_file": args.input_file, "bert_config_file": args.bert_config_file}
    read |= {"vocab_file": args.vocab_file, "model_dir": args.model_dir}
    read |= {"init_checkpoint": args.init_checkpoint}
    local_paths.require_local(output_file=args.output_file, **read)
    local_paths.require_file_name(output_file=args.output_file)
    written = [args.output_file, _settings_file(args.output_file)]
    inputs = {flag: [path] for flag, path in read.items() if path and os.path.isfile(path)}
    local_paths.require_apart({"output_file": written}, inputs)
    if not os.path.isfile(args.input_file):
        raise ValueError(f"--input_file must be an existing file; got {args.input_file!r}.")
    try:
        return [int(layer) for layer in args.layers.split(",")]
    except ValueError:
        raise ValueError(
            f"--layers must be whole numbers separated by commas, such as -1,-2; got "
            f"{args.layers!r}."
        ) from None


def main(args: ExtractFeatures) -> None:
    """Writes the vectors of all lines, or of those that the output lacks."""
    layers = check(args)
    machine.set_backend(args.engine)
    model = loading.load(
        args.model_dir or args.init_checkpoint,  # type: ignore[arg-type]  # one is given
        args.vocab_file,
        args.do_lower_case,
        strip_accents=args.strip_accents,
        bert_config_file=args.bert_config_file,
    )
    from official_bert.prediction.vectors import Layers

    computed = Layers(model.model, model.tokenizer, layers, args.max_seq_length)
    settings = _settings(args, layers, model)
    path = pathlib.Path(args.output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.exclusive(path.parent, name=path.name):
        done = _begin(path, settings)
        total = _write(path, done, args, layers, computed, model.tokenizer)
    continued = f", of which {done:,} were there" if done else ""
    print(f"{path}: the vectors of {total:,} lines{continued}")
    computed.warn_of_cut("lines")


def _write(path, done, args, layers, computed, tokenizer):
    """Appends the lines of the output from number `done` on; returns how many there are then.

    A batch that was begun is computed again: the same rows together give the same bits.
    """
    first = done - done % args.batch_size
    lines = _lines(args.input_file, first)
    with open(path, "ab") as file:
        while part := list(itertools.islice(lines, args.batch_size)):
            found = {}
            for numbers, arrays, vectors in computed.over(part, args.batch_size):
                for row, number in enumerate(numbers):
                    length = int(arrays["input_mask"][row].sum())
                    ids = arrays["input_ids"][row, :length].tolist()
                    values = np.stack([layer[row, :length] for layer in vectors], axis=1)
                    features = _features(map(tokenizer.id_to_token, ids), layers, values)
                    line = {"linex_index": first + int(number), "features": features}
                    found[number] = f"{json.dumps(line)}\n".encode()  # smaller than the numbers
            for number in range(max(0, done - first), len(part)):
                file.write(found[number])
            file.flush()
            first += len(part)
    whole_files.sync(path)
    return first


def _features(tokens, layers, values):
    """The entries of a line's word pieces, from their vectors (S, layers, H)."""
    rounded = np.round(values.astype(np.float64), _DIGITS).tolist()
    return [
        {
            "token": token,
            "layers": [{"index": n, "values": vector} for n, vector in zip(layers, vectors)],
        }
        for token, vectors in zip(tokens, rounded)
    ]


def _lines(path: str, start: int) -> Iterator[tuple[str, str | None]]:
    """The lines of a text from number `start` on, as sentences and pairs.

    Raises:
        ValueError: a line is not UTF-8.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(file, start, None), start):
            try:
                text = line.decode("utf-8-sig" if number == 0 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number + 1} must be text in UTF-8; got {error}. Convert the "
                    "file, for example with iconv."
                ) from None
            first, separator, second = text.rpartition(_SEPARATOR)
            yield (first, second) if separator else (text, None)


# An output that is continued


def _settings_file(path):
    return f"{path}.settings.json"


def _settings(args: ExtractFeatures, layers: list[int], model: "Embedding") -> dict[str, Any]:
    """Everything that determines the output, which batches and engines do not."""
    import keras

    weights = hashlib.sha256(model.model.config.to_json().encode())
    for variable in sorted(model.model.weights, key=lambda variable: variable.path):
        weights.update(keras.ops.convert_to_numpy(variable).tobytes())
    with open(args.input_file, "rb") as file:
        text = hashlib.file_digest(file, "sha256")
    return {
        "input_file": text.hexdigest(),
        "layers": layers,
        "max_seq_length": args.max_seq_length,
        "model": weights.hexdigest(),
        "vocabulary": hashlib.sha256(model.tokenizer.to_str().encode()).hexdigest(),
    }


def _begin(path: pathlib.Path, settings: dict[str, Any]) -> int:
    """Prepares the output; returns its number of whole lines, without a broken last one.

    Raises:
        ValueError: it is another command's, or of other settings.
    """
    settings_path, size = pathlib.Path(_settings_file(path)), path.stat().st_size
    if not size:
        whole_files.write_text(settings_path, json.dumps(settings, indent=1) + "\n")
        return 0
    advice = "Give another file, or remove this one."
    try:
        held = json.loads(settings_path.read_text(encoding="utf-8"))
        others = [name for name, value in settings.items() if held[name] != value]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"--output_file must be new, or an unfinished output of this command; got {path}, "
            f"which has no readable {settings_path.name} next to it. {advice}"
        ) from None
    if others:
        raise ValueError(
            f"--output_file must be new, or of the same settings; got {path}, made with another "
            f"{' and '.join(others)}. {advice}"
        )
    lines, last, end = _whole_lines(path)
    try:
        if lines and json.loads(last)["linex_index"] != lines - 1:
            raise ValueError("another line's number")
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged at line {lines:,}. {advice}") from None
    os.truncate(path, end)
    return lines


def _whole_lines(path):
    """The number of whole lines, the last of them, and where it ends."""
    lines, ends = 0, (0, 0)  # of the last two
    with open(path, "rb") as file:
        while block := file.read(_BYTES_AT_ONCE):
            start = file.tell() - len(block)
            lines += block.count(b"\n")
            last = block.rfind(b"\n")
            if last >= 0:
                before = block.rfind(b"\n", 0, last)
                ends = (start + before + 1 if before >= 0 else ends[1], start + last + 1)
        file.seek(ends[0])
        return lines, file.read(ends[1] - ends[0]), ends[1]


if __name__ == "__main__":
    commands.run(main, ExtractFeatures)
