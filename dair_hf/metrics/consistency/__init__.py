"""The folder that `evaluate.load(dair_hf.metrics.consistency)` reads; `python -m` runs it on JSON lines."""
