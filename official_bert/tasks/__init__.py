"""The tasks: pre-training, sentence classification and regression, question answering."""
