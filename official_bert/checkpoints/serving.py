"""Writes a model as a SavedModel, to be served without Python or this package.

Raw text becomes ids inside the graph. TensorFlow alone has no word pieces, so the tokenizer itself
tells once what it does to each character (clean it, lower-case it, strip its accents, separate it),
and the answers are kept in tables of code points. The longest-match search of WordPiece is a loop
over lookups.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import tensor_bundles
from official_bert.checkpoints.source import Source
from official_bert.checkpoints.tf_checkpoints import OBJECT_GRAPH
from official_bert.data import tokenization
from official_bert.data.tokenization import Casing
from official_bert.model import fused
from official_bert.model.pretrainer import BertPretrainer

_TABLE_END = 0x32400  # from here on no character is changed or separated, except
_TAGS = range(0xE0000, 0xE1000)  # these, and
_PRIVATE = 0xF0000  # from here on all are treated alike
_LONGEST_WORD = 200  # characters, beyond which a word is unknown
_LETTER, _SPACE, _SIGN = range(3)


def save(folder: Path, source: Source) -> None:
    """Writes a SavedModel with the signatures `serving_default`, of ids, and `text`.

    serving_default: `input_ids`, `input_mask`, `segment_ids` (B, S) and `masked_lm_positions`
    (B, P), int32 → `masked_lm_logits` (B, P, V) and `next_sentence_logits` (B, 2).

    text: `sentences` (B,), strings in which `[MASK]` marks a blank → the same logits, and
    `input_ids` (B, S) and `masked_lm_positions` (B, P), padded with 0. Only if the source has a
    vocabulary.
    """
    model = BertPretrainer(source.config, seed=None, dtype="float32")
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.weights]
    for variable in module.variables_of_model:  # graphs need only its shape; see `_fill`
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.zeros(()))
    integers = tf.TensorSpec((None, None), tf.int32)
    names = "input_ids", "input_mask", "segment_ids", "masked_lm_positions"
    specs = {name: tf.TensorSpec(integers.shape, tf.int32, name=name) for name in names}

    @tf.function(input_signature=[specs], autograph=False)
    def of_ids(inputs):
        return model(inputs)

    signatures = {"serving_default": of_ids}
    if source.vocab_file:
        length = source.config.max_position_embeddings
        module.text_to_ids = TextToIds(source.vocab_file, source.do_lower_case or False, length)
        mask_id = tokenization.read_vocabulary(str(source.vocab_file))[tokenization.MASK]
        sentences = tf.TensorSpec((None,), tf.string, name="sentences")

        @tf.function(input_signature=[sentences], autograph=False)
        def of_text(sentences):
            ids = module.text_to_ids(sentences)
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

        signatures["text"] = of_text
    with fused.as_plain_operations():
        try:
            tf.saved_model.save(module, str(folder), signatures)
        except tf.errors.OpError as error:
            first = str(error).partition("\n")[0]
            reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", first)  # no place in the graph
            raise OSError(f"Cannot write {folder}: {reason}") from None
    _fill(folder, model, source)


def _fill(folder, model, source):
    """Inserts the weights, one tensor at a time; the model was saved without them."""
    variables, filled = folder / "variables", folder / "variables_filled"
    graph = {OBJECT_GRAPH: tensor_bundles.read(variables / "variables")[OBJECT_GRAPH]}
    tensors = {
        f"variables_of_model/{number}/.ATTRIBUTES/VARIABLE_VALUE": source.weights[variable.path]
        for number, variable in enumerate(model.weights)
    }
    tensors = {key: tensor.cast(np.float32) for key, tensor in tensors.items()}
    filled.mkdir()
    tensor_bundles.write(filled / "variables", tensors | graph)
    shutil.rmtree(variables)
    filled.rename(variables)
    (folder / "fingerprint.pb").unlink(missing_ok=True)  # it was of the empty variables


# Raw text to ids


class TextToIds(tf.Module):
    """Converts sentences to the ids of `tokenization.load`, with [CLS] and [SEP].

    Args:
        vocab_file: The vocabulary.
        do_lower_case: Whether it is uncased.
        max_length: Maximum ids per sentence; longer ones are cut.

    Call arguments:
        sentences: Strings (B,), in which `[MASK]` marks a blank.

    Returns:
        Ragged ids (B, (S)), int32.
    """

    def __init__(self, vocab_file: str | os.PathLike, do_lower_case: Casing, max_length: int):
        super().__init__(name="text_to_ids")
        vocabulary = tokenization.read_vocabulary(str(vocab_file))
        characters, self._classes = _characters(tokenization.load(str(vocab_file), do_lower_case))
        self._normal = tf.RaggedTensor.from_row_lengths(
            np.concatenate(characters), [len(c) for c in characters]
        )
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tokens, tf.range(len(tokens))), default_value=-1
        )
        self._special = {t: vocabulary[t] for t in tokenization.SPECIAL_TOKENS}
        self._longest_piece = max(map(len, tokens))
        self._max_length = max_length

    def __call__(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        parts = tf.strings.split(sentences, tokenization.MASK)  # (B, (parts))
        pieces = self._pieces(parts.values)
        is_first = tf.scatter_nd(
            parts.row_starts()[:, None],
            tf.ones_like(parts.row_starts(), tf.int32),
            tf.shape(parts.values, tf.int64),
        )
        not_first = tf.cast(1 - is_first, tf.int64)
        blanks = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(not_first)], self._special[tokenization.MASK]), not_first
        )
        ids = parts.with_values(tf.concat([blanks, pieces], axis=1)).merge_dims(1, 2)
        ids = ids[:, : self._max_length - 2]
        ends = tf.ones_like(sentences, tf.int32)[:, None]
        first, last = (self._special[t] for t in (tokenization.CLS, tokenization.SEP))
        return tf.concat([first * ends, ids, last * ends], axis=1)

    def _pieces(self, texts):
        """Texts (N,) to ragged ids (N, (pieces))."""
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        normal = codes.with_values(tf.gather(self._normal, _index(codes.values)))
        # Characters outside the tables stand for themselves.
        alone = normal.values.with_values(
            tf.where(
                normal.values.values < 0,
                tf.gather(codes.values, normal.values.value_rowids()),
                normal.values.values,
            )
        )
        normal = codes.with_values(alone).merge_dims(1, 2)
        words = self._words(normal)  # (N, (words))
        unique, where = tf.unique(words.values)
        return words.with_values(tf.gather(self._word_pieces(unique), where)).merge_dims(1, 2)

    def _words(self, codes):
        """Ragged code points (N, (characters)) to ragged words (N, (words))."""
        classes = tf.gather(self._classes, _index(codes.values))
        rows = codes.value_rowids()
        before = tf.concat([[_SPACE], classes[:-1]], axis=0)
        in_one_row = tf.concat([[False], rows[1:] == rows[:-1]], axis=0)[: tf.size(rows)]
        goes_on = in_one_row & (classes == _LETTER) & (before[: tf.size(rows)] == _LETTER)
        starts = ~goes_on & (classes != _SPACE)
        index = tf.cumsum(tf.cast(starts, tf.int64)) - 1
        kept = classes != _SPACE
        characters = tf.RaggedTensor.from_value_rowids(
            codes.values[kept], index[kept], nrows=tf.reduce_sum(tf.cast(starts, tf.int64))
        )
        words = tf.strings.unicode_encode(characters, "UTF-8")
        return tf.RaggedTensor.from_value_rowids(words, rows[starts], nrows=codes.nrows())

    def _word_pieces(self, words):
        """Words (W,) to ragged ids (W, (pieces)), with the longest matching piece at each place."""
        lengths = tf.strings.length(words, "UTF8_CHAR")
        widths = tf.range(1, self._longest_piece + 1)
        left = tf.cast(tf.where(lengths <= _LONGEST_WORD)[:, 0], tf.int32)
        owners, found = tf.zeros([0], tf.int32), tf.zeros([0], tf.int32)

        def find(left, starts, owners, found):
            texts, ends = tf.gather(words, left), tf.gather(lengths, left)
            shape = tf.size(left), self._longest_piece  # every width at every place
            pieces = tf.strings.substr(
                texts[:, None],
                tf.broadcast_to(starts[:, None], shape),
                tf.broadcast_to(widths, shape),
                "UTF8_CHAR",
            )
            prefix = tf.where(starts[:, None] > 0, "##", "")
            ids = self._ids.lookup(prefix + pieces)
            ids = tf.where(starts[:, None] + widths <= ends[:, None], ids, -1)
            width = tf.reduce_max(tf.where(ids >= 0, widths, 0), axis=1)  # 0: none matches
            best = tf.gather(ids, tf.maximum(width - 1, 0), batch_dims=1)
            best = tf.where(width > 0, best, -1)
            goes_on = (width > 0) & (starts + width < ends)
            return (
                left[goes_on],
                (starts + width)[goes_on],
                tf.concat([owners, left], axis=0),
                tf.concat([found, best], axis=0),
            )

        _, _, owners, found = tf.while_loop(
            lambda left, *_: tf.size(left) > 0,
            find,
            (left, tf.zeros_like(left), owners, found),
            shape_invariants=(tf.TensorShape([None]),) * 4,
        )
        return self._with_unknown(owners, found, tf.size(words))

    def _with_unknown(self, owners, found, count):
        """Pieces in the order of their words; [UNK] for a word that pieces do not cover."""
        bad = tf.math.unsorted_segment_min(found, owners, count)
        bad = (bad < 0) | (bad == tf.int32.max)  # the second: too long to be looked up
        good = ~tf.gather(bad, owners)
        unknown = tf.cast(tf.where(bad)[:, 0], tf.int32)
        owners = tf.concat([owners[good], unknown], axis=0)
        unknown_ids = tf.fill(tf.shape(unknown), self._special[tokenization.UNK])
        found = tf.concat([found[good], unknown_ids], axis=0)
        order = tf.argsort(owners, stable=True)
        rows = tf.cast(tf.gather(owners, order), tf.int64)
        return tf.RaggedTensor.from_value_rowids(
            tf.gather(found, order), rows, nrows=tf.cast(count, tf.int64)
        )


def _index(codes):
    """The place of a code point in the tables."""
    tag = _TABLE_END + codes - _TAGS.start
    rest = tf.where(codes < _PRIVATE, _TABLE_END + len(_TAGS), _TABLE_END + len(_TAGS) + 1)
    index = tf.where((codes >= _TAGS.start) & (codes < _TAGS.stop), tag, rest)
    return tf.where(codes < _TABLE_END, codes, index)


def _characters(tokenizer):
    """For each place of the tables: the replacement of a character (−1: itself), and its class."""
    codes = [*range(_TABLE_END), *_TAGS, _TAGS.stop, _PRIVATE]
    surrogates = {place for place, code in enumerate(codes) if 0xD800 <= code < 0xE000}
    # In one text, because one call per character takes seconds; a line feed stays unchanged.
    characters = ["" if place in surrogates else chr(code) for place, code in enumerate(codes)]
    lines = ["" if character == "\n" else character for character in characters]
    normal = tokenizer.normalizer.normalize_str("\n".join(lines)).split("\n")
    normal[characters.index("\n")] = "\n"
    results = [
        np.array([-1] if line == character and line else [ord(c) for c in line], np.int32)
        for character, line in zip(characters, normal, strict=True)
    ]
    between_letters = "a" + "a".join(character or "a" for character in characters) + "a"
    classes = np.full(len(codes), _SPACE, np.int32)
    for word, (start, _) in tokenizer.pre_tokenizer.pre_tokenize_str(between_letters):
        if len(word) > 1:
            classes[start // 2 : (start + len(word)) // 2] = _LETTER
        elif start % 2:
            classes[start // 2] = _SIGN
    classes[list(surrogates)] = 0  # they are not characters
    return results, classes
