r"""Converts a BERT checkpoint from one format into another, bit for bit.

    lamb-bert convert --input=uncased_L-12_H-768_A-12 \
        --output=bert_base --output_format=huggingface

The format of the input is recognised from its contents: a checkpoint of Google's TensorFlow 1
scripts, an object checkpoint of tf-models, a checkpoint of `run_pretraining`, a Hugging Face
folder, or a `.keras` file.
"""

import dataclasses
import logging
import os
from typing import Any

from official_bert.checkpoints import model_card, model_folder, names, sources, targets
from official_bert.checkpoints.source import counts_updates
from official_bert.commands import commands
from official_bert.commands.arguments import apply, contradiction, idle
from official_bert.commands.training_settings import Casing
from official_bert.system import child_commands, local_paths, messages
from official_bert.system.settings import documented, setting


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Convert(Casing):
    """The settings of the command."""

    input: str | os.PathLike = setting(
        "Checkpoint to read: a folder, the prefix of a TensorFlow checkpoint, or a .safetensors or "
        ".keras file."
    )
    output: str | os.PathLike = setting("Output folder; must not exist yet.")
    output_format: str = setting(
        "Format to write. huggingface: model.safetensors, config.json and tokenizer files, for "
        "transformers and KerasHub. sentence_transformers: the encoder, for vectors of texts. tf1: "
        "bert_model.ckpt with Google's names. keras: model.keras, for Keras. savedmodel: for "
        "serving by TensorFlow, with signatures for ids and for raw text. onnx, litert: for ONNX "
        "Runtime and LiteRT, with an input of ids.",
        choices=targets.TARGETS,
    )
    bert_config_file: str | os.PathLike | None = setting(
        "Model configuration. Default: bert_config.json or config.json in the input's folder.", None
    )
    vocab_file: str | os.PathLike | None = setting(
        "Vocabulary of the model. Default: tokenizer.json or vocab.txt in the input's folder.", None
    )
    keep_slots: bool = setting(
        "Write the optimizer's moments and step count, which only tf1 can store.", True
    )
    allow_missing_heads: bool = setting(
        "Convert a checkpoint even without pooler or pre-training heads. Unknown heads are left "
        "out and listed.",
        False,
    )
    allow_missing_vocabulary: bool = setting("Convert even without a vocabulary.", False)
    ignore_left_over: bool = setting(
        "Leave out variables that are not part of BERT, and list them.", False
    )


def _holds_no_slots(args):
    return not targets.TARGETS[args.output_format].holds_slots


RULES = (
    contradiction(
        ["keep_slots"],
        lambda args: args.keep_slots and _holds_no_slots(args),
        "--output_format={output_format} holds no moments; leave it out, or write tf1.",
    ),
    idle(
        ["keep_slots"],
        _holds_no_slots,
        "with --output_format={output_format}, which holds no moments.",
    ),
)


def convert(
    path: str | os.PathLike, output: str | os.PathLike, output_format: str, **others: Any
) -> list[str]:
    """Converts a checkpoint; returns lines about the parts read, written and left out.

    Args:
        path: The checkpoint: a folder, a prefix or a file; see `sources.open_checkpoint`.
        output: The folder to make.
        output_format: One of `targets.TARGETS`.
        others: Further settings of `Convert`.

    Raises:
        ValueError: the input is not a checkpoint of a BERT, or does not fit; nothing is written.
        OSError: a file cannot be read or written; no part of the output stays.
    """
    return _convert(Convert(input=path, output=output, output_format=output_format, **others))


def _convert(args):
    named = {"bert_config_file": args.bert_config_file, "vocab_file": args.vocab_file}
    local_paths.require_local(input=args.input, output=args.output, **named)
    target = targets.TARGETS[args.output_format]
    casing = {"do_lower_case": args.do_lower_case, "strip_accents": args.strip_accents}
    source = sources.open_checkpoint(args.input, **named, **casing)
    _check(source, target, args)
    # Without known heads, the leftovers are another head, unless some belong to the encoder.
    is_other_head = bool(source.missing_parts) and not source.is_larger
    source.check(source.parts, args.ignore_left_over or is_other_head)
    said = [_about(source), f"          {_about_vocabulary(source)}"]
    left_out = [*source.unmatched]
    if not target.holds_heads:
        unread, source = source.without_heads()
        left_out += unread
    elif target.drops_unread:
        unread, source = source.without_unread()
        left_out += unread
    if not (target.holds_slots and args.keep_slots):
        left_out += source.slots
        source = dataclasses.replace(source, slots={})
    keeps_step = source.slots and source.step is not None
    left_out += [n for n in source.counters if not (keeps_step and counts_updates(n))]
    written = _write(args.output, target, source)
    said.append(f"written   {args.output}: {', '.join(written)}")
    said += model_card.card_lines(args.output, source, target.card) if target.card else []
    if target.holds_slots and any(name.startswith("optimizer/") for name in left_out):
        said.append("warning   no moments: tf1 has names for those of LAMB, AdamW and LARS only")
    return [*said, f"left out  {names.listed(left_out)}"] if left_out else said


def _write(output, target, source):
    """Writes a folder; returns the names of its files."""
    try:
        with targets.whole_folder(output) as folder:
            target.write(folder, source)
            files = [path for path in folder.rglob("*") if path.is_file()]
            return sorted(path.relative_to(folder).as_posix() for path in files)
    except OSError as error:
        if error.filename or not error.strerror:
            raise
        raise OSError(error.errno, error.strerror, str(output)) from None  # such as a full disk


def _check(source, target, args):
    if "encoder" not in source.parts:
        raise ValueError(
            f"--input must contain the variables of a BERT encoder; got {source.path} "
            f"({source.format}) with {names.listed(list(source.unmatched)) or 'nothing'}. Give "
            "the checkpoint of a BERT."
        )
    got = f"got {source.path} ({source.format}) with {', '.join(source.parts)}"
    missing = [part for part in target.needed_parts(source) if part not in source.parts]
    if missing:
        others = (
            "huggingface or tf1" if args.output_format == "keras" else "keras, huggingface or tf1"
        )
        raise ValueError(
            f"--input must have {' and '.join(missing)} for --output_format={args.output_format}; "
            f"{got}. Use {others}."
        )
    missing = source.missing_parts
    if missing and target.holds_heads and not args.allow_missing_heads:
        unknown = "" if source.is_larger else names.listed(source.unmatched)
        raise ValueError(
            f"--input must have {' and '.join(missing)}; {got}"
            + (f", and {unknown} of an unknown head" if unknown else "")
            + f". Give --allow_missing_heads to convert only the {', '.join(source.parts)}."
        )
    if target.needs_vocabulary and not source.vocab_file and not args.allow_missing_vocabulary:
        raise ValueError(
            f"the folder of {source.path} must contain a {' or '.join(model_folder.VOCABULARIES)}; "
            "got neither. Give --vocab_file, or convert without it by --allow_missing_vocabulary."
        )


def _about(source):
    return (
        f"read      {source.format}: {source.path}, "
        f"{len(source.weights) + len(source.head_weights)} variables ({', '.join(source.parts)}), "
        f"{source.config.num_hidden_layers} layers of width {source.config.hidden_size}"
    )


def _about_vocabulary(source):
    if not source.vocab_file:
        return "no vocabulary"
    casing = "lower-casing" if source.do_lower_case else "cased"
    accents = ", accents kept" if source.do_lower_case == "keep_accents" else ""
    return f"{source.vocab_file}, {casing}{accents}"


def main(args: Convert) -> None:
    args = apply(args, RULES)
    try:
        logging.getLogger("absl").setLevel(logging.WARNING)  # TensorFlow logs each step
        child_commands.raise_on_signals()
        lines = _convert(args)
    except child_commands.Interrupted:
        raise messages.Failed("interrupted; nothing was written.", 130) from None
    print("\n".join(lines))


if __name__ == "__main__":
    commands.run(main, Convert)
