"""Raw text → ids inside a TensorFlow graph, for models that are served without this package.

Tables of code points have the results of the tokenizer for each character (cleaned, lower-cased,
without accents, separated). The longest-match search of WordPiece is a loop over lookups.
"""

import os
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official_bert.data import tokenization
from official_bert.data.tokenization import Casing

_TABLE_END = 0x32400  # from here on no character is changed or separated, except
_TAGS = range(0xE0000, 0xE1000)  # these, and
_PRIVATE = 0xF0000  # from here on all are treated alike
_LONGEST_WORD = 200  # characters, beyond which a word is unknown
_LETTER, _SPACE, _SIGN = range(3)


class Pieces(NamedTuple):
    """The word pieces of N texts, each ragged (N, (pieces)), int32.

    Attributes:
        ids: Their ids.
        starts, stops: The first character of each in its text, and one past the last: those of
            `tokenization.encode_with_spans`.
        begins_word: 1 where a word begins, else 0.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    stops: tf.RaggedTensor
    begins_word: tf.RaggedTensor

    def cut(self, lengths: tf.Tensor) -> "Pieces":
        """The first pieces of each text, `lengths` (N,) int64 at most."""
        places = tf.ragged.range(self.ids.row_lengths()).values
        kept = self.ids.with_values(places < tf.gather(lengths, self.ids.value_rowids()))
        return Pieces(*(tf.ragged.boolean_mask(values, kept) for values in self))


class TextToIds(tf.Module):
    """Converts sentences to the ids of `tokenization.load`, with [CLS] and [SEP].

    Args:
        do_lower_case: Whether it is uncased.
        max_length: Maximum ids per sentence; longer ones are cut.

    Call arguments:
        sentences: Strings (B,), in which `[MASK]` marks a blank.

    Returns:
        Ragged ids (B, (S)), int32.

    Attributes:
        pieces: Function of texts (N,) that returns their `Pieces`; `[MASK]` in them is text.
    """

    def __init__(self, vocab_file: str | os.PathLike, do_lower_case: Casing, max_length: int):
        super().__init__(name="text_to_ids")
        vocabulary = tokenization.read_vocabulary(str(vocab_file))
        characters, self._classes, self._are_accents = _characters(
            tokenization.load(str(vocab_file), do_lower_case)
        )
        self._normal = tf.RaggedTensor.from_row_lengths(
            np.concatenate(characters), [len(c) for c in characters]
        )
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tokens, tf.range(len(tokens))), default_value=-1
        )
        self._special = {t: vocabulary[t] for t in tokenization.SPECIAL_TOKENS}
        self._longest_piece = max(map(len, tokens))
        self.max_length = max_length
        texts = tf.TensorSpec((None,), tf.string)  # traced once for all its calls
        self.pieces = tf.function(self._pieces, input_signature=[texts], autograph=False)

    def __call__(self, sentences: tf.Tensor) -> tf.RaggedTensor:
        parts = tf.strings.split(sentences, tokenization.MASK)  # (B, (parts))
        pieces = self.pieces(parts.values).ids
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
        ids = ids[:, : self.max_length - 2]
        ends = tf.ones_like(sentences, tf.int32)[:, None]
        first, last = (self._special[t] for t in (tokenization.CLS, tokenization.SEP))
        return tf.concat([first * ends, ids, last * ends], axis=1)

    def rows(self, *texts: Pieces) -> dict[str, tf.Tensor]:
        """The arrays of [CLS] text [SEP], or [CLS] first [SEP] second [SEP], of N rows.

        Returns:
            `input_ids`, `input_mask` and `segment_ids`, and `starts`, `stops` and `begins_word` of
            `Pieces`, which are 0 at [CLS], [SEP] and padding: int32 (N, S), padded with 0.
        """
        cls, sep = (self._special[t] for t in (tokenization.CLS, tokenization.SEP))

        def joined(values, first=0, last=(0, 0)):
            column = tf.ones_like(values[0].row_lengths(), tf.int32)[:, None]
            columns = [first * column]
            for one, end in zip(values, last):
                columns += [one, end * column]
            return tf.concat(columns, axis=1)

        ids = joined([text.ids for text in texts], cls, (sep, sep))
        segments = [number * tf.ones_like(text.ids) for number, text in enumerate(texts)]
        named = {
            "input_ids": ids,
            "input_mask": tf.ones_like(ids),
            "segment_ids": joined(segments, last=(0, 1)),
        }
        for name in "starts", "stops", "begins_word":
            named[name] = joined([getattr(text, name) for text in texts])
        return {name: values.to_tensor() for name, values in named.items()}

    def _pieces(self, texts):
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        words, places = self._words(*self._normalized(codes))  # (N, (words)), (W, (characters))
        unique, where = tf.unique(words.values)
        found = tf.gather(self._word_pieces(unique), where)  # (W, (pieces), 3)
        ids, first, width = (found.values[:, column] for column in range(3))
        first_place = (
            tf.cast(tf.gather(places.row_starts(), found.value_rowids()), tf.int32) + first
        )
        starts = tf.gather(places.values, first_place)
        stops = tf.gather(places.values, first_place + width - 1) + 1

        def of_texts(values):
            return words.with_values(found.with_values(values)).merge_dims(1, 2)

        rows = of_texts(ids).value_rowids()
        return Pieces(
            of_texts(ids),
            of_texts(starts),
            of_texts(self._past_accents(codes, rows, starts, stops)),
            of_texts(tf.cast(first == 0, tf.int32)),
        )

    def _normalized(self, codes):
        """Ragged code points as the tokenizer changes them; each one's place in its text."""
        normal = codes.with_values(tf.gather(self._normal, _index(codes.values)))
        source = normal.values.value_rowids()
        # Characters outside the tables are unchanged.
        alone = normal.values.with_values(
            tf.where(
                normal.values.values < 0, tf.gather(codes.values, source), normal.values.values
            )
        )
        places = tf.cast(tf.ragged.range(codes.row_lengths()).values, tf.int32)
        return codes.with_values(alone).merge_dims(1, 2), tf.gather(places, source)

    def _past_accents(self, codes, rows, starts, stops):
        """The ends of pieces, moved past the accents that follow them in the text."""
        lengths = tf.cast(codes.row_lengths(), tf.int32)
        is_last = tf.concat([rows[1:] != rows[:-1], [True]], axis=0)[: tf.size(rows)]
        following = tf.concat([starts[1:], [0]], axis=0)[: tf.size(rows)]
        following = tf.where(is_last, tf.gather(lengths, rows), following)
        ends = tf.zeros_like(lengths)[:, None]  # a character that ends each text, no accent
        ended = tf.concat([codes, ends], axis=1)
        others = tf.where(~tf.gather(self._are_accents, _index(ended.values)))[:, 0]
        first = tf.gather(ended.row_starts(), rows)  # of the text, in all of them
        behind = tf.searchsorted(others, first + tf.cast(stops, tf.int64))
        behind = tf.cast(tf.gather(others, behind) - first, tf.int32)
        return tf.maximum(stops, tf.minimum(behind, following))

    def _words(self, codes, places):
        """Ragged code points (N, (characters)) to ragged words (N, (words)), and their places."""
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
        words = tf.RaggedTensor.from_value_rowids(words, rows[starts], nrows=codes.nrows())
        return words, characters.with_values(places[kept])

    def _word_pieces(self, words):
        """Words (W,) to ragged pieces (W, (pieces), 3), the longest that matches at each place.

        Of each its id, its first character in the word, and its number of characters.
        """
        lengths = tf.strings.length(words, "UTF8_CHAR")
        widths = tf.range(1, self._longest_piece + 1)
        left = tf.cast(tf.where(lengths <= _LONGEST_WORD)[:, 0], tf.int32)

        def find(left, starts, found):
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
            added = tf.stack([left, best, starts, width], axis=1)
            return left[goes_on], (starts + width)[goes_on], tf.concat([found, added], axis=0)

        _, _, found = tf.while_loop(
            lambda left, *_: tf.size(left) > 0,
            find,
            (left, tf.zeros_like(left), tf.zeros([0, 4], tf.int32)),
            shape_invariants=(*(tf.TensorShape([None]),) * 2, tf.TensorShape([None, 4])),
        )
        return self._with_unknown(found, lengths)

    def _with_unknown(self, found, lengths):
        """Pieces in the order of their words; [UNK] for a word that pieces do not cover."""
        owners, ids, *_ = tf.unstack(found, axis=1)
        count = tf.size(lengths)
        bad = tf.math.unsorted_segment_min(ids, owners, count)
        bad = (bad < 0) | (bad == tf.int32.max)  # the second: too long to be looked up
        unknown = tf.cast(tf.where(bad)[:, 0], tf.int32)
        unknown_ids = tf.fill(tf.shape(unknown), self._special[tokenization.UNK])
        added = [unknown, unknown_ids, tf.zeros_like(unknown), tf.gather(lengths, unknown)]
        found = tf.concat([found[~tf.gather(bad, owners)], tf.stack(added, axis=1)], axis=0)
        found = tf.gather(found, tf.argsort(found[:, 0], stable=True))
        return tf.RaggedTensor.from_value_rowids(
            found[:, 1:], tf.cast(found[:, 0], tf.int64), nrows=tf.cast(count, tf.int64)
        )


def _index(codes):
    """The place of a code point in the tables."""
    tag = _TABLE_END + codes - _TAGS.start
    rest = tf.where(codes < _PRIVATE, _TABLE_END + len(_TAGS), _TABLE_END + len(_TAGS) + 1)
    index = tf.where((codes >= _TAGS.start) & (codes < _TAGS.stop), tag, rest)
    return tf.where(codes < _TABLE_END, codes, index)


def _characters(tokenizer):
    """For each place of the tables: what replaces a character (−1: itself), its class, is it Mn."""
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
    accents = [unicodedata.category(chr(code)) == "Mn" for code in codes]
    return results, classes, np.array(accents)
