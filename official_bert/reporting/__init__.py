"""Reports of a run: its files (`contents`), charts (`charts`) and HTML (`drawing`, `page`).

Imports neither TensorFlow nor a drawing library.
"""
