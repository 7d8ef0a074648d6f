"""Reports of a run: its files (`contents`), its charts (`charts`), their HTML (`drawing`, `page`).

Needs neither TensorFlow nor a drawing library.
"""
