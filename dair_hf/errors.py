"""The errors a user can cause and mend."""

from __future__ import annotations


class DataError(ValueError):
    """Input that cannot be used: the message says where it is, what was found and what to do."""


class NonFiniteLossError(FloatingPointError):
    """A loss became NaN or infinite: the message names the rows it happened on."""


class SlotNameWarning(UserWarning):
    """Slots of predicted states that no reference holds: the message says which and the nearest names."""


class UndefinedMetricWarning(UserWarning):
    """A metric is divided by no row and is NaN: the message says which one and why."""
