"""Opens a checkpoint of any format. The format is recognised from the content, never guessed.

The result is the same for all formats: `Tensor`s with the official names and layout, the
configuration, the vocabulary, and the names of all variables that belong to no BERT.
"""

import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Sequence

from official_bert.checkpoints import (
    finding,
    heads,
    hugging_face,
    keras_files,
    model_folder,
    names,
    safetensors_files,
)
from official_bert.checkpoints.model_folder import ModelFolder
from official_bert.checkpoints.tensors import Tensor
from official_bert.data import tokenization, tokenizer_settings
from official_bert.data.tokenization import Casing
from official_bert.model.config import BertConfig
from official_bert.system import local_paths, places, quiet_tensorflow

_SAME = {"gelu_new": "gelu"}  # two names of one activation
_STEP = re.compile(r"(^|/)(iterations|_iterations|iter|global_step)$")  # the number of updates
_FLOATING = tuple(safetensors_files.DTYPES[name] for name in ("F64", "F32", "F16", "BF16"))


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint that is open; its tensors are read later.

    Attributes:
        path: The file or prefix.
        dialect: "Hugging Face", "TensorFlow 1", "tf-models" or "Keras".
        weights: {official name: tensor}.
        slots: Moments, {official name with the suffix `/adam_m` or `/adam_v`: tensor}.
        counters: Names of variables of the training alone, such as `global_step`.
        left_over: Own names of variables that belong to no BERT.
        config: The shape of the model.
        vocab_file: Its `vocab.txt` or `tokenizer.json`; None if none was found or given.
        do_lower_case: Whether the vocabulary is uncased; None without a vocabulary.
        max_length: Maximum length of a sequence in tokens; None without a vocabulary.
        head: The kind of head of a fine-tuned model; None without one.
        head_weights: The tensors of that head, {our name: tensor}.
        labels: What a classifier predicts, as `labels.json` holds it; None if nothing says it.
    """

    path: str
    dialect: str
    weights: dict[str, Tensor]
    slots: dict[str, Tensor]
    counters: dict[str, Tensor]
    left_over: dict[str, Tensor]
    config: BertConfig
    vocab_file: pathlib.Path | None = None
    do_lower_case: Casing | None = None
    max_length: int | None = None
    head: heads.Head | None = None
    head_weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    labels: dict | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of `names.PARTS` that it holds, complete or not, and the fine-tuned head."""
        rows = names.rows(self.config)
        found = tuple(
            part
            for part in names.PARTS
            if any(row.part == part and row.official in self.weights for row in rows)
        )
        return (*found, self.head.part) if self.head else found

    @property
    def step(self) -> Tensor | None:
        """The number of updates that its moments have seen; None if it does not hold that."""
        # A run of ours counts skipped updates in global_step, too, and so its own name is first.
        counters = sorted(self.counters.items(), reverse=True)
        steps = [
            t for n, t in counters if counts_updates(n) and not t.shape and t.dtype.kind in "iu"
        ]
        return steps[0] if steps else None

    @property
    def missing_parts(self) -> list[str]:
        """What a whole model of its kind, for pre-training or fine-tuned, has besides."""
        whole = self.head.reads if self.head else names.PARTS
        return [part for part in whole if part not in self.parts]


def open_checkpoint(
    path: str | os.PathLike,
    *,
    bert_config_file: str | os.PathLike | None = None,
    vocab_file: str | os.PathLike | None = None,
    do_lower_case: Casing | None = None,
) -> Source:
    """Opens a checkpoint of any format; see `Source`.

    Args:
        path: A folder, a checkpoint's prefix, or one of its files.
        bert_config_file: Its configuration; default: `bert_config.json` or `config.json` of its
            folder. For Hugging Face's format the second is preferred.
        vocab_file: Its vocabulary; default: that of its folder, if there is one.
        do_lower_case: Whether the vocabulary is uncased; default: what its run, `tokenizer.json` or
            `tokenizer_config.json` says, or else True if it has no upper-case letter.

    Raises:
        ValueError: there is no checkpoint, it is not a BERT's, or it is damaged.
        OSError: a file cannot be read.
    """
    file, model = model_folder.of(path, bert_config_file=bert_config_file, vocab_file=vocab_file)
    if model.kind == "keras" and model.config_file is None:
        config = keras_files.read_config(file)
    else:
        config = model.config()
    source = _with_head(_open(model.kind, file, config), model)
    if model.vocab_file is None:
        return source
    vocabulary = tokenization.read_vocabulary(str(model.vocab_file))
    tokenization.require_within(config.vocab_size, vocabulary, str(model.vocab_file))
    lower = model.casing(do_lower_case)
    if lower:
        tokenization.require_uncased(vocabulary, str(model.vocab_file))
    model.check_run_vocabulary()
    return dataclasses.replace(
        source,
        vocab_file=model.vocab_file,
        do_lower_case=lower,
        max_length=min(
            config.max_position_embeddings,
            tokenizer_settings.max_length(model.vocab_file) or config.max_position_embeddings,
        ),
    )


def open_for(config: BertConfig, path: str | os.PathLike) -> Source:
    """Opens a checkpoint of any format, as the start of a model with this configuration.

    Variables that pre-training does not have, such as a fine-tuned head, are left over. An address
    such as `gs://bucket/a.ckpt` must be of a TensorFlow checkpoint.

    Raises:
        ValueError: as `open_checkpoint`; or a configuration beside it gives the same weights
            another meaning.
        OSError: a file cannot be read.
    """
    if local_paths.is_address(path):
        return _open("bundle", str(places.as_path(path)), config)
    file, model = model_folder.of(path)
    if model.config_file:
        _check_same_meaning(config, model.config(), model.config_file)
    source = _open(model.kind, file, config)
    return dataclasses.replace(source, labels=_with_head(source, model).labels)


def _open(kind, file, config):
    dialect, found, counters, left_over = _READERS[kind](file, config)
    if kind != "keras" and not any(name.startswith("bert/") for name in found):
        finding.require_no_other_scope(kind, file, left_over)
    return Source(
        path=str(file),
        dialect=dialect,
        weights={n: t for n, t in found.items() if not n.endswith(("/adam_m", "/adam_v"))},
        slots={n: t for n, t in found.items() if n.endswith(("/adam_m", "/adam_v"))},
        counters=counters,
        left_over=left_over,
        config=config,
    )


def _with_head(source, model):
    """The source with the head of a fine-tuned model apart; not beside pre-training's."""
    head, tensors, slots, left_over = heads.take(source.left_over, source.config.hidden_size)
    if not head or "masked_lm" in source.parts:
        return source
    return dataclasses.replace(
        source,
        head=head,
        head_weights=tensors,
        slots=source.slots | slots,
        left_over=left_over,
        labels=_labels(model, tensors) if head is heads.CLASSIFIER else None,
    )


def _labels(model: ModelFolder, head_weights):
    if model.kind == "hugging_face":
        (outputs,) = head_weights["output_bias"].shape
        file = model.folder / "config.json"
        return heads.labels_of_hugging_face(hugging_face.values_in(file), outputs, file)
    return heads.read_labels(model.labels_file) if model.labels_file else None


def counts_updates(name: str) -> bool:
    """Whether a counter is the number of updates."""
    return _STEP.search(name) is not None


def is_larger(source: Source) -> bool:
    """Whether variables of the encoder itself are left over: its configuration is another's."""
    return any(name.startswith(("bert/", "bert.")) for name in source.left_over)


def _check_same_meaning(config, other, file):
    """Raises ValueError if the two models differ in a way that the shapes do not show."""
    for name in "num_attention_heads", "hidden_act":
        ours, theirs = (_SAME.get(v, v) for v in (getattr(config, name), getattr(other, name)))
        if ours != theirs:
            raise ValueError(
                f"The weights beside {file} were trained with {name}={getattr(other, name)!r}, but "
                f"the model has {getattr(config, name)!r}, which gives other results. "
                f"Leave --bert_config_file out, or set {theirs!r} in it."
            )


def check(source: Source, parts: Sequence[str], ignore_left_over: bool = False) -> None:
    """Raises ValueError unless `parts` are complete, in their shapes, and nothing else is there."""
    rows = [row for row in names.rows(source.config) if row.part in parts]
    shapes = {row.official: names.shape(row, source.config) for row in rows}
    missing = [f"{n} {shape}" for n, shape in shapes.items() if n not in source.weights]
    others = [
        f"{n} {source.weights[n].shape} instead of {shape}"
        for n, shape in shapes.items()
        if n in source.weights and source.weights[n].shape != shape
    ]
    others += [
        f"{n} {slot.shape} instead of {shapes[n[:-7]]}"
        for n, slot in source.slots.items()
        if n[:-7] in shapes and slot.shape != shapes[n[:-7]]
    ]
    others += [
        f"{n} of type {tensor.dtype} instead of floating point"
        for n, tensor in (source.weights | source.head_weights | source.slots).items()
        if tensor.dtype not in _FLOATING
    ]
    left_over = [
        n if names.is_moment(n) else f"{n} {tensor.shape}"
        for n, tensor in source.left_over.items()
        if not ignore_left_over
    ]
    problems = {"missing": missing, "not as expected": others, "left over": left_over}
    if any(problems.values()):
        can_be_left_out = not missing and not others and not is_larger(source)
        raise ValueError(
            f"{source.path} ({source.dialect}) does not fit its configuration. "
            + " ".join(
                f"{what}: {names.listed(found)}." for what, found in problems.items() if found
            )
            + (" Give --ignore_left_over to leave these out." * can_be_left_out)
        )


def without_unread(source: Source) -> tuple[list[str], Source]:
    """Leaves out what the head of a fine-tuned model does not read, such as the pooler.

    Returns:
        The names that are left out, and the source without them.
    """
    if source.head is None:
        return [], source
    rows = {row.official: row for row in names.rows(source.config)}
    read = {n: t for n, t in source.weights.items() if rows[n].part in source.head.reads}
    unread = [name for name in source.weights if name not in read]
    return unread, dataclasses.replace(source, weights=read)


# The readers: (file, config) → (dialect, weights and slots, counters, left over)


def _read_bundle(prefix, config):
    if importlib.util.find_spec("tensorflow"):  # else Keras, which the reader imports, is on JAX
        quiet_tensorflow.import_tensorflow()
    from official_bert.checkpoints import tf_checkpoints

    return tf_checkpoints.read(prefix, config)


def _read_keras(file, config):
    _check_same_meaning(config, keras_files.read_config(file), file)
    return keras_files.read(file, config)


_READERS = {"bundle": _read_bundle, "keras": _read_keras, "hugging_face": hugging_face.read}
