"""Robust regression: QSAR and other tables with a spurious feature as pairs, a linear model, the tilted loss."""
