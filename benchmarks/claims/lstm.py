"""An LSTM that reads an image row by row, trained on JAX at any batch size.

A batch is cut into micro-batches of `micro_batch` images whose gradients are averaged: the update
equals the whole batch's, and its data stay in the processor's cache.
"""

import functools
import math
import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # after the choice of the backend
import keras
import numpy as np
from jax import numpy as jnp

import lamb_tf

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.0, momentum=0.9),
    "lamb": lambda: lamb_tf.LAMB(
        0.0, weight_decay=0.0, exclude_from_layer_adaptation=["bias"], epsilon=1e-6
    ),
    "adam": lambda: keras.optimizers.Adam(0.0),
}
EVALUATIONS = 5  # of a run, the last at its end


@functools.cache  # compiles once
class Trainer:
    """Trains models of one shape with one optimizer at one batch.

    Args:
        size: Rows, and values in each.
        hidden: Units.
        bidirectional: Whether a second LSTM reads the rows backwards.
        method: Of `OPTIMIZERS`.
        batch: Images per update.
        micro_batch: Images at a time; divides `batch`, or is not less.
    """

    def __init__(self, size, hidden, bidirectional, method, batch, micro_batch):
        self._shape, self._method = (size, hidden, bidirectional), method
        self.batch, self._micro = batch, min(batch, micro_batch)
        self.model, self.optimizer = self._make(0)
        self._chunk = jax.jit(self._updates)
        self._scores = jax.jit(lambda v, x: self.model.stateless_call(v, self._fixed(), x)[0])

    def _make(self, seed):
        """28 or fewer rows → LSTM → 10 scores; the paper's has 128 units and 28 rows."""
        keras.utils.set_random_seed(seed)
        size, hidden, bidirectional = self._shape
        layer = keras.layers.LSTM(hidden)
        layer = keras.layers.Bidirectional(layer) if bidirectional else layer
        model = keras.Sequential([keras.Input((size, size)), layer, keras.layers.Dense(10)])
        optimizer = OPTIMIZERS[self._method]()
        optimizer.build(model.trainable_variables)
        return model, optimizer

    def _fixed(self):
        return [variable.value for variable in self.model.non_trainable_variables]

    def train(self, data, rates, seed):
        """Trains once.

        Args:
            data: The result of `legw.splits`.
            rates: Learning rate of each update; a float32 array.
            seed: Of initial values and order.

        Returns:
            {"curve": [{"step", "loss" (of the training batches since the line before), "select",
            "report" (accuracies, in %)}], "diverged": bool}
        """
        model, optimizer = self._make(seed)
        weights = [v.value for v in model.trainable_variables]
        state = [v.value for v in optimizer.variables]
        x, y = (jnp.asarray(part) for part in data["train"])
        order, curve = order_of(len(y), len(rates) * self.batch, seed), []
        parts = order.reshape(EVALUATIONS, -1, self.batch)
        for part, some in zip(parts, np.split(rates, EVALUATIONS)):
            weights, state, losses = self._chunk(weights, state, x, y, part, some)
            loss = float(jnp.mean(losses))
            line = {"step": (len(curve) + 1) * len(some)}
            line["loss"] = loss if math.isfinite(loss) else None
            line |= {name: self.accuracy(weights, *data[name]) for name in ("select", "report")}
            curve.append(line)
            if line["loss"] is None:
                break
        last = curve[-1]["loss"]
        return {"curve": curve, "diverged": last is None or last > 0.95 * math.log(10)}

    def accuracy(self, weights, x, y):
        """The accuracy in per cent."""
        hits = [
            np.asarray(self._scores(weights, x[i : i + 1000])).argmax(-1) == y[i : i + 1000]
            for i in range(0, len(x), 1000)
        ]
        return 100 * float(np.concatenate(hits).mean())

    def _updates(self, weights, state, x, y, order, rates):
        of_rate = next(
            i for i, v in enumerate(self.optimizer.variables) if v is self.optimizer._learning_rate
        )

        def update(carry, given):
            (weights, state), (chosen, rate) = carry, given
            state = [rate if i == of_rate else value for i, value in enumerate(state)]
            loss, gradients = self._gradients(weights, x, y, chosen)
            weights, state = self.optimizer.stateless_apply(state, gradients, weights)
            return (weights, state), loss

        (weights, state), losses = jax.lax.scan(update, (weights, state), (order, rates))
        return weights, state, losses

    def _gradients(self, weights, x, y, chosen):
        parts = chosen.reshape(-1, self._micro)

        def loss(weights, rows):
            scores, _ = self.model.stateless_call(weights, self._fixed(), x[rows], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y[rows], scores, from_logits=True)
            return jnp.mean(losses)

        def add(sums, rows):
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(weights, rows)), None

        zeros = jnp.zeros(()), [jnp.zeros_like(w) for w in weights]
        sums, _ = jax.lax.scan(add, zeros, parts)
        return jax.tree.map(lambda total: total / len(parts), sums)


def order_of(examples, count, seed):
    """`count` indices of examples: whole epochs, each shuffled, one after another."""
    generator = np.random.default_rng(seed)
    epochs = [generator.permutation(examples) for _ in range(-(-count // examples))]
    return np.concatenate(epochs)[:count].astype("int32")
