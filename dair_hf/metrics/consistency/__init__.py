"""Consistency metric: a folder for `evaluate.load`."""
