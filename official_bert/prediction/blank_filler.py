"""Masked-token prediction with a pre-trained model."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import keras
import numpy as np
from tokenizers import Tokenizer

from official_bert.data import tokenization
from official_bert.model.pretrainer import BertPretrainer
from official_bert.prediction import forward, inputs

_BLANKS_AT_ONCE = 512  # of 30,522 word pieces: 62 MB of logits


class Guess(NamedTuple):
    """A word piece and the probability that the model gives it."""

    token: str
    probability: float


class BlankFiller:
    """A pre-trained model together with its vocabulary; made by `official_bert.load`.

    Args:
        model: The `BertPretrainer`.
        tokenizer: The tokenizer of its vocabulary, of `tokenization.load`.
        origin: What it was loaded from, for `repr`.

    Attributes:
        model, tokenizer: As given.

    Example:

    >>> filler = official_bert.load("demo_output/model")             # doctest: +SKIP
    >>> filler.predict(["Return the [MASK] of the list."], top=2)    # doctest: +SKIP
    [[[Guess(token='length', probability=0.21), Guess(token='value', probability=0.09)]]]
    """

    def __init__(self, model: BertPretrainer, tokenizer: Tokenizer, origin: str):
        self.model, self.tokenizer, self._origin = model, tokenizer, origin
        self._graph = forward.as_graph(model)
        self._longest = model.config.max_position_embeddings
        tokens = map(tokenizer.id_to_token, range(tokenizer.get_vocab_size()))
        self._are_words = np.array([token is not None and token.isalpha() for token in tokens])

    def __repr__(self):
        config = self.model.config
        return (
            f"<BlankFiller: {config.num_hidden_layers} × {config.hidden_size} units, "
            f"{config.vocab_size:,} word pieces, from {self._origin}>"
        )

    def predict(
        self,
        texts: Iterable[str],
        top: int = 3,
        *,
        words_only: bool = False,
        batch_size: int = 32,
    ) -> list[list[list[Guess]]]:
        """The likeliest word pieces for each `[MASK]` of each text.

        A text with more word pieces than the model has positions is cut at its end.

        Args:
            texts: Texts with at least one `[MASK]` each.
            top: How many guesses for each blank.
            words_only: Leaves out what is no whole word: punctuation, numbers, `##` pieces. The
                probabilities stay those among all word pieces.
            batch_size: Texts computed at once.

        Returns:
            For each text, for each of its blanks, the guesses, likeliest first.

        Raises:
            ValueError: if a text has no `[MASK]`, or one beyond the place where it is cut.
        """
        if top < 1:
            raise ValueError(f"top must be at least 1; got {top}.")
        rows = [self._ids(number, text) for number, text in enumerate(inputs.texts(texts))]
        count = len(self._are_words)
        asked = np.flatnonzero(self._are_words) if words_only else np.arange(count)
        found: list[list[list[Guess]]] = [[]] * len(rows)
        for numbers, logits in self._logits(rows, batch_size):
            for number, of_text in zip(numbers, logits):
                found[number] = self._guesses(forward.softmax(of_text), asked, top)
        return found

    def _guesses(self, probabilities, asked, top):
        best = asked[np.argsort(-probabilities[:, asked], kind="stable")[:, :top]]
        return [
            [Guess(self.tokenizer.id_to_token(int(i)), float(row[i])) for i in numbers]
            for row, numbers in zip(probabilities, best)
        ]

    def _logits(self, rows: list[list[int]], batch_size: int) -> Iterator:
        """Numbers of texts, and for each of them the logits of its blanks, (blanks, V)."""
        mask_id = self.tokenizer.token_to_id(tokenization.MASK)
        blanks = [[place for place, id in enumerate(ids) if id == mask_id] for ids in rows]
        for numbers in forward.by_length(np.array([len(ids) for ids in rows]), batch_size):
            most = max(len(blanks[number]) for number in numbers)
            for part in forward.by_length(
                np.array([len(rows[number]) for number in numbers]), max(1, _BLANKS_AT_ONCE // most)
            ):
                part = numbers[part]
                batch = _batch([rows[n] for n in part], [blanks[n] for n in part])
                logits = keras.ops.convert_to_numpy(self._graph(batch)["masked_lm_logits"])
                forward.require_finite(logits)
                yield part, [row[: len(blanks[n])] for n, row in zip(part, logits)]

    def _ids(self, number, text):
        """[CLS] text [SEP] as ids; the parts between the blanks are tokenised by themselves."""
        special = self.tokenizer.token_to_id
        parts = text.split(tokenization.MASK)
        if len(parts) == 1:
            raise ValueError(
                f"text {number} must have a [MASK]; got {inputs.shown(text)}. Put one where the "
                "model should guess."
            )
        ids = []
        for index, part in enumerate(parts):
            ids += [special(tokenization.MASK)] if index else []
            ids += self.tokenizer.encode(part, add_special_tokens=False).ids
        room = self._longest - 2
        if special(tokenization.MASK) in ids[room:]:
            raise ValueError(
                f"text {number} must have each [MASK] within its first {room} word pieces, which "
                f"the model reads; got {inputs.shown(text)}, with {len(ids)}. Give a shorter part "
                "around it."
            )
        return [special(tokenization.CLS), *ids[:room], special(tokenization.SEP)]


def _batch(rows, blanks):
    """Padded arrays of some texts, given their ids and the places of their blanks."""
    batch = {name: np.zeros((len(rows), max(map(len, rows))), np.int32) for name in forward.INPUTS}
    positions = np.zeros((len(rows), max(map(len, blanks))), np.int32)
    for index, (ids, places) in enumerate(zip(rows, blanks)):
        batch["input_ids"][index, : len(ids)] = ids
        batch["input_mask"][index, : len(ids)] = 1
        positions[index, : len(places)] = places
    return batch | {"masked_lm_positions": positions}
