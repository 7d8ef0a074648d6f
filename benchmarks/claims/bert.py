"""A small BERT on the documentation that comes with Python, trained by any Keras optimizer.

Documents, model and vocabulary are those of `make demo`, with two held-out sets: one to choose by,
one to report on. The next sentence is not trained. The loop is short, so that an optimizer that
`run_pretraining` does not offer can be compared in it; what it trains is the same.
"""

import itertools
import math
import pathlib
from typing import Any

import numpy as np

from official_bert.system import quiet_tensorflow

quiet_tensorflow.import_tensorflow()

import keras  # noqa: E402  # after the quiet import
import tensorflow as tf  # noqa: E402
import trials  # noqa: E402
from model_settings import DIVERGED, EVAL_BATCH, EVAL_BATCHES  # noqa: E402

from lamb_tf import schedules  # noqa: E402
from official_bert.stages import Stage  # noqa: E402
from official_bert.tasks.pretraining import Pretraining  # noqa: E402

EXCLUDED = ["LayerNorm", "bias"]  # from weight decay and, in LAMB and LARS, from adaptation
PARTS = {1: "select", 3: "report"}  # of every 12 documents, the ones that are held out
CHUNK = 50  # updates per call at most
MICRO_TOKENS = 1024  # of a part of a batch that is computed at once: what fits into a cache


# Data


def make_data(folder: pathlib.Path, settings: dict, lengths: dict[int, int]) -> None:
    """Vocabulary, and records of three sets for each length; see `trials.make_data`."""
    trials.make_data(folder, settings, lengths, PARTS)


def rates_of(stage: Stage) -> np.ndarray:
    """The learning rate of each update of a stage; float32."""
    return np.asarray(stage.schedule()(np.arange(stage.steps)), "float32")


def joined_rates(peak: float, warmup: int, steps: int) -> np.ndarray:
    """Linear warm-up, then linear decay to 0 over so many updates; float32."""
    schedule = schedules.WarmupPolynomialDecay(peak, steps, warmup_steps=warmup)
    return np.asarray(schedule(np.arange(steps)), "float32")


# Training


class Training:
    """One model and its optimizer.

    Args:
        folder: With the data.
        settings: Those of `MODEL`.
        positions: The longest sequence.
        optimizer: Any Keras optimizer; its rate is set at each update.
        seed: Of initial values, order and masks, those of the held-out sets too.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        settings: dict,
        positions: int,
        optimizer: keras.optimizers.Optimizer,
        seed: int,
    ):
        self._folder = folder
        initializer_range = settings["initializer_range"]
        self._config = trials.config_of(folder, settings, positions, initializer_range)
        masked = settings["masked_lm_prob"]
        self._task = Pretraining(use_next_sentence_label=False, masked_lm_prob=masked)
        self.model = self._task.make_model(self._config, seed, "float32")
        for variable in self.model.weights:
            variable.trainable = self._task.is_trainable(variable.path)
        self.optimizer = optimizer
        optimizer.build(self.model.trainable_variables)
        self._fresh = [np.asarray(v.value) for v in optimizer.variables]
        self._held_out, self._chunks = {}, {}
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Back to the beginning, with the initial values and batches of a seed.

        What is compiled stays, so that many short runs take little more than their updates.
        """
        self._seed, self.diverged = seed, False
        first = self._task.make_model(self._config, seed, "float32")
        self.restore([np.asarray(v.value) for v in first.variables] + self._fresh, True)

    def run(
        self, stage: Stage, rates: np.ndarray, evaluations: int, first_batch: int = 0
    ) -> list[dict[str, Any]]:
        """The updates of a stage.

        Args:
            stage: Its `steps`, `batch_size` and lengths count; its rates do not.
            rates: Learning rate of each update.
            evaluations: Number of them, evenly spread, the last at the end.
            first_batch: Number of the first batch of the stream.

        Returns:
            Lines with `step`, `train` (mean loss of at most `CHUNK` training batches before it),
            `select` and `report` (held-out losses in nats), `report_accuracy`, in per cent. It ends
            early where the loss is not finite.
        """
        batches, curve = self._batches(stage, "train"), []
        shape = stage.batch_size, stage.max_seq_length
        chunk = self._chunks.setdefault(shape, self._chunk_of(stage))
        ends = np.linspace(0, stage.steps, min(evaluations, stage.steps) + 1).round().astype(int)
        for start, end in itertools.pairwise(ends):
            losses = []
            for low in range(start, end, CHUNK):
                steps = range(low, min(low + CHUNK, end))
                some = [batches[first_batch + step] for step in steps]
                stacked = {key: np.stack([batch[key] for batch in some]) for key in some[0]}
                losses.append(float(chunk(stacked, rates[low : steps.stop])))
                if not losses[-1] < DIVERGED:
                    self.diverged = True
                    return curve
            curve.append({"step": int(end), "train": losses[-1]} | self.evaluate(stage))
        return curve

    def evaluate(self, stage: Stage) -> dict[str, float]:
        """Held-out losses and accuracy at the length of a stage."""
        found = {}
        for split in ("select", "report"):
            sums = sum(self._sums(batch) for batch in self._held_out_batches(stage, split))
            loss, correct, weight = np.asarray(sums, float)
            found[split] = float(loss / weight)
            if split == "report":
                found["report_accuracy"] = 100 * float(correct / weight)
        return found

    def state(self) -> list[np.ndarray]:
        """Weights, then the optimizer's variables."""
        return [np.asarray(v.value) for v in (*self.model.variables, *self.optimizer.variables)]

    def restore(self, state: list[np.ndarray], with_moments: bool) -> None:
        """Takes over weights and, if wanted, all that the optimizer keeps."""
        variables = [*self.model.variables, *self.optimizer.variables]
        some = len(variables) if with_moments else len(self.model.variables)
        for variable, value in list(zip(variables, state, strict=True))[:some]:
            variable.assign(value)

    def _batches(self, stage, split):
        return self._task.batches(
            (str(self._folder / f"{split}_{stage.max_seq_length}.tfrecord"),),
            stage.lengths,
            stage.batch_size if split == "train" else EVAL_BATCH,
            self._config,
            seed=self._seed,
            shard=(0, 1),
            held_out=split != "train",
        )

    def _held_out_batches(self, stage, split):
        key = stage.max_seq_length, split, self._seed  # whose masks they have
        if key not in self._held_out:
            batches = self._batches(stage, split)
            self._held_out[key] = [
                batches[step] for step in range(min(EVAL_BATCHES, batches.num_batches))
            ]
        return self._held_out[key]

    def _chunk_of(self, stage):
        variables = self.model.trainable_variables
        rows = math.gcd(stage.batch_size, max(1, MICRO_TOKENS // stage.max_seq_length))

        def gradients_of(part, weight):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([variable.value for variable in variables])
                outputs = self.model(part, training=True, dropout_seed=tf.constant([0, 0]))
                loss = self._task.batch_sums(outputs, part)["masked_lm_loss"] / weight
            found = tape.gradient(loss, variables)
            return loss, [
                tf.ensure_shape(tf.convert_to_tensor(g), v.shape)
                for g, v in zip(found, variables, strict=True)
            ]

        def summed_gradients_of(batch):
            weight = tf.reduce_sum(batch["masked_lm_weights"])
            loss, sums = tf.constant(0.0), [tf.zeros(v.shape) for v in variables]
            for low in tf.range(0, stage.batch_size, rows):
                part = {
                    key: tf.ensure_shape(values[low : low + rows], (rows, *values.shape[1:]))
                    for key, values in batch.items()
                }
                more, gradients = gradients_of(part, weight)
                loss, sums = loss + more, [total + g for total, g in zip(sums, gradients)]
            return loss, sums

        @tf.function(reduce_retracing=True)
        def chunk(batches, rates):
            """Trains on the batches, one after another; returns the mean of their losses."""
            total, steps = 0.0, tf.shape(rates)[0]
            for i in tf.range(steps):
                self.optimizer.learning_rate.assign(rates[i])
                loss, gradients = summed_gradients_of({k: v[i] for k, v in batches.items()})
                self.optimizer.apply(gradients, variables)
                total += loss
            return total / tf.cast(steps, "float32")

        return chunk

    @tf.function(reduce_retracing=True)
    def _sums(self, batch):
        sums = self._task.batch_sums(self.model(batch, training=False), batch)
        names = ("loss", "correct", "weight")
        return tf.stack([sums[f"masked_lm_{name}"] for name in names])


def result(training: Training, curve: list[dict]) -> dict[str, Any]:
    """What a record holds of a training: the curve, its end, whether it diverged."""
    end = curve[-1] if curve and not training.diverged else {}
    names = ("select", "report", "report_accuracy")
    known = all(math.isfinite(end.get(name, math.nan)) for name in names)
    values = {name: end[name] if known else None for name in names}
    said = f"held-out loss {values['report']:.3f}" if known else "no held-out loss"
    return values | {"curve": curve, "diverged": not known, "said": said}
