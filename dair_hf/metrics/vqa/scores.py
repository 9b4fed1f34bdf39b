"""VQA accuracy as in the official evaluation: for single answers, and for many questions with breakdown and intervals.

A prediction is an answer or, as in the public result files, an object with the id of its question:

    {"question_id": 458752000, "answer": "net"}

A reference is the list of the annotators' answers, or an object with this list, as in the public annotation files:

    {"question_id": 458752000, "answers": [{"answer": "net"}, ...], "answer_type": "other", "question_type": ...}

or as in the rows of a dataset, "answers": ["net", ...]. An annotation file, {"annotations": [...]}, may replace the
list of references. "row_id" may replace "question_id". If a question is asked about several edits of an image, an
"image_id" in all objects distinguishes them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import ratios_with_intervals
from dair_hf.metrics.items import Item, pair_items, parse_item, read_item
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces

Normalize = Literal["disputed", "always", "never"]

_AGREEING = 3  # this many annotators make an answer fully correct
_PUBLIC_ANNOTATORS = 10
_EDITED = re.compile(r"\A0*(\d+)(?:_.*)?\Z", re.DOTALL)


def _count_matches(
    predictions: Sequence[str], references: Sequence[Sequence[Any]], normalize: Normalize = "disputed"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the annotators who gave the predicted answer, and all annotators."""
    if normalize not in get_args(Normalize):  # which would mean "never"
        raise DataError(f"normalize: expected one of {', '.join(get_args(Normalize))}, got {normalize!r}")
    matching = np.zeros(len(predictions), dtype=np.int64)
    annotators = np.zeros(len(predictions), dtype=np.int64)
    for row, (prediction, answers) in enumerate(zip(predictions, references, strict=True)):
        predicted, given = strip_spaces(prediction), _stripped(answers, f"references[{row}]")
        if normalize == "always" or (normalize == "disputed" and len(set(given)) > 1):
            predicted, given = normalize_answer(predicted), [normalize_answer(answer) for answer in given]
        matching[row], annotators[row] = given.count(predicted), len(given)
    return matching, annotators


def _stripped(answers: Any, where: str) -> list[str]:
    """Return the annotators' answers, strings or {"answer": string}, without the spaces around them."""
    if isinstance(answers, str) or not isinstance(answers, Sequence) or not answers:  # a string has letters, too
        raise DataError(f"{where}: expected the list of the annotators' answers, got {answers!r:.60}")
    return [strip_spaces(answer if isinstance(answer, str) else answer["answer"]) for answer in answers]


def _official_scores(matching: ArrayLike, annotators: ArrayLike = 10) -> NDArray[np.float64]:
    """Compute the official VQA accuracy `mean_i min(#{j != i: a_j = a} / 3, 1)`.

    If n of m annotators gave the answer, n of the m subsets without one annotator have n - 1 of them, and the other
    m - n subsets have n:

        (n min((n - 1) / 3, 1) + (m - n) min(n / 3, 1)) / m,    for m = 10:  0  0.3  0.6  0.9  1  1 ...
    """
    n, m = np.broadcast_arrays(np.asarray(matching, dtype=np.float64), np.asarray(annotators, dtype=np.float64))
    if (m <= _AGREEING).any():  # even full agreement would score below 1
        where = f"references[{np.flatnonzero(m <= _AGREEING)[0]}]"
        raise DataError(f"{where}: expected at least 4 annotators, got {m.min():g}; repeat a single answer ten times")
    return (n * np.minimum((n - 1) / _AGREEING, 1.0) + (m - n) * np.minimum(n / _AGREEING, 1.0)) / m


def _simple_scores(matching: ArrayLike) -> NDArray[np.float64]:
    """Compute the VQA accuracy in the form that papers print, `min(n / 3, 1)`; never below `_official_scores`."""
    return np.minimum(np.asarray(matching, dtype=np.float64) / _AGREEING, 1.0)


def vqa_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, normalize: Normalize = "disputed"
) -> NDArray[np.float64]:
    """Compute the official VQA accuracy of each answer; see `_official_scores`."""
    return _official_scores(*_count_matches(predictions, references, normalize))


def vqa_correct(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, normalize: Normalize = "disputed"
) -> NDArray[np.bool_]:
    """Return for each answer whether any annotator gave it: the paper's H for VQA, in CM and flips.

    Args:
        predictions: `[N]` answers.
        references: `[N]` lists of the annotators' answers, at least one each.
        normalize: See `_count_matches`.

    Returns:
        `[N]` bool.

    Example:
        >>> vqa_correct(["2", "4"], [["2", "3"], ["2", "3"]])
        array([ True, False])
    """
    return _count_matches(predictions, references, normalize)[0] > 0


def vqa_accuracy(
    predictions: Iterable[Any], references: Any, normalize: Normalize = "disputed", **settings: Any
) -> dict[str, Any]:
    """Compute the VQA accuracy and related figures from items in any accepted shape.

    Args:
        predictions: Items (see the top of this module), matched by id if they have ids, else by position.
        references: Items with the annotators' answers, or an annotation file as an object.
        normalize: See `_count_matches`.
        **settings: `intervals` and `confidence` of `dair_hf.evaluation.statistics.ratios_with_intervals`.

    Returns:
        The figures that the README of the metric `vqa_accuracy` lists.

    Example:
        >>> results = vqa_accuracy(["net", "red"], [["net"] * 10, ["blue"] * 9 + ["red"]], intervals=False)
        >>> round(results["vqa_accuracy"], 6), results["vqa_correct"]
        (0.65, 1.0)
    """
    sides = [_read("predictions", predictions, "answer"), _read("references", reference_list(references), "answers")]
    if all(item.value.get("image_id") is not None for side in sides for item in side):
        sides = [
            [i._replace(row_id=i.row_id and f"{i.row_id} of {i.value['image_id']}") for i in side] for side in sides
        ]
    pairs = pair_items(*sides)
    answers = [prediction.value["answer"] for prediction, _ in pairs]
    questions = [reference.value for _, reference in pairs]
    matching, annotators = _count_matches(answers, [question["answers"] for question in questions], normalize)
    scores, ones = _official_scores(matching, annotators), np.ones(len(pairs))
    ratios = {
        "vqa_accuracy": (scores, ones),
        "vqa_accuracy_simple": (_simple_scores(matching), ones),
        "vqa_correct": (matching > 0, ones),
    }
    return {
        **ratios_with_intervals(ratios, _images(questions), **settings),
        "by_answer_type": _by_type(scores, [question.get("answer_type") for question in questions]),
        "by_question_type": _by_type(scores, [question.get("question_type") for question in questions]),
        "questions": len(pairs),
        "undisputed": sum(len(set(_stripped(question["answers"], ""))) == 1 for question in questions),
        "not_ten_annotators": int((annotators != _PUBLIC_ANNOTATORS).sum()),
        "empty_predictions": sum(not answer.strip() for answer in answers),
        "normalize": normalize,
    }


def reference_list(references: Any) -> Any:
    """Return the references of an annotation file; other references are returned unchanged."""
    return references["annotations"] if isinstance(references, Mapping) else references


def _read(kind: str, items: Iterable[Any], key: str) -> list[Item]:
    """Return items whose values are objects with the answer, or the annotators' answers, under the key."""
    found = []
    for number, item in enumerate(items):
        where = f"{kind}[{number}]"
        if kind == "references" and isinstance(item, str):
            item = parse_item(item, where)  # a Space passes lists as text; a prediction in JSON is an answer
        fields = item if isinstance(item, Mapping) else {key: item}
        found.append(read_item(fields, fields, where))
    return found


def _images(questions: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Return the original image of each question; the id of an edited image is "<number>_<removed object>".

    Other ids ("COCO_val2014_000000000042") name an original image.
    """
    images = [question.get("image_id") for question in questions]
    return None if None in images else [_EDITED.sub(r"\1", str(image)) for image in images]


def _by_type(scores: NDArray[np.float64], types: Sequence[str | None]) -> dict[str, dict[str, float]]:
    scores_of: dict[str, list[float]] = defaultdict(list)
    for score, type_name in zip(scores, types, strict=True):
        if type_name is not None:
            scores_of[type_name].append(score)
    return {
        name: {"vqa_accuracy": float(np.mean(values)), "questions": len(values)}
        for name, values in sorted(scores_of.items())
    }
