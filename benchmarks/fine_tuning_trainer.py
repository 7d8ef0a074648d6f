"""One fine-tuning by the `Trainer` of `transformers`, for `fine_tuning_scores.py`.

Examples and scoring are our own, and tested against Hugging Face's and the official ones; model,
order, dropout, optimizer, schedule and loop are the peer's.
"""

import json
import pathlib

import machine
import numpy as np
import torch
import transformers

from official_bert.model.config import BertConfig
from official_bert.tasks import (
    glue,
    squad_data,
    squad_decoding,
    squad_evaluation,
    squad_features,
)

_INPUTS = {
    "input_ids": "input_ids",
    "input_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "labels": "labels",
    "start_positions": "start_positions",
    "end_positions": "end_positions",
}


def run(start, config_file, vocab_file, files, output_dir, settings, trial):
    """Trains and evaluates; writes a `results.json` in the format of our commands.

    Args:
        start: Folder of the pre-trained weights in Hugging Face's format.
        files: The flags of our commands that name the examples.
    """
    torch.set_num_threads(machine.cores())
    transformers.set_seed(trial["seed"])
    of_task = {"sst2": _sst2, "squad": _squad}[trial["task"]]
    config = BertConfig.from_json_file(config_file)
    model_class, train, held_out, examples, score = of_task(vocab_file, files, settings, config)
    model = model_class.from_pretrained(
        start,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
    )
    steps = int(examples / settings["train_batch_size"] * settings["num_train_epochs"])
    trainer = _trainer(model, train, output_dir, settings, steps, trial["seed"])
    trainer.train()
    metrics = score(trainer.predict(held_out).predictions)
    results = {"runs": [{"seed": trial["seed"], "metrics": metrics}]}
    pathlib.Path(output_dir, "results.json").write_text(json.dumps(results))


def _trainer(model, train, output_dir, settings, steps, seed):
    arguments = transformers.TrainingArguments(
        output_dir=output_dir,
        max_steps=steps,
        warmup_steps=int(steps * settings["warmup_proportion"]),
        learning_rate=settings["learning_rate"],
        per_device_train_batch_size=settings["train_batch_size"],
        per_device_eval_batch_size=64,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        seed=seed,
        logging_steps=100,
        disable_tqdm=True,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=train)


class Rows(torch.utils.data.Dataset):
    """Our arrays as the examples of a `Trainer`."""

    def __init__(self, arrays):
        self._arrays = {
            _INPUTS[name]: torch.from_numpy(np.asarray(array, np.int64))
            for name, array in arrays.items()
            if name in _INPUTS
        }

    def __len__(self):
        return len(self._arrays["input_ids"])

    def __getitem__(self, index):
        return {name: array[index] for name, array in self._arrays.items()}


# Tasks: the model's class, rows to learn and to predict, examples per epoch, and the score of the
# predictions


def _sst2(vocab_file, files, settings, config):
    one, length = glue.task(files["task_name"]), settings["max_seq_length"]
    task = one.classification(vocab_file, do_lower_case=True)
    paths = (glue.find_file(one, files["data_dir"], split) for split in ("train", *one.dev_splits))
    train, dev = (task.labelled_arrays(path, length, config) for path in paths)

    def score(logits):
        return {"eval_accuracy": float(np.mean(logits.argmax(-1) == dev["labels"]))}

    rows = Rows(train), Rows(dev)
    return transformers.BertForSequenceClassification, *rows, len(rows[0]), score


def _squad(vocab_file, files, settings, config):
    cut = squad_data.Windows(
        max_seq_length=settings["max_seq_length"], doc_stride=settings["doc_stride"]
    )
    questions, _ = squad_data.for_training(squad_data.read(files["train_file"]).questions)
    dataset = squad_data.read(files["predict_file"])
    train = squad_features.make_features(questions, vocab_file, settings=cut)
    dev = squad_features.make_features(dataset.questions, vocab_file, settings=cut)

    def score(logits):
        predictions = squad_decoding.decode(dev, *logits)
        return squad_evaluation.evaluate(dataset, {p.id: p.text for p in predictions})

    rows = [Rows(features.batch(range(len(features)))) for features in (train, dev)]
    return transformers.BertForQuestionAnswering, *rows, len(questions), score
