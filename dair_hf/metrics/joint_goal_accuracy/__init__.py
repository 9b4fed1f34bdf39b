"""Joint goal accuracy: a folder for `evaluate.load`."""
