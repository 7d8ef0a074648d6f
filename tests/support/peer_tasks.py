"""Hugging Face's models of sentence classification, answers and tags as peers of ours."""

import peers

HEADS = {  # ours → that of Hugging Face, which is a kernel and a bias
    "output": "classifier",
    "cls/squad/output": "qa_outputs",
    "cls/tags/output": "classifier",
}
KINDS = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi-label classification": "multi_label_classification",
}


def peer_model(peer, run, weights):
    transformers = peers.load("transformers")
    config = peer.bert_for_pretraining(run.config).config
    if "output_weights" in weights:
        config.num_labels = weights["output_weights"].shape[0]
        config.problem_type = KINDS[run.task.target.name]
        theirs = transformers.BertForSequenceClassification(config)
    elif "cls/tags/output_weights" in weights:
        config.num_labels = weights["cls/tags/output_weights"].shape[0]
        theirs = transformers.BertForTokenClassification(config)
    else:
        theirs = transformers.BertForQuestionAnswering(config)
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    peer.set_weights(theirs, by_their_names(weights))
    return theirs


def by_their_names(values):
    """Our names → those that `benchmarks.hugging_face` makes of theirs."""
    renamed = dict(values)
    for ours, theirs in HEADS.items():
        if f"{ours}_weights" in renamed:
            renamed[f"{theirs}/kernel"] = renamed.pop(f"{ours}_weights").T
            renamed[f"{theirs}/bias"] = renamed.pop(f"{ours}_bias")
    if not {"cls/squad/output_bias", "cls/tags/output_bias"}.isdisjoint(values):
        # their model has no pooler
        return {path: x for path, x in renamed.items() if not path.startswith("bert/pooler")}
    return renamed


def peer_loss(theirs, task, batch):
    import torch

    batch = {name: torch.from_numpy(rows) for name, rows in batch.items()}
    if "tag_ids" in batch:
        nothing = batch["tag_weights"] == 0
        truth = {"labels": batch["tag_ids"].long().masked_fill(nothing, -100)}
    elif "labels" in batch:
        labels = batch["labels"]
        truth = {"labels": labels.long() if task.target.name == "classification" else labels}
    else:
        truth = {n: batch[n].long() for n in ("start_positions", "end_positions")}
    outputs = theirs(
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        **truth,
    )
    if getattr(task, "class_weights", None):
        weighted = torch.nn.CrossEntropyLoss(torch.tensor(task.class_weights))
        return weighted(outputs.logits, truth["labels"])
    return outputs.loss
