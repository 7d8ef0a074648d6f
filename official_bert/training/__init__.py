"""A run: stages in order, checkpoints, evaluation, reports and the model directory."""
