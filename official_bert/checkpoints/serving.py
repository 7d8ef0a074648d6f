"""Writes models to be served without this package: as SavedModel, ONNX or LiteRT.

Each takes ids, under the names of `ConfiguredModel.input_names`, and returns the model's
`named_outputs`. A SavedModel takes raw text, too: its graph splits text into ids.
"""

import importlib.util
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints import hugging_face, keras_files, names, tensor_bundles
from official_bert.checkpoints.source import Source, Tensor
from official_bert.checkpoints.text_graph import Pieces, TextToIds
from official_bert.data import tokenization
from official_bert.model import fused
from official_bert.model.configured_model import ConfiguredModel, ServedModel

_PARTS = {"next_sentence_logits": ("pooler", "next_sentence"), "pooled": ("pooler",)}
_EXPORTERS = {"onnx": "tf2onnx"}  # the packages that Keras exports with
_OLDEST_KERAS = {"onnx": (3, 8), "litert": (3, 13)}
_LARGEST = 2_000_000_000  # bytes of weights in one message of protobuf, or in a flat buffer
_LONGEST_ANSWER = 30  # word pieces, as in the official script


def _served(source: Source) -> ServedModel:
    """The model of a source in float32, its weights not set, without outputs of missing parts."""
    make = keras_files.model_class(source.kind.model)
    model = make(source.config, **source.model_arguments, seed=None, dtype="float32")
    missing = [name for name, parts in _PARTS.items() if not {*parts} <= {*source.parts}]
    return ServedModel(model, missing)


def _weights(model: keras.Model, source: Source) -> list[Tensor]:
    """The tensors of the model's weights; 0 for those of parts that the source lacks."""
    held, float32 = source.weights | source.head_weights, np.dtype(np.float32)
    lacking = {row.official for row in names.rows(source.config) if row.part not in source.parts}

    def zeros(shape):
        return Tensor(shape, float32, lambda: np.zeros(shape, float32))

    return [
        zeros(tuple(variable.shape))
        if variable.path in lacking
        else held[variable.path].cast(float32)
        for variable in model.weights
    ]


# ONNX and LiteRT, by Keras


def export(file: Path, source: Source, format: str) -> None:
    """Writes a file by Keras' exporter, for any number of rows of any length.

    Args:
        format: "onnx" or "litert".

    Raises:
        ValueError: Keras cannot write it here, or not this model.
    """
    require_exporter(format)
    served = _served(source)
    size = 4 * served.count_params()
    if size > _LARGEST:
        raise ValueError(
            f"a model for --output_format={format} must have at most {_LARGEST / 1e9:g} GB of "
            f"weights; got {size / 1e9:.3g} GB. Use savedmodel."
        )
    for variable, tensor in zip(served.model.weights, _weights(served.model, source), strict=True):
        variable.assign(tensor.read())
    try:
        _export(file, served, format)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # each exporter has its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"Keras {keras.__version__} must be able to export the model for --output_format="
            f"{format}; it is not: {reason[:200]}. Use savedmodel."
        ) from error


def _export(file, served, format):
    options = {}
    if format == "litert":  # without TensorFlow's operations, which few interpreters have
        options["target_spec"] = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    with warnings.catch_warnings():  # of the exporters, for programmers
        warnings.simplefilter("ignore")
        served.export(file, format, verbose=False, **options)
    if format == "onnx":
        import onnx

        onnx.checker.check_model(str(file))  # tf2onnx writes operations that it does not know


def require_exporter(format: str) -> None:
    """Raises a ValueError, which names the cure, if a format cannot be written here."""
    option = f"--output_format={format}"
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras' backend must be tensorflow for {option}; got {keras.backend.backend()}. Set "
            "KERAS_BACKEND=tensorflow."
        )
    oldest = _OLDEST_KERAS.get(format, ())
    if tuple(map(int, keras.__version__.split(".")[:2])) < oldest:
        raise ValueError(
            f"Keras must be at least version {'.'.join(map(str, oldest))} for {option}; got "
            f"{keras.__version__}. Run `pip install --upgrade keras`."
        )
    package = _EXPORTERS.get(format)
    if package and importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{package} must be installed for {option}; it is not. Run "
            '`pip install "lamb_tf[export]"`.'
        )


# A SavedModel


def save(folder: Path, source: Source) -> None:
    """Writes a SavedModel with the signature `serving_default`, for ids, and those for text.

    serving_default: `input_ids`, `input_mask`, `segment_ids` (B, S), and for pre-training models
    `masked_lm_positions` (B, P), int32 → the model's `named_outputs`.

    The signatures for text need a vocabulary. They are `text` and, for models of single texts or
    pairs, `pairs`; see the functions of `_SIGNATURES`.

    Raises:
        ValueError: Keras has another backend; or the labels do not fit the head.
        OSError: it cannot be written.
    """
    require_exporter("savedmodel")
    served = _served(source)
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in served.model.weights]
    for variable in module.variables_of_model:  # graphs need only its shape; see `_fill`
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros(()))
    specs = {name: tf.TensorSpec((None, None), tf.int32, name=name) for name in served.input_names}

    @tf.function(input_signature=[specs], autograph=False)
    def of_ids(inputs):
        return served(inputs)

    signatures = {"serving_default": of_ids}
    if source.vocab_file:
        make = _SIGNATURES[source.kind.task]
        module.text_to_ids, of_text = make(source, of_ids)
        signatures |= of_text
    with fused.as_plain_operations():
        try:
            tf.saved_model.save(module, str(folder), signatures)
        except tf.errors.OpError as error:
            first = str(error).partition("\n")[0]
            reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", first)  # no place in the graph
            raise OSError(f"Cannot write {folder}: {reason}") from None
    _fill(folder, served.model, source)


def _fill(folder, model, source):
    """Inserts the weights, one tensor at a time; the model was saved without them."""
    variables, filled = folder / "variables", folder / "variables_filled"
    key = tensor_bundles.OBJECT_GRAPH
    graph = {key: tensor_bundles.read(variables / "variables")[key]}
    tensors = {
        f"variables_of_model/{number}/.ATTRIBUTES/VARIABLE_VALUE": tensor
        for number, tensor in enumerate(_weights(model, source))
    }
    filled.mkdir()
    tensor_bundles.write(filled / "variables", tensors | graph)
    shutil.rmtree(variables)
    filled.rename(variables)
    (folder / "fingerprint.pb").unlink(missing_ok=True)  # the empty variables' one


# The signatures for text: functions of (source, function of ids) that return the `TextToIds`, and
# {name: function}


def _of_blanks(source, of_ids):
    """text: `sentences` (B,), in which `[MASK]` marks a blank → the logits of their ids.

    And `input_ids` (B, S) and `masked_lm_positions` (B, P), padded with 0.
    """
    graph = _graph(source, source.config.max_position_embeddings)
    mask_id = tokenization.read_vocabulary(str(source.vocab_file))[tokenization.MASK]

    def of_text(sentences):
        ids = graph(sentences)
        blanks = tf.ragged.boolean_mask(
            tf.ragged.range(ids.row_lengths()), ids.with_values(ids.values == mask_id)
        )
        inputs = {
            "input_ids": ids.to_tensor(),
            "input_mask": tf.ones_like(ids).to_tensor(),
            "segment_ids": tf.zeros_like(ids).to_tensor(),
            "masked_lm_positions": tf.cast(blanks.to_tensor(), tf.int32),
        }
        shown = {name: inputs[name] for name in ("input_ids", "masked_lm_positions")}
        return {**of_ids(inputs), **shown}  # the same graph of the model

    return graph, {"text": _function(of_text, "sentences")}


def _of_sentences(source, of_ids):
    """text: `sentences` (B,); pairs: `sentences` and `seconds` (B,) → `logits` (B, K), and
    `probabilities` (B, K) and `label` (B,), or `number` (B,). Where several labels may be true,
    each has its own probability, and `labels` (B, K) are their names.
    """
    classes = hugging_face.classes(source)
    number = len(classes) == 1 and not source.predicts_labels
    bounds = (source.labels or {}).get("number", [None, None])
    low, high = (end if bound is None else bound for bound, end in zip(bounds, (-np.inf, np.inf)))

    def predicted(outputs, rows):
        logits = outputs["logits"]
        if number:
            return {"logits": logits, "number": tf.clip_by_value(logits[:, 0], low, high)}
        if source.predicts_labels:
            labels = tf.tile(tf.constant([classes]), (tf.shape(logits)[0], 1))
            return {"logits": logits, "probabilities": tf.sigmoid(logits), "labels": labels}
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(tf.constant(classes), tf.argmax(logits, axis=-1)),
        }

    return _single_or_pairs(source, of_ids, predicted)


def _of_vectors(source, of_ids):
    """text: `sentences` (B,); pairs: `sentences` and `seconds` (B,) → the encoder's outputs, and
    `input_ids`, `input_mask` (B, S) and `embedding` (B, H), the mean vector with length 1.
    """

    def with_mean(outputs, rows):
        mask = tf.cast(rows["input_mask"], tf.float32)[:, :, None]
        mean = tf.reduce_sum(outputs["sequence"] * mask, axis=1) / tf.reduce_sum(mask, axis=1)
        shown = {name: rows[name] for name in ("input_ids", "input_mask")}
        return {**outputs, **shown, "embedding": tf.nn.l2_normalize(mean, axis=-1)}

    return _single_or_pairs(source, of_ids, with_mean)


def _of_words(source, of_ids):
    """text: `sentences` (B,) → of each word piece, (B, S): `tags`, `logits` (B, S, K), `input_ids`,
    the characters from `starts` to before `stops`, and `begins_word`, where its word's tag is.
    """
    graph = _graph(source, source.text_length)
    classes = tf.constant(hugging_face.classes(source))

    def of_text(sentences):
        pieces = graph.pieces(sentences)
        rows = graph.rows(pieces.cut(_room(pieces, source.text_length - 2)))
        logits = of_ids(_inputs(rows))["logits"]
        shown = {name: rows[name] for name in ("input_ids", *_PLACES)}
        return {"logits": logits, "tags": tf.gather(classes, tf.argmax(logits, axis=-1)), **shown}

    return graph, {"text": _function(of_text, "sentences")}


def _of_questions(source, of_ids):
    """text: `questions` and `contexts` (B,) → `answer` (B,), its characters from `start` to before
    `stop`, its `score` and `null_score`, the score of no answer; and of each word piece, (B, S),
    `start_logits`, `end_logits`, `input_ids`, `starts`, `stops`.
    """
    length, query = (source.windows[name] for name in ("max_seq_length", "max_query_length"))
    graph = _graph(source, length)

    def of_text(questions, contexts):
        question, context = graph.pieces(questions), graph.pieces(contexts)
        question = question.cut(_room(question, query))
        rest = length - 3 - question.ids.row_lengths()
        rows = graph.rows(question, context.cut(rest))
        outputs = of_ids(_inputs(rows))
        shown = {name: rows[name] for name in ("input_ids", "starts", "stops")}
        return {**outputs, **shown, **_answer(outputs, rows, contexts)}

    return graph, {"text": _function(of_text, "questions", "contexts")}


def _answer(outputs, rows, contexts):
    """The best piece of each context, as `squad_decoding.decode` finds it in a single window."""
    starts, ends = outputs["start_logits"], outputs["end_logits"]
    is_context = (rows["segment_ids"] == 1) & (rows["stops"] > 0)
    length = tf.shape(starts)[1]
    distances = tf.range(length)[None, :] - tf.range(length)[:, None]  # from start to end
    short = (distances >= 0) & (distances < _LONGEST_ANSWER)
    allowed = short & is_context[:, :, None] & is_context[:, None, :]
    scores = tf.where(allowed, starts[:, :, None] + ends[:, None, :], -np.inf)  # (B, S, S)
    scores = tf.reshape(scores, (-1, length * length))
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    exists = tf.reduce_any(is_context, axis=1)
    start = tf.gather(rows["starts"], best // length, batch_dims=1)
    stop = tf.gather(rows["stops"], best % length, batch_dims=1)
    start, stop = tf.where(exists, start, 0), tf.where(exists, stop, 0)
    return {
        "answer": tf.strings.substr(contexts, start, stop - start, "UTF8_CHAR"),
        "start": start,
        "stop": stop,
        "score": tf.where(exists, tf.reduce_max(scores, axis=1), 0.0),
        "null_score": starts[:, 0] + ends[:, 0],
    }


_SIGNATURES = {
    "fill-mask": _of_blanks,
    "text-classification": _of_sentences,
    "feature-extraction": _of_vectors,
    "token-classification": _of_words,
    "question-answering": _of_questions,
}
_PLACES = ("starts", "stops", "begins_word")


def _single_or_pairs(source, of_ids, predicted):
    """The signatures `text` and `pairs`; `predicted` is a function of (outputs, arrays)."""
    length = source.text_length
    graph = _graph(source, length)

    def of_rows(rows):
        return predicted(of_ids(_inputs(rows)), rows)

    def of_text(sentences):
        pieces = graph.pieces(sentences)
        return of_rows(graph.rows(pieces.cut(_room(pieces, length - 2))))

    def of_pairs(sentences, seconds):
        first, second = graph.pieces(sentences), graph.pieces(seconds)
        return of_rows(graph.rows(*_cut_longer(first, second, length - 3)))

    return graph, {
        "text": _function(of_text, "sentences"),
        "pairs": _function(of_pairs, "sentences", "seconds"),
    }


def _cut_longer(first: Pieces, second: Pieces, room: int) -> tuple[Pieces, Pieces]:
    """Pairs cut as by `classification_features.kept_lengths`."""
    lengths1, lengths2 = first.ids.row_lengths(), second.ids.row_lengths()
    fits = lengths1 + lengths2 <= room
    kept = tf.minimum(lengths1, tf.maximum(room - lengths2, (room + 1) // 2))
    kept1, kept2 = tf.where(fits, lengths1, kept), tf.where(fits, lengths2, room - kept)
    return first.cut(kept1), second.cut(kept2)


def _graph(source, max_length):
    return TextToIds(source.vocab_file, source.do_lower_case or False, max_length)


def _room(pieces, length):
    return tf.fill(tf.shape(pieces.ids.row_lengths()), tf.constant(length, tf.int64))


def _inputs(rows):
    return {name: rows[name] for name in ConfiguredModel.input_names}


def _function(function: Callable, *names: str):
    """A function of strings (B,) with these names as a graph."""
    specs = [tf.TensorSpec((None,), tf.string, name=name) for name in names]
    return tf.function(function, input_signature=specs, autograph=False)
