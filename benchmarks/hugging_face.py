"""Hugging Face's BERT in PyTorch as an independent peer: our configuration, weights and batches.

`tests/training/test_same_training.py` and `learning_curves.py` compare training with it, the
benchmarks of throughput its speed.
"""

import contextlib

import machine
import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

# `BertConfig.hidden_act` by their names: their "gelu" is the form with erf, and their "gelu_new" is
# the form with tanh in eight operations, "gelu_pytorch_tanh" in one.
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_new": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
IGNORED = -100  # their label of a position without a prediction


def bert_for_pretraining(config, kind="BertForPreTraining"):
    """Their `BertForPreTraining` of a `BertConfig`, with its own initial values.

    Args:
        kind: Another class of theirs.
    """
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "max_position_embeddings",
        "type_vocab_size",
        "initializer_range",
    )
    theirs = getattr(transformers, kind)(
        transformers.BertConfig(
            **{name: getattr(config, name) for name in names},
            hidden_act=ACTIVATIONS[config.hidden_act],
        )
    )
    # Otherwise [PAD], a possible random word at a masked position, would have no gradient.
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    return theirs


PATHS = {  # parts of their names and of ours, replaced in this order
    ".": "/",
    "layer/": "layer_",
    "LayerNorm/weight": "LayerNorm/gamma",
    "LayerNorm/bias": "LayerNorm/beta",
    "_embeddings/weight": "_embeddings",
    "cls/predictions/bias": "cls/predictions/output_bias",
    "seq_relationship/weight": "seq_relationship/output_weights",
    "seq_relationship/bias": "seq_relationship/output_bias",
}


def parameters(theirs):
    """Their parameters by our paths, each once; and whether ours is its transpose."""
    by_path = {}
    for path, parameter in theirs.named_parameters():  # a tied one comes once
        for part, ours in PATHS.items():
            path = path.replace(part, ours)
        is_kernel = path.endswith("/weight")
        by_path[path.replace("/weight", "/kernel")] = parameter, is_kernel
    return by_path


def set_weights(theirs, values):
    """Sets all of their parameters to arrays by our paths."""
    found = parameters(theirs)
    assert found.keys() == values.keys()
    with torch.no_grad():
        for path, (parameter, transposed) in found.items():
            value = torch.from_numpy(np.array(values[path], np.float32))
            parameter.copy_(value.T if transposed else value)


def get_weights(theirs):
    """Copies of their parameters as arrays by our paths."""
    return {
        path: np.array((parameter.T if transposed else parameter).detach().numpy())
        for path, (parameter, transposed) in parameters(theirs).items()
    }


def get_gradients(theirs):
    """Copies of their gradients as arrays by our paths."""
    return {
        path: np.array((parameter.grad.T if transposed else parameter.grad).numpy())
        for path, (parameter, transposed) in parameters(theirs).items()
    }


def inputs(batch):
    """The arguments of `BertForPreTraining` from a batch of `input_pipeline.Batches`."""
    batch = {name: torch.from_numpy(rows.astype(np.int64)) for name, rows in batch.items()}
    labels = torch.full_like(batch["input_ids"], IGNORED)
    rows, columns = torch.nonzero(batch["masked_lm_weights"], as_tuple=True)
    labels[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][
        rows, columns
    ]
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"].reshape(-1),
    }


def losses(theirs, batch):
    """The masked-LM and the next-sentence loss of a batch of `input_pipeline.Batches`, in nats.

    Means over the predicted positions and over the sequences; their own `loss` is the sum of both.
    """
    given = inputs(batch)
    labels, sentences = given.pop("labels"), given.pop("next_sentence_label")
    outputs = theirs(**given)
    return (
        cross_entropy(outputs.prediction_logits.flatten(0, 1), labels.flatten()),
        cross_entropy(outputs.seq_relationship_logits, sentences),
    )


def adamw(theirs, optimizer):
    """PyTorch's AdamW with the settings of a `stages.Optimizer`; `update` sets rates and clips."""
    by_path = {path: parameter for path, (parameter, _) in parameters(theirs).items()}
    excluded = {
        path for path in by_path if any(e in path for e in optimizer.exclude_from_weight_decay)
    }
    groups = [
        {
            "params": [parameter for path, parameter in by_path.items() if path not in excluded],
            "weight_decay": optimizer.weight_decay,
        },
        {"params": [by_path[path] for path in sorted(excluded)], "weight_decay": 0.0},
    ]
    betas = optimizer.beta_1, optimizer.beta_2
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=optimizer.epsilon, fused=True)


def update(theirs, optimizer, loss, learning_rate, clipnorm):
    """One update from a loss, with the gradients clipped to a joint norm."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), clipnorm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


@torch.no_grad()
def evaluate(theirs, batches, logits="prediction_logits", numbers=None):
    """The masked-LM loss in nats and the accuracy over batches, in order.

    Args:
        logits: The name of the output.
        numbers: Those of the batches; None: all.
    """
    theirs.eval()
    loss = hits = count = 0.0
    for step in numbers or range(batches.num_batches):
        given = inputs(batches[step])
        labels = given.pop("labels")
        del given["next_sentence_label"]
        predicted = labels != IGNORED
        scores, labels = theirs(**given)[logits][predicted], labels[predicted]
        loss += float(cross_entropy(scores, labels, reduction="sum"))
        hits += float((scores.argmax(-1) == labels).sum())
        count += len(labels)
    return loss / count, hits / count


# Their speed


def fast_model(name, **config):
    """A model of `transformers` with its fastest attention, and our GELU in one kernel."""
    config = transformers.BertConfig(
        hidden_act="gelu_pytorch_tanh", attn_implementation="sdpa", **config
    )
    return getattr(transformers, name)(config).train()


def updates(model, inputs, dtype, count, clipnorm=None):
    """Functions that run `count` updates on one batch by AdamW on the CPU: eager, compiled.

    Args:
        model: The result of `fast_model`.
        inputs: Its arguments.
        dtype: Of the computation, "fp32" or "bf16".
        count: Number of updates.
        clipnorm: Maximum global norm of the gradients; None: any.
    """
    torch.set_num_threads(machine.cores())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    compiled = torch.compile(model)

    def run(forward):
        for _ in range(count):
            mixed = torch.autocast("cpu", torch.bfloat16)
            with mixed if dtype == "bf16" else contextlib.nullcontext():
                loss = forward(**inputs).loss
            loss.backward()
            if clipnorm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clipnorm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return lambda: run(model), lambda: run(compiled)
