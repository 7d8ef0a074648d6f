"""Reads and writes BERT checkpoints of every format, with one table of names, `names.py`."""
