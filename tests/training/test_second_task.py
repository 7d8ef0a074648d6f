"""The loop trains what is not pre-training: a task of 35 lines, and nothing else new."""

import dataclasses
import pathlib

import keras
import numpy as np
from keras import ops
from small_runs import QUIET, assert_resumes_exactly, log_lines
from small_sentences import make_run

from official_bert.data import tokenization
from official_bert.data.row_batches import Arrays, RowBatches
from official_bert.model.encoder import BertEncoder
from official_bert.model.layers import Dense, LayerFactory
from official_bert.protocols import Task

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
        lines = pathlib.Path(files[0]).read_text().splitlines()[1:]
        texts, _, labels, *_ = zip(*(line.split("\t") for line in lines))
        tokenizer = tokenization.load(self.vocab_file)
        found = tokenizer.encode_batch(texts, add_special_tokens=False)
        ids = np.zeros((len(lines), lengths.max_seq_length), np.int32)
        for row, encoding in zip(ids, found):
            pieces = [tokenizer.token_to_id("[CLS]"), *encoding.ids][: len(row)]
            row[: len(pieces)] = pieces
        arrays = {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32)}
        numbers = np.array([label == "begun" for label in labels], np.int32)
        arrays |= {"segment_ids": 0 * ids, "labels": numbers}
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

OPTIONS = dataclasses.replace(QUIET, save_checkpoints_steps=20, log_steps=20, steps_per_loop=20)


def test_a_second_task_learns_reports_in_its_own_words_and_resumes_exactly(
    small_sentences, tmp_path, capsys
):
    run = make_run(small_sentences, task=Sentences(small_sentences.vocab_file))
    options = dataclasses.replace(OPTIONS, eval_files=run.input_files, eval_batch_size=16)
    assert_resumes_exactly(run, tmp_path, options, 40)
    last = [line for line in log_lines(tmp_path / "whole") if line["kind"] == "eval"][-1]
    assert last["accuracy"] > 0.9
    said = capsys.readouterr().out
    assert f"held out: loss {last['loss']:.4g}, accuracy {last['accuracy']:.4g}" in said
    assert "masked" not in said
