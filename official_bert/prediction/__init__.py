"""Trained models in use: what `official_bert.load` returns, by the kind of a folder's model."""
