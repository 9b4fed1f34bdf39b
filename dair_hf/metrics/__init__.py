"""Metrics that `evaluate.load` reads from the installed package; each is a folder named by its path string here."""
