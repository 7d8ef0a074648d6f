"""Any Keras optimizer in a run: its settings, and what the training loop relies on."""
