"""One HTML page that shows a run: what it holds (`contents`), drawn (`charts`), laid out (`page`).

Needs neither TensorFlow nor a drawing library.
"""
