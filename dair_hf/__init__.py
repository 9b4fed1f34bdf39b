"""DAIR: training on pairs of an original and an augmented sample so that both have the same loss."""
