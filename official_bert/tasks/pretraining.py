"""Pre-training as a task: masked words and, where it is trained, the next sentence."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from official_bert.model import Tensor, Tensors
from official_bert.model.config import BertConfig
from official_bert.protocols import Lengths, Task
from official_bert.system import settings
from official_bert.system.settings import setting

if TYPE_CHECKING:
    from official_bert.data.input_pipeline import Batches
    from official_bert.model.pretrainer import BertPretrainer

_OF_NEXT_SENTENCE = ("bert/pooler/", "cls/seq_relationship/")


@settings.documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(Task):
    """The pre-training task (arXiv 1810.04805): model, batches, losses, metrics.

    Keras is imported when it is used: the flags of `run_pretraining` are made of the fields.
    """

    use_next_sentence_label: bool = setting("Train the next-sentence task.", True)
    masked_lm_prob: float | None = setting(
        "Fraction of the tokens to mask, for records made with --dynamic_masking. Default: as when "
        "the records were made.",
        None,
        minimum=0,
        below=1,
        hint="15 % is 0.15.",
    )
    do_whole_word_mask: bool | None = setting(
        "Mask all word pieces of a word together, for records made with --dynamic_masking. "
        "Default: as when the records were made.",
        None,
    )
    max_ngram_size: int | None = setting(
        "Maximum length of a masked run in words, for records made with --dynamic_masking. "
        "Default: as when the records were made.",
        None,
        minimum=1,
    )

    sums: ClassVar[tuple[str, ...]] = (
        "masked_lm_loss",
        "masked_lm_correct",
        "masked_lm_weight",
        "next_sentence_loss",
        "next_sentence_correct",
        "next_sentence_weight",
        "tokens",
    )
    weights: ClassVar[tuple[str, ...]] = ("masked_lm_weights", "example_weights")
    loss_in_nats: ClassVar[bool] = True
    progress: ClassVar[dict[str, str]] = {
        "masked_lm_accuracy": "masked LM {:.1%}",
        "next_sentence_accuracy": "next sentence {:.1%}",
    }

    def __post_init__(self):
        settings.check(self)

    def describe(self) -> dict:
        """The entries of `run.json`, next to the run's own."""
        return dataclasses.asdict(self)

    def check(self, lengths: Lengths) -> None:
        """Refuses a stage without predictions."""
        if lengths.max_predictions_per_seq < 1:
            raise ValueError(
                "max_predictions_per_seq must be at least 1; got "
                f"{lengths.max_predictions_per_seq}."
            )

    # Model and batches

    def make_model(self, config: BertConfig, seed: int | None, dtype: str) -> "BertPretrainer":
        from official_bert.model.pretrainer import BertPretrainer

        return BertPretrainer(config, seed=seed, dtype=dtype)

    def is_trainable(self, path: str) -> bool:
        """Whether a variable is used: the pooler only for the next sentence."""
        return self.use_next_sentence_label or not path.startswith(_OF_NEXT_SENTENCE)

    def batches(
        self,
        files: Sequence[str],
        lengths: Lengths,
        batch_size: int,
        config: BertConfig,
        *,
        seed: int,
        shard: tuple[int, int],
        held_out: bool = False,
    ) -> "Batches":
        """An `input_pipeline.Batches` of a stage's shapes: for training, or held out in order.

        The settings of masking hold for training; held-out records are masked as when made.
        """
        from official_bert.data.input_pipeline import Batches

        masking: dict[str, Any] = {
            "masked_lm_prob": self.masked_lm_prob,
            "do_whole_word_mask": self.do_whole_word_mask,
            "max_ngram_size": self.max_ngram_size,
        }
        return Batches(
            files,
            batch_size,
            *lengths,
            seed=seed,
            vocab_size=config.vocab_size,
            shard_index=shard[0],
            num_shards=shard[1],
            use_next_sentence=self.use_next_sentence_label,
            shuffle=not held_out,
            **({} if held_out else masking),
        )

    # Losses and metrics

    def batch_sums(self, outputs: Tensors, batch: Tensors) -> dict[str, Tensor]:
        from keras import ops

        from official_bert.model.pretrainer import pretraining_sums

        tokens = ops.cast(ops.sum(batch["input_mask"]), "float32")
        return {**pretraining_sums(outputs, batch), "tokens": tokens}

    def loss(self, sums: Tensors, weights: Tensor) -> Tensor:
        """The rows' share of the global batch's loss, in nats."""
        from keras import ops

        loss = ops.divide_no_nan(sums["masked_lm_loss"], weights[0])
        if self.use_next_sentence_label:
            loss = loss + ops.divide_no_nan(sums["next_sentence_loss"], weights[1])
        return loss

    def metrics(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """Means from a vector of `sums`: losses in nats, accuracies in [0, 1], and `loss`.

        NaN of zeros, as in a window in which every update was skipped.
        """
        values = dict(zip(self.sums, np.asarray(sums, np.float64).tolist(), strict=True))
        parts = ("masked_lm", "next_sentence") if self.use_next_sentence_label else ("masked_lm",)
        metrics = {}
        for part in parts:
            weight = values[f"{part}_weight"] or np.nan
            metrics[f"{part}_loss"] = values[f"{part}_loss"] / weight
            metrics[f"{part}_accuracy"] = values[f"{part}_correct"] / weight
        metrics["loss"] = sum(metrics[f"{part}_loss"] for part in parts)
        return metrics

    def baseline_counts(self, batch: Mapping[str, np.ndarray], config: BertConfig) -> np.ndarray:
        """Counts of each word piece as a label of a batch: a vector."""
        ids, weights = batch["masked_lm_ids"].ravel(), batch["masked_lm_weights"].ravel()
        return np.bincount(ids, weights, minlength=config.vocab_size)

    def held_out_metrics(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        """`metrics`, the number of `examples`, and a baseline's accuracy.

        The baseline always predicts the commonest of the held-out labels.
        """
        return {
            **self.metrics(sums),
            "most_frequent_token_accuracy": float(counts.max() / max(counts.sum(), 1.0)),
            "examples": int(sums[self.sums.index("next_sentence_weight")]),
        }

    def baseline_loss(self, config: BertConfig) -> float:
        """The loss, in nats, of guessing every word and label with equal probability."""
        return math.log(config.vocab_size * (2 if self.use_next_sentence_label else 1))

    def format_metrics(self, metrics: Mapping[str, float]) -> str:
        text = (
            f"masked LM loss {metrics['masked_lm_loss']:.3f}, accuracy "
            f"{metrics['masked_lm_accuracy']:.1%} (most frequent token: "
            f"{metrics['most_frequent_token_accuracy']:.1%})"
        )
        if "next_sentence_accuracy" in metrics:
            text += f"; next sentence {metrics['next_sentence_accuracy']:.1%}"
        return text
