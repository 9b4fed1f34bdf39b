"""Errors and warnings about input that the user can correct."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class DataError(ValueError):
    """Invalid input; the message says where it is, what was found, and what to do."""


class NonFiniteLossError(FloatingPointError):
    """NaN or infinite loss; the message names the rows."""


class SlotNameWarning(UserWarning):
    """Slots of predicted states that no reference contains; the message names them."""


class BeliefTextWarning(UserWarning):
    """Predictions whose text does not have the form of a state; the message shows both."""


class UndefinedMetricWarning(UserWarning):
    """Undefined metric or interval (NaN) for lack of rows or clusters; the message names it and the reason."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had no memory left."""
    words = ("out of memory", "can't allocate memory")  # of torch, for a device and for the CPU
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


@contextlib.contextmanager
def explained(setting: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert errors of other libraries about a setting into a one-line `DataError` that names it.

    A lack of memory is never converted.

    Example:
        >>> with explained("heads='two'", ValueError):
        ...     int("two")
        Traceback (most recent call last):
        dair_hf.errors.DataError: heads='two': invalid literal for int() with base 10: 'two'
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, DataError) or is_out_of_memory(error):
            raise
        text = " ".join(str(error).split())
        raise DataError(f"{setting}: {text[:400] or type(error).__name__}") from error
