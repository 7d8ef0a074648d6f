"""Rows of several sequences, and the same sequences one by one; their losses and gradients.

    python tests/support/packed_rows.py

prints `differences()` on JAX.
"""

import json
import subprocess
import sys

import numpy as np

VOCAB_SIZE, LENGTH, PREDICTIONS = 60, 24, 8
SEQUENCES = ((7, 9, 6), (24,), (3, 3, 3, 3, 3, 3), (10, 13))  # lengths, by rows; with padding


def batches():
    """The packed batch, and one with a sequence per row."""
    rng = np.random.default_rng(3)
    packed, single = _zeros(len(SEQUENCES)), _zeros(sum(map(len, SEQUENCES)))
    number = 0
    for row, lengths in enumerate(SEQUENCES):
        start, masked = 0, 0
        for of_row, length in enumerate(lengths, 1):
            ids = rng.integers(5, VOCAB_SIZE, length)
            positions = np.sort(rng.choice(np.arange(1, length - 1), min(2, length - 2), False))
            labels = rng.integers(5, VOCAB_SIZE, len(positions))
            for batch, r, at, m in ((packed, row, start, masked), (single, number, 0, 0)):
                places = slice(m, m + len(positions))
                batch["input_ids"][r, at : at + length] = ids
                batch["input_mask"][r, at : at + length] = 1
                batch["masked_lm_positions"][r, places] = at + positions
                batch["masked_lm_ids"][r, places] = labels
                batch["masked_lm_weights"][r, places] = 1
            packed["sequence_ids"][row, start : start + length] = of_row
            start, masked, number = start + length, masked + len(positions), number + 1
    del single["sequence_ids"]
    return packed, single


def _zeros(rows):
    tokens = ("input_ids", "input_mask", "segment_ids", "sequence_ids")
    return {
        **{name: np.zeros((rows, LENGTH), np.int32) for name in tokens},
        **{
            f"masked_lm_{name}": np.zeros((rows, 2 * PREDICTIONS), kind)
            for name, kind in (("positions", np.int32), ("ids", np.int32), ("weights", np.float32))
        },
        "next_sentence_labels": np.zeros(rows, np.int32),
        "example_weights": np.ones(rows, np.float32),
    }


def differences(engine):
    """Relative differences of the loss, the sums and the gradients between the two batches.

    "zeros" has the largest values of the gradients of the keys' biases, which are 0 in exact
    arithmetic: softmax does not change where all scores of a query grow alike.
    """
    from official_bert.model.config import BertConfig
    from official_bert.stages import Optimizer, Run, Stage
    from official_bert.tasks.pretraining import Pretraining
    from official_bert.training.stage_model import make_model_and_optimizer

    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,  # large, so that errors show
    )
    lengths = {"max_seq_length": LENGTH, "max_predictions_per_seq": 2 * PREDICTIONS}
    stage = Stage(steps=1, batch_size=4, learning_rate=1e-3, **lengths)
    task = Pretraining(use_next_sentence_label=False)
    run = Run(config=config, stages=(stage,), optimizer=Optimizer(), input_files=("",), task=task)
    with engine.scope():
        model, _ = make_model_and_optimizer(run, stage)
    found = []
    for batch in batches():
        rows = np.arange(len(batch["input_ids"]))
        sums, gradients = engine.sums_and_gradients(run, model, batch, rows, 0, 1.0)
        sums = dict(zip(task.sums, sums.tolist(), strict=True))
        found.append((sums, [np.asarray(g, np.float64) for g in gradients]))
    (packed, ours), (single, theirs) = found
    is_zero = [variable.path.endswith("key/bias") for variable in model.trainable_variables]
    pairs = list(zip(is_zero, ours, theirs, strict=True))
    return {
        "loss": abs(packed["masked_lm_loss"] / single["masked_lm_loss"] - 1),
        "weights": packed["masked_lm_weight"] - single["masked_lm_weight"],
        "correct": packed["masked_lm_correct"] - single["masked_lm_correct"],
        "tokens": packed["tokens"] - single["tokens"],
        "gradients": [
            float(np.linalg.norm(a - b) / np.linalg.norm(b)) for zero, a, b in pairs if not zero
        ],
        "zeros": [float(np.abs([a, b]).max()) for zero, a, b in pairs if zero],
    }


def differences_on_jax():
    """The same in a process of the other engine."""
    import jax_training

    done = subprocess.run(
        [sys.executable, __file__],
        env=jax_training.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    from official_bert.engines.jax_mesh import JaxMesh

    print(json.dumps(differences(JaxMesh())))
