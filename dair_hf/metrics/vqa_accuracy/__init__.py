"""VQA accuracy: a folder for `evaluate.load`."""
