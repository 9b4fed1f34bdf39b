"""What counts as right for data in a known form: equal answers, up to white space, and equal classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def same_texts(predictions: Sequence[Any], references: Sequence[Any]) -> list[bool]:
    r"""Return which answers are their references: exactly, case included, but any white space counts as one space.

    White space at both ends does not count.

    Example:
        >>> same_texts([" 42 \n", "a  b", "Yes"], ["42", "a b", "yes"])
        [True, True, False]
    """
    return [_plain(given) == _plain(wanted) for given, wanted in zip(predictions, references, strict=True)]


def same_classes(predictions: Sequence[Any], references: Sequence[Any]) -> list[bool]:
    """Return which predicted classes are the labels.

    Example:
        >>> same_classes([0, 1], [0, 2])
        [True, False]
    """
    return [int(given) == int(wanted) for given, wanted in zip(predictions, references, strict=True)]


def _plain(answer: Any) -> Any:
    return " ".join(answer.split()) if isinstance(answer, str) else answer
