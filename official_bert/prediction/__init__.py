"""A trained model in use: what `official_bert.load` returns, by what a folder holds."""
