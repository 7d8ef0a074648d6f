"""From text to batches: corpora, word pieces, instances, records and the order they are read in."""
