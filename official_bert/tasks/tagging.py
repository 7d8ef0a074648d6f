"""The tagging task: predicts a class for each word of a sentence, at its first word piece."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import ClassVar

import numpy as np
from keras import ops

from official_bert.data import text_files, tokenization
from official_bert.model import Tensor, Tensors
from official_bert.model.config import BertConfig
from official_bert.model.fine_tuning import BertTagger
from official_bert.protocols import Lengths
from official_bert.tasks import tag_files, tag_schemes, tagging_features
from official_bert.tasks.labels import Classes
from official_bert.tasks.tag_files import Sentences
from official_bert.tasks.tagging_features import UNKNOWN, Features
from official_bert.tasks.windows import RowTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagging(RowTask):
    """The tagging task (arXiv 1810.04805, section 5.3): model, batches, losses, metrics.

    An example is a sentence, or a window of a long one. The loss is the mean cross-entropy over the
    words of a batch, in nats.

    Args:
        classes: The tags in the order of the model's outputs.
        vocab_file, do_lower_case: As of `RowTask`.
    """

    classes: Classes

    sums: ClassVar[tuple[str, ...]] = ("loss", "correct", "words", "tokens")
    weights: ClassVar[tuple[str, ...]] = ("tag_weights",)
    loss_in_nats: ClassVar[bool] = True
    progress: ClassVar[dict[str, str]] = {"accuracy": "tags {:.1%}"}

    @property
    def scheme(self) -> str:
        """The scheme of the tags: `"IOB2"`, `"BIOES"` or `"plain"`."""
        return tag_schemes.scheme_of_classes(self.classes.names)

    def describe(self) -> dict:
        """The entries of `run.json`, which has a fingerprint of the windows, too."""
        return {
            "task": "tagging",
            "labels": [*self.classes.names],
            "vocabulary": tokenization.digest(tokenization.read_vocabulary(self.vocab_file)),
            "do_lower_case": self.do_lower_case,
        }

    # Model and batches

    def make_model(self, config: BertConfig, seed: int | None, dtype: str) -> BertTagger:
        return BertTagger(config, len(self.classes.names), seed=seed, dtype=dtype)

    def rows(
        self, files: Sequence[str], lengths: Lengths, config: BertConfig, held_out: bool
    ) -> Features:
        stamps = (*map(text_files.stamp, files),)
        return _labelled_features(self, (*files,), stamps, lengths.max_seq_length, config)

    def features(
        self, sentences: Sentences, max_seq_length: int, config: BertConfig
    ) -> tuple[Features, int]:
        """The windows of sentences, and the number of words that give no word piece.

        Tags that are no class of the model are `UNKNOWN`.

        Raises:
            ValueError: as `tokenizer` and `make_features`.
        """
        tokenizer = self.tokenizer(config)
        words = tagging_features.from_words(tokenizer, sentences.words)
        tags = None
        if sentences.tags is not None:
            numbers = {name: number for number, name in enumerate(self.classes.names)}
            found = (numbers.get(tag, UNKNOWN) for tag in chain.from_iterable(sentences.tags))
            tags = np.fromiter(found, np.int64)
        made = tagging_features.make_features(words, tokenizer, max_seq_length, tags)
        return made, words.without_piece

    # Losses and metrics

    def batch_sums(self, outputs: Tensor, batch: Tensors) -> dict[str, Tensor]:
        tags = batch["tag_ids"]  # (B, S)
        weights = batch["tag_weights"] * batch["example_weights"][:, None]
        losses = ops.sparse_categorical_crossentropy(tags, outputs, from_logits=True)
        hits = ops.equal(ops.cast(ops.argmax(outputs, -1), "int32"), tags)
        return {
            "loss": ops.sum(weights * losses),
            "correct": ops.sum(weights * ops.cast(hits, "float32")),
            "words": ops.sum(weights),
            "tokens": ops.cast(ops.sum(batch["input_mask"]), "float32"),
        }

    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """`loss` and `accuracy` of words, from a vector of `sums`; NaN of zeros."""
        values = dict(zip(self.sums, np.asarray(sums, np.float64).tolist(), strict=True))
        words = values["words"] or np.nan
        return {"loss": values["loss"] / words, "accuracy": values["correct"] / words}

    def baseline_counts(self, batch: Mapping[str, np.ndarray], config: BertConfig) -> np.ndarray:
        """How often each class is a word's tag."""
        weights = batch["tag_weights"] * batch["example_weights"][:, None]
        return np.bincount(batch["tag_ids"].ravel(), weights.ravel(), len(self.classes.names))

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, the accuracy of always predicting the most frequent tag, and `words`."""
        return {
            **self.metrics(sums),
            "most_frequent_tag_accuracy": float(counts.max() / max(counts.sum(), 1.0)),
            "words": int(sums[self.sums.index("words")]),
        }

    def baseline_loss(self, config: BertConfig) -> float:
        return math.log(len(self.classes.names))

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        return (
            f"loss {metrics['loss']:.3f}, tags {metrics['accuracy']:.1%} (most frequent tag: "
            f"{metrics['most_frequent_tag_accuracy']:.1%})"
        )

    # Predictions

    def decode(self, numbers: np.ndarray, sentences: Sentences) -> list[list[str]]:
        """The tags of each sentence from the class numbers of all words."""
        names = [self.classes.names[number] for number in numbers.tolist()]
        bounds = np.cumsum([0, *map(len, sentences.words)]).tolist()
        return [names[start:stop] for start, stop in pairwise(bounds)]

    def scores(self, sentences: Sentences, predicted: Sequence[Sequence[str]]) -> dict[str, float]:
        """The scores of predictions, `tag_schemes.scores`, by type only for those of the truth."""
        assert sentences.tags is not None
        found = tag_schemes.scores(sentences.tags, predicted, self.scheme)
        prefixed = self.scheme != "plain"
        types = {e.type for t in sentences.tags for e in tag_schemes.entities(t, prefixed)}
        return {n: s for n, s in found.items() if "/" not in n or n.partition("/")[2] in types}


def find_classes(sentences: Sentences) -> Classes:
    """The classes of a training set: O, then the tags by type.

    Raises:
        ValueError: there are fewer than two different tags.
    """
    assert sentences.tags is not None
    found = {*chain.from_iterable(sentences.tags)}
    if len(found) < 2:
        raise ValueError(
            f"{sentences.path} must have at least two different tags; got "
            f"{', '.join(map(repr, found)) or 'none'}. Is the last column the tag?"
        )
    outside = tag_schemes.OUTSIDE
    inner = sorted(found - {outside}, key=lambda tag: (*tag.partition("-")[::-2], tag))
    if not tag_schemes.is_prefixed(found):
        inner.sort()
    return Classes((*([outside] if outside in found else []), *inner))


def word_logits(
    parts: Iterator[tuple[np.ndarray, np.ndarray]], features: Features
) -> Iterator[np.ndarray]:
    """The logits of all words in their order, (…, K), some windows at a time.

    Args:
        parts: Numbers of windows and their outputs, in order, from `Forward.parts`.
        features: The windows.
    """
    for rows, outputs in parts:
        words = features.words(rows[0], rows[-1] + 1)
        yield outputs[features.rows[words] - rows[0], features.positions[words]]


def predictions(
    parts: Iterator[tuple[np.ndarray, np.ndarray]], features: Features, file: str
) -> np.ndarray:
    """The class numbers of all words, from the outputs of `word_logits`' `parts`.

    Raises:
        ValueError: outputs are NaN or infinity; the message names the `file` of the sentences.
    """
    found = [np.zeros(0, np.int64)]
    for logits in word_logits(parts, features):
        if not np.isfinite(logits).all():
            raise ValueError(
                f"{file}: the model's outputs must be finite; got others. Its training diverged: "
                "try a lower learning rate."
            )
        found.append(logits.argmax(axis=-1))
    return np.concatenate(found)


@functools.lru_cache(maxsize=2)  # training and held-out windows; the loop opens each often
def _labelled_features(task, files, stamps, max_seq_length, config):
    read = [tag_files.read_tagged(file, task.scheme)[0] for file in files]
    together = Sentences(
        path=", ".join(files),
        words=[words for one in read for words in one.words],
        tags=[tags for one in read for tags in one.tags or ()],
        lines=[line for one in read for line in one.lines],
    )
    return task.features(together, max_seq_length, config)[0]
