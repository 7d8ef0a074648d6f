"""Hugging Face's `BertForSequenceClassification` as a peer of our sentence classification."""

import peers


def peer_model(peer, run, weights):
    transformers = peers.load("transformers")
    config = peer.bert_for_pretraining(run.config).config
    kind = "single_label_classification" if run.task.predicts_classes else "regression"
    config.num_labels, config.problem_type = weights["output_weights"].shape[0], kind
    theirs = transformers.BertForSequenceClassification(config)
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    peer.set_weights(theirs, by_their_names(weights))
    return theirs


def by_their_names(values):
    """Our names → those that `benchmarks.hugging_face` makes of theirs; their head is a kernel."""
    renamed = dict(values)
    renamed["classifier/kernel"] = renamed.pop("output_weights").T
    renamed["classifier/bias"] = renamed.pop("output_bias")
    return renamed


def peer_loss(theirs, task, batch):
    import torch

    labels = torch.from_numpy(batch["labels"])
    outputs = theirs(
        input_ids=torch.from_numpy(batch["input_ids"]),
        attention_mask=torch.from_numpy(batch["input_mask"]),
        token_type_ids=torch.from_numpy(batch["segment_ids"]),
        labels=labels.long() if task.predicts_classes else labels,
    )
    return outputs.loss
