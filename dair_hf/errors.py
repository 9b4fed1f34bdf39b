"""Errors and warnings about input that the user can correct."""

from __future__ import annotations


class DataError(ValueError):
    """Invalid input; the message says where it is, what was found, and what to do."""


class NonFiniteLossError(FloatingPointError):
    """NaN or infinite loss; the message names the rows."""


class SlotNameWarning(UserWarning):
    """Slots of predicted states that no reference contains; the message suggests the nearest names."""


class UndefinedMetricWarning(UserWarning):
    """Undefined metric (NaN) because it has no rows to average; the message names it and the reason."""
