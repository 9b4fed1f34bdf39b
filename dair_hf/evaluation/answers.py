"""Ready-made rules by which predictions count as right: texts, numbers in texts, classes, and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from dair_hf.errors import DataError

# Imported where they are used: the command line lists the rules without them.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A sign is part of a number only where nothing stands before it, unlike in 7-3; commas separate thousands.
_NUMBER = re.compile(
    r"(?:(?:(?<![\w.)])-\$?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])-?\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?"
)


class _Match(NamedTuple):
    """Rule by which an answer counts as right, in words, and the key in which it equals its reference."""

    description: str
    key: Callable[[str], Hashable]  # None for a text that can never be right


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    return next((line for line in map(_collapse_spaces, text.splitlines()) if line), "")


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return Decimal(re.sub("[,$]", "", found[-1])) if found else None


MATCHES = {
    "exact": _Match("equal texts, where spaces and line breaks count as one space", _collapse_spaces),
    "ignore-case": _Match("as exact, without regard to upper case", lambda text: _collapse_spaces(text).casefold()),
    "first-line": _Match("equal first lines that are not empty", _first_line),
    "last-number": _Match("equal last numbers, 1,000.0 the same as 1000", _last_number),
}


def matches(name: str, answers: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Return which answers are right by a rule.

    Args:
        name: Name in `MATCHES`.
        answers: N answers.
        references: N references.

    Raises:
        DataError: No answer can equal a reference, such as one without a number.

    Example:
        >>> matches("last-number", ["So it is 1,000.0.", "42"], ["1000", "-42"])
        [True, False]
    """
    wanted = reference_keys(name, references)
    return [MATCHES[name].key(answer) == key for answer, key in zip(answers, wanted, strict=True)]


def reference_keys(name: str, references: Sequence[str]) -> list[Hashable]:
    """Return what answers are compared with by a rule."""
    keys = [MATCHES[name].key(reference) for reference in references]
    if None in keys:  # every answer without a number would be right
        raise DataError(f"match {name}: expected a number in each reference, got {references[keys.index(None)]!r:.80}")
    return keys


def same_texts(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    r"""Return which answers are right by the rule "exact"."""
    return matches("exact", predictions, references)


def same_classes(predictions: Sequence[Any], references: Sequence[Any]) -> NDArray[np.bool_]:
    """Compute `H(z) = [the predicted class is the label]`, for a classifier of anything.

    Args:
        predictions: Class of each row, or its logits `[C]`, of which the largest decides; a single logit above 0 is
            class 1. For a classifier of tokens the classes `[T]`; for several classes at once the logits `[C]`, of
            which those above 0 are predicted.
        references: Class of each row; its classes `[T]`, -100 without a target; for several classes at once 0 or 1 of
            each, `[C]`; or, for a predicted class, a score of each class, of which the largest is right.

    Returns:
        `[N]` bool; all tokens, or all of several classes, must be right. A row without a target is wrong.

    Raises:
        DataError: A logit is NaN.

    Example:
        >>> same_classes([0, 1], [0, 2])
        array([ True, False])
        >>> same_classes([[0.1, 0.9], [2.0, -3.0]], [1, [1, 0]])
        array([ True,  True])
    """
    import numpy as np

    pairs = zip(predictions, references, strict=True)
    return np.array([_is_class(np.asarray(given), np.asarray(wanted)) for given, wanted in pairs], dtype=np.bool_)


def _is_class(given: NDArray[Any], wanted: NDArray[Any]) -> bool:
    import numpy as np

    from dair_hf.losses.per_sample import IGNORE_INDEX

    if given.dtype.kind == "f":
        if np.isnan(given).any():  # `argmax` would choose it
            raise DataError("predictions: expected logits, got NaN")
        if given.shape == wanted.shape and given.ndim:
            return bool(((given > 0) == (wanted > 0.5)).all())
        given = np.asarray(given.argmax() if given.size > 1 else given.reshape(()) > 0)
    if given.ndim < wanted.ndim:
        return bool(wanted[given] == wanted.max() > 0)
    if not wanted.ndim:
        return bool(given == wanted)
    of_targets = (given[: len(wanted)] == wanted)[wanted != IGNORE_INDEX]
    return bool(of_targets.size and of_targets.all())


def absolute_errors(predictions: Sequence[Any], references: Sequence[Any]) -> NDArray[np.float64]:
    """Compute `|f(x) - y|` of each row, `[N]`; of several numbers of a row the mean.

    Example:
        >>> absolute_errors([[1.0], [5.0]], [1.5, 2.0])
        array([0.5, 3. ])
    """
    import numpy as np

    targets = np.asarray(references, dtype=np.float64)
    errors = np.abs(np.asarray(predictions, dtype=np.float64).reshape(targets.shape) - targets)
    return errors.reshape(len(targets), -1).mean(1)


def same_numbers(
    predictions: Sequence[Any], references: Sequence[Any], tolerance: float | None = None
) -> NDArray[np.bool_]:
    """Compute `H(z) = [|f(x) - y| <= tolerance]` of a regression.

    Args:
        predictions: Prediction of each row.
        references: Target of each row.
        tolerance: Largest error of a correct prediction, in units of the target; None: a tenth of the standard
            deviation of the references.

    Returns:
        `[N]` bool.

    Example:
        >>> same_numbers([[1.0], [5.0]], [1.5, 2.0], tolerance=0.5)
        array([ True, False])
    """
    import numpy as np

    limit = np.std(np.asarray(references, dtype=np.float64)) / 10 if tolerance is None else tolerance
    return np.asarray(absolute_errors(predictions, references) <= limit)
