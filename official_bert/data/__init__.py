"""From text to batches: corpora, word pieces, instances, records and their order in training."""
