"""What the training loop must not know: the model, the batch, the sums and the loss of a task."""
