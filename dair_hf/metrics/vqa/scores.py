"""VQA accuracy of single answers, from the number of annotators who gave the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces
from dair_hf.metrics.vqa.items import read_answers, require_text

Normalize = Literal["disputed", "always", "never"]

AGREEING = 3  # this many annotators make an answer fully correct
MIN_ANNOTATORS = AGREEING + 1  # the official form leaves one annotator out


class Matches(NamedTuple):
    """Agreement of predicted answers with the annotators.

    matching: `[N]` int64, number of annotators who gave the predicted answer.
    annotators: `[N]` int64, number of annotators.
    """

    matching: NDArray[np.int64]
    annotators: NDArray[np.int64]


def count_matches(
    predictions: Sequence[str], references: Sequence[Sequence[str]], normalize: Normalize = "disputed"
) -> Matches:
    """Count the annotators who gave the predicted answer.

    Args:
        predictions: `[N]` answers.
        references: `[N]` lists of the annotators' answers.
        normalize: When to apply `normalize_answer` to both sides. "disputed": if the annotators' answers are not all
            equal, as in the official evaluation. "always". "never". Without it, only the spaces around an answer are
            removed, so "Yes" differs from "yes".

    Raises:
        DataError: The lengths differ, a row has no answers, an answer is not a string, or `normalize` is unknown.

    Example:
        >>> count_matches(["two", "two"], [["2"] * 10, ["2"] * 9 + ["3"]]).matching
        array([0, 9])
        >>> count_matches(["two"], [["2"] * 10], normalize="always").matching
        array([10])
    """
    if normalize not in get_args(Normalize):
        raise DataError(f"normalize: unknown value {normalize!r}; use one of {', '.join(get_args(Normalize))}")
    if len(predictions) != len(references):
        raise DataError(f"found {len(predictions)} predictions for {len(references)} references; give one for each")
    matching = np.zeros(len(predictions), dtype=np.int64)
    annotators = np.zeros(len(predictions), dtype=np.int64)
    for row, (prediction, answers) in enumerate(zip(predictions, references, strict=True)):
        predicted = strip_spaces(require_text(prediction, "an answer", f"predictions[{row}]"))
        given = [strip_spaces(answer) for answer in read_answers(answers, f"references[{row}]")]
        if normalize == "always" or (normalize == "disputed" and len(set(given)) > 1):
            predicted, given = normalize_answer(predicted), [normalize_answer(answer) for answer in given]
        matching[row], annotators[row] = given.count(predicted), len(given)
    return Matches(matching, annotators)


def is_disputed(answers: Sequence[str]) -> bool:
    """Return whether the annotators' answers differ, apart from the spaces around them."""
    return len({strip_spaces(answer) for answer in answers}) > 1


def official_scores(matching: ArrayLike, annotators: ArrayLike = 10) -> NDArray[np.float64]:
    """Compute the official VQA accuracy `mean_i min(#{j != i: a_j = a} / 3, 1)`.

    If n of m annotators gave the answer, n of the m subsets without one annotator have n - 1 of them, and the other
    m - n subsets have n:

        (n min((n - 1) / 3, 1) + (m - n) min(n / 3, 1)) / m,    for m = 10:  0  0.3  0.6  0.9  1  1 ...
    """
    n, m = _counts(matching, annotators, MIN_ANNOTATORS, "official")
    return (n * np.minimum((n - 1) / AGREEING, 1.0) + (m - n) * np.minimum(n / AGREEING, 1.0)) / m


def simple_scores(matching: ArrayLike, annotators: ArrayLike = 10) -> NDArray[np.float64]:
    """Compute the VQA accuracy in the form that papers print, `min(n / 3, 1)`; never below `official_scores`."""
    n, _ = _counts(matching, annotators, AGREEING, "simple")
    return np.minimum(n / AGREEING, 1.0)


def vqa_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, normalize: Normalize = "disputed"
) -> NDArray[np.float64]:
    """Compute the official VQA accuracy of each answer; see `official_scores`."""
    return official_scores(*count_matches(predictions, references, normalize))


def vqa_correct(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, normalize: Normalize = "disputed"
) -> NDArray[np.bool_]:
    """Return for each answer whether any annotator gave it: the paper's H for VQA, in CM and flips.

    Args:
        predictions: `[N]` answers.
        references: `[N]` lists of the annotators' answers, at least one each.
        normalize: See `count_matches`.

    Returns:
        `[N]` bool.

    Raises:
        DataError: As `count_matches`.

    Example:
        >>> vqa_correct(["2", "4"], [["2", "3"], ["2", "3"]])
        array([ True, False])
    """
    return count_matches(predictions, references, normalize).matching > 0


def _counts(
    matching: ArrayLike, annotators: ArrayLike, minimum: int, form: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, m = np.broadcast_arrays(np.asarray(matching, dtype=np.float64), np.asarray(annotators, dtype=np.float64))
    few = np.flatnonzero(m < minimum)
    if few.size:
        raise DataError(too_few_annotators(f"references[{few[0]}]", int(m[few[0]]), form, minimum))
    return n, m


def too_few_annotators(where: str, found: int, form: str = "official", minimum: int = MIN_ANNOTATORS) -> str:
    """Return the message about a question with too few annotators."""
    return (
        f"{where}: the {form} VQA accuracy needs at least {minimum} annotators, found {found}; with fewer, even full "
        "agreement would score below 1. If only one answer is correct, repeat it ten times"
    )
