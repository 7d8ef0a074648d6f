"""Hugging Face's models of sentence classification and question answering as peers of ours."""

import peers

HEADS = {  # ours → that of Hugging Face, which is a kernel and a bias
    "output": "classifier",
    "cls/squad/output": "qa_outputs",
}


def peer_model(peer, run, weights):
    transformers = peers.load("transformers")
    config = peer.bert_for_pretraining(run.config).config
    if "output_weights" in weights:
        kind = "single_label_classification" if run.task.predicts_classes else "regression"
        config.num_labels, config.problem_type = weights["output_weights"].shape[0], kind
        theirs = transformers.BertForSequenceClassification(config)
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
    if "qa_outputs/bias" in renamed:  # their model has no pooler
        return {path: x for path, x in renamed.items() if not path.startswith("bert/pooler")}
    return renamed


def peer_loss(theirs, task, batch):
    import torch

    batch = {name: torch.from_numpy(rows) for name, rows in batch.items()}
    if "labels" in batch:
        labels = batch["labels"]
        truth = {"labels": labels.long() if task.predicts_classes else labels}
    else:
        truth = {n: batch[n].long() for n in ("start_positions", "end_positions")}
    outputs = theirs(
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        **truth,
    )
    return outputs.loss
