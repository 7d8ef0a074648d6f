"""BERT checkpoints of every dialect, in and out; one table of names, `names.py`, drives all."""
