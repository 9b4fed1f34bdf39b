"""Consistency metric: a folder for `evaluate.load` and a command for `python -m`."""
