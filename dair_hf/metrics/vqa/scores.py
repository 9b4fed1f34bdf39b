"""VQA accuracy of single answers: how many annotators say the same, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces

Normalize = Literal["disputed", "always", "never"]
Form = Literal["official", "simple"]

AGREEING = 3  # so many annotators make an answer fully right
FEWEST_ANNOTATORS = AGREEING + 1  # of the official form, which leaves one of them out


class Matches(NamedTuple):
    """What came of every question.

    matching: `[N]` int64, annotators who gave the predicted answer.
    annotators: `[N]` int64, annotators of the question.
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
        normalize: When both sides go through `normalize_answer` before they are compared. "disputed": where the
            annotators' answers are not all equal, as in the official evaluation; where they are, only spaces around an
            answer are dropped, and "Yes" is not "yes". "always"; "never": only spaces around.

    Returns:
        Matching annotators and all annotators.

    Raises:
        DataError: Numbers of rows differ, a row holds no answers or other than text, or `normalize` is unknown.

    Example:
        >>> count_matches(["two", "two"], [["2"] * 10, ["2"] * 9 + ["3"]]).matching
        array([0, 9])
        >>> count_matches(["two"], [["2"] * 10], normalize="always").matching
        array([10])
    """
    if normalize not in get_args(Normalize):
        raise DataError(f"normalize: unknown value {normalize!r}; use one of {', '.join(get_args(Normalize))}")
    if len(predictions) != len(references):
        raise DataError(f"{len(predictions)} predictions for {len(references)} references; give one each a question")
    matching = np.zeros(len(predictions), dtype=np.int64)
    annotators = np.zeros(len(predictions), dtype=np.int64)
    for row, (prediction, answers) in enumerate(zip(predictions, references, strict=True)):
        _check(row, prediction, answers)
        said, given = strip_spaces(prediction), [strip_spaces(answer) for answer in answers]
        if normalize == "always" or (normalize == "disputed" and len(set(given)) > 1):
            said, given = normalize_answer(said), [normalize_answer(answer) for answer in given]
        matching[row], annotators[row] = given.count(said), len(given)
    return Matches(matching, annotators)


def is_disputed(answers: Sequence[str]) -> bool:
    """Tell whether the annotators' answers, without the spaces around them, are not all equal.

    Example:
        >>> is_disputed(["yes"] * 10), is_disputed(["yes"] * 9 + ["Yes"])
        (False, True)
    """
    return len({strip_spaces(answer) for answer in answers}) > 1


def official_scores(matching: ArrayLike, annotators: ArrayLike = 10) -> NDArray[np.float64]:
    """Score an answer against each annotator's colleagues: `mean_i min(#{j != i: a_j = a} / 3, 1)`.

    With n of m annotators in agreement, n of the m subsets that leave one out hold n - 1 of them and m - n hold n:

        (n min((n - 1) / 3, 1) + (m - n) min(n / 3, 1)) / m,    for m = 10:  0  0.3  0.6  0.9  1  1 ...

    Args:
        matching: `[N]`, n: annotators who gave the answer.
        annotators: `[N]` or one number for all questions, m: all annotators.

    Returns:
        `[N]` float64 in [0, 1].

    Raises:
        DataError: A question has fewer than four annotators, so that not even full agreement scores 1.

    Example:
        >>> official_scores([0, 1, 2, 3, 4, 10]).round(6)
        array([0. , 0.3, 0.6, 0.9, 1. , 1. ])
    """
    n, m = _counts(matching, annotators, fewest=FEWEST_ANNOTATORS, form="official")
    return (n * np.minimum((n - 1) / AGREEING, 1.0) + (m - n) * np.minimum(n / AGREEING, 1.0)) / m


def simple_scores(matching: ArrayLike, annotators: ArrayLike = 10) -> NDArray[np.float64]:
    """Score an answer by `min(n / 3, 1)`, n being the annotators who gave it: the form that papers print.

    Args:
        matching: `[N]`, n.
        annotators: `[N]` or one number for all questions, all annotators.

    Returns:
        `[N]` float64 in [0, 1]; never below `official_scores`.

    Raises:
        DataError: A question has fewer than three annotators, so that not even full agreement scores 1.

    Example:
        >>> simple_scores([0, 1, 2, 3, 10]).round(4)
        array([0.    , 0.3333, 0.6667, 1.    , 1.    ])
    """
    n, _ = _counts(matching, annotators, fewest=AGREEING, form="simple")
    return np.minimum(n / AGREEING, 1.0)


def vqa_scores(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    form: Form = "official",
    normalize: Normalize = "disputed",
) -> NDArray[np.float64]:
    """VQA accuracy of every answer; its mean is the figure that is reported.

    Args:
        predictions: `[N]` answers.
        references: `[N]` lists of the annotators' answers, ten in the public data.
        form: "official": see `official_scores`; "simple": see `simple_scores`.
        normalize: See `count_matches`.

    Returns:
        `[N]` float64 in [0, 1].

    Raises:
        DataError: See `count_matches` and the two forms; or `form` is unknown.

    Example:
        >>> vqa_scores(["the net", "racket"], [["net"] * 3 + ["racket"] * 7] * 2).round(6)
        array([0.9, 1. ])
    """
    if form not in get_args(Form):
        raise DataError(f"form: unknown value {form!r}; use one of {', '.join(get_args(Form))}")
    scores = official_scores if form == "official" else simple_scores
    return scores(*count_matches(predictions, references, normalize))


def vqa_correct(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, normalize: Normalize = "disputed"
) -> NDArray[np.bool_]:
    """Tell for every answer whether any annotator gave it: the paper's H on VQA, in CM and flips.

    Args:
        predictions: `[N]` answers.
        references: `[N]` lists of the annotators' answers; one each is enough.
        normalize: See `count_matches`.

    Returns:
        `[N]` bool.

    Raises:
        DataError: See `count_matches`.

    Example:
        >>> vqa_correct(["2", "4"], [["2", "3"], ["2", "3"]])
        array([ True, False])
    """
    return count_matches(predictions, references, normalize).matching > 0


def _check(row: int, prediction: object, answers: object) -> None:
    if not isinstance(prediction, str):
        raise DataError(f"predictions[{row}]: an answer must be text, found {prediction!r:.60}")
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise DataError(f"references[{row}]: must be the list of the annotators' answers, found {answers!r:.60}")
    if not answers:
        raise DataError(f"references[{row}]: holds no answers; leave questions without annotation out")
    for answer in answers:
        if not isinstance(answer, str):
            raise DataError(f"references[{row}]: an annotator's answer must be text, found {answer!r:.60}")


def _counts(
    matching: ArrayLike, annotators: ArrayLike, *, fewest: int, form: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, m = np.broadcast_arrays(np.asarray(matching, dtype=np.float64), np.asarray(annotators, dtype=np.float64))
    few = np.flatnonzero(m < fewest)
    if few.size:
        raise DataError(
            f"references[{few[0]}]: the {form} accuracy needs at least {fewest} annotators, found {int(m[few[0]])}; "
            "with fewer not even full agreement scores 1. Where only one answer can be right, repeat it ten times"
        )
    return n, m
