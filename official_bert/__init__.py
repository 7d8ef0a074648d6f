"""BERT pre-training with large batches, from raw text to a checkpoint."""
