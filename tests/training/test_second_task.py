"""The loop trains what is not pre-training: a task of 35 lines, and nothing else new."""

import dataclasses
import itertools
import pathlib

import keras
import numpy as np
import pytest
from keras import ops
from small_runs import QUIET, assert_resumes_exactly, log_lines, train
from two_replicas import two_replicas

from official_bert.data import tokenization
from official_bert.data.row_batches import Arrays, RowBatches
from official_bert.demonstration import stdlib_text
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import Dense, LayerFactory
from official_bert.protocols import Task
from official_bert.stages import Optimizer, Run, Stage

# The task


class SentenceClassifier(keras.Model):
    def __init__(self, config, seed, dtype):
        super().__init__(dtype=dtype)
        self.config = config
        self.encoder = BertEncoder(config, seed, self.dtype_policy)
        self.head = Dense(LayerFactory(config, self.dtype_policy, seed), "cls/sentence", 2)
        self.built = True

    def call(self, inputs, training=False, dropout_seed=None):
        dropout = self.encoder.dropout(training, dropout_seed)
        first = ops.zeros_like(inputs["input_ids"][:, :1])
        sequence, _ = self.encoder.encode(inputs, dropout, first)
        scores = self.head(
            dropout(self.encoder.pool(sequence[:, 0]), self.config.hidden_dropout_prob)
        )
        return ops.cast(scores, "float32")


@dataclasses.dataclass(frozen=True)
class Sentences(Task):
    vocab_file: str
    sums = ("loss", "correct", "examples", "tokens")

    def describe(self):
        return {"task": "sentences"}

    def make_model(self, config, seed, dtype):
        return SentenceClassifier(config, seed, dtype)

    def batches(self, files, lengths, batch_size, config, *, seed, shard, held_out=False):
        lines = [line.split("\t") for line in pathlib.Path(files[0]).read_text().splitlines()]
        tokenizer = tokenization.load(self.vocab_file)
        found = tokenizer.encode_batch([text for _, text in lines], add_special_tokens=False)
        ids = np.zeros((len(lines), lengths.max_seq_length), np.int32)
        for row, encoding in zip(ids, found):
            pieces = [tokenizer.token_to_id("[CLS]"), *encoding.ids][: len(row)]
            row[: len(pieces)] = pieces
        arrays = {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32)}
        arrays |= {"segment_ids": 0 * ids, "labels": np.array([int(n) for n, _ in lines], np.int32)}
        rows = Arrays(arrays)
        return RowBatches(rows, batch_size, seed=seed, shard=shard, shuffle=not held_out)

    def batch_sums(self, scores, batch):
        weights, labels = batch["example_weights"], batch["labels"]
        losses = ops.sparse_categorical_crossentropy(labels, scores, from_logits=True)
        hits = ops.cast(ops.equal(ops.argmax(scores, -1), ops.cast(labels, "int64")), "float32")
        totals = [ops.sum(weights * values) for values in (losses, hits)]
        tokens = ops.cast(ops.sum(batch["input_mask"]), "float32")
        return dict(zip(self.sums, (*totals, ops.sum(weights), tokens), strict=True))

    def metrics(self, sums):
        return {"loss": sums[0] / sums[2], "accuracy": sums[1] / sums[2]}


# Its proof

STAGE = Stage(steps=60, batch_size=16, max_seq_length=32, learning_rate=5e-3, warmup_steps=10)
OPTIONS = dataclasses.replace(QUIET, save_checkpoints_steps=20, log_steps=20, steps_per_loop=20)


@pytest.fixture
def run(small_corpus, tmp_path):
    """Which of two kinds of sentences? Those of the second are the first's without their order."""
    documents = itertools.islice(stdlib_text.documents(), 60)
    lines = [line for _, lines in documents for line in lines if 8 < len(line.split()) < 20][:50]
    rows = [f"{i % 2}\t{'return ' * (i % 2)}{line}" for i, line in enumerate(lines)]
    (tmp_path / "lines.tsv").write_text("\n".join(rows) + "\n")
    return Run(
        config=dataclasses.replace(small_corpus.config, initializer_range=0.1),
        stages=(STAGE,),
        optimizer=Optimizer(type="adamw", beta_2=0.98),
        input_files=(str(tmp_path / "lines.tsv"),),
        task=Sentences(small_corpus.vocab_file),
    )


def evaluated(run):
    return dataclasses.replace(OPTIONS, eval_files=run.input_files, eval_batch_size=16)


def test_a_second_task_learns_and_reports_in_its_own_words(run, tmp_path, capsys):
    train(run, tmp_path / "model", evaluated(run))
    last = [line for line in log_lines(tmp_path / "model") if line["kind"] == "eval"][-1]
    assert last["accuracy"] > 0.9
    said = capsys.readouterr().out
    assert f"held out: loss {last['loss']:.4g}, accuracy {last['accuracy']:.4g}" in said
    assert "masked" not in said


def test_a_second_task_resumes_exactly(run, tmp_path):
    assert_resumes_exactly(run, tmp_path, OPTIONS, 40)


def test_a_second_task_trains_to_the_same_weights_on_two_replicas(run, tmp_path):
    run = dataclasses.replace(run, stages=(dataclasses.replace(STAGE, steps=4, warmup_steps=1),))
    one = train(run, tmp_path / "one", OPTIONS).model
    two = train(run, tmp_path / "two", OPTIONS, two_replicas()).model
    for a, b in zip(one.weights, two.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5, err_msg=a.path)
