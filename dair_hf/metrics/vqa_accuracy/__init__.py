"""The folder that `evaluate.load(dair_hf.metrics.vqa_accuracy)` reads; `python -m` runs it on files."""
