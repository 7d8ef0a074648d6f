"""Hugging Face's BERT in PyTorch as an independent peer: our configuration, weights and batches.

`tests/training/test_same_training.py` and `learning_curves.py` train it beside ours.
"""

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

# `BertConfig.hidden_act` in their words, to whom "gelu" is the form with erf. (Theirs with tanh in
# PyTorch's fused kernel: their "gelu_new" is the same formula in eight operations.)
ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "gelu_new": "gelu_pytorch_tanh", "gelu_erf": "gelu"}
IGNORED = -100  # their label of a position that is not to be predicted


def bert_for_pretraining(config):
    """Their `BertForPreTraining` of a `BertConfig`, with initial values of its own."""
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
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(
            **{name: getattr(config, name) for name in names},
            hidden_act=ACTIVATIONS[config.hidden_act],
        )
    )
    # Else [PAD] would get no gradient, which can be the random word at a masked position.
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    return theirs


def parameters(theirs):
    """Their parameters by our paths, each once; and whether ours is its transpose."""
    by_path = {}
    for name, parameter in theirs.named_parameters():  # a tied one comes once
        path = name.replace(".", "/").replace("layer/", "layer_")
        path = path.replace("LayerNorm/weight", "LayerNorm/gamma")
        path = path.replace("LayerNorm/bias", "LayerNorm/beta")
        path = path.replace("_embeddings/weight", "_embeddings")
        path = path.replace("cls/predictions/bias", "cls/predictions/output_bias")
        path = path.replace("seq_relationship/weight", "seq_relationship/output_weights")
        path = path.replace("seq_relationship/bias", "seq_relationship/output_bias")
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
        path: np.array(parameter.detach().numpy().T if transposed else parameter.detach().numpy())
        for path, (parameter, transposed) in parameters(theirs).items()
    }


def get_gradients(theirs):
    """Copies of their gradients as arrays by our paths."""
    return {
        path: np.array(parameter.grad.numpy().T if transposed else parameter.grad.numpy())
        for path, (parameter, transposed) in parameters(theirs).items()
    }


def inputs(batch):
    """What `BertForPreTraining` takes of a batch of `input_pipeline.Batches`, labels included."""
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

    As their own `loss`, which is the sum of the two: means over the predicted positions and over
    the sequences.
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
def evaluate(theirs, batches):
    """The masked-LM loss in nats and the accuracy over all batches, in order."""
    theirs.eval()
    loss = hits = count = 0.0
    for step in range(batches.num_batches):
        given = inputs(batches[step])
        labels = given.pop("labels")
        del given["next_sentence_label"]
        predicted = labels != IGNORED
        logits, labels = theirs(**given).prediction_logits[predicted], labels[predicted]
        loss += float(cross_entropy(logits, labels, reduction="sum"))
        hits += float((logits.argmax(-1) == labels).sum())
        count += len(labels)
    return loss / count, hits / count
