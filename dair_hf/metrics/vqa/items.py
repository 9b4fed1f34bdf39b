"""Predicted answers and annotations as they come: the public JSON of VQA, rows of a dataset, or bare lists.

A prediction is the answer as text, or, as in the public result files, an object with the id of its question:
    {"question_id": 458752000, "answer": "net"}
A reference is the list of the annotators' answers, or an object that holds it, as in the public annotation files
    {"question_id": 458752000, "answers": [{"answer": "net"}, ...], "answer_type": "other", "question_type": ...}
or as in the rows of a dataset, `"answers": ["net", ...]`. A whole annotation file, {"annotations": [...]}, stands for
its list. Objects may have `image_id` too: one question may be asked about several edits of an image, and then the id is
the question's and the image's together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dair_hf.errors import DataError
from dair_hf.io.files import decode_json, parse_json
from dair_hf.metrics.json_lines import parse_lines, read_text


class Prediction(NamedTuple):
    """One predicted answer; `question_id` and `image_id` are None where the item had none."""

    question_id: str | None
    image_id: str | None
    answer: str
    where: str


class Reference(NamedTuple):
    """The annotators' answers to one question; ids and types are None where the item had none."""

    question_id: str | None
    image_id: str | None
    answers: tuple[str, ...]
    question_type: str | None
    answer_type: str | None
    where: str


Item = TypeVar("Item", Prediction, Reference)


def read_prediction(item: Any, where: str) -> Prediction:
    """Read one prediction; `where` is its place in messages, such as "predictions[3]".

    Raises:
        DataError: No answer, or one that is not text.

    Example:
        >>> read_prediction({"question_id": 1, "answer": "net"}, "predictions[0]")[:3]
        ('1', None, 'net')
    """
    if isinstance(item, str):
        return Prediction(None, None, item, where)
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: must be an answer or an object with 'question_id' and 'answer', found {item!r:.60}")
    if "answer" not in item:
        raise DataError(f"{where}: the key 'answer' is missing; found {', '.join(map(repr, item))}")
    return Prediction(*_ids(item, where), _text(item["answer"], "answer", where), where)


def read_reference(item: Any, where: str) -> Reference:
    """Read one reference; `where` is its place in messages.

    Raises:
        DataError: No list of answers, an empty one, or one that holds something else than answers.

    Example:
        >>> read_reference({"question_id": 1, "answers": [{"answer": "net"}], "answer_type": "other"}, "r")[:3]
        ('1', None, ('net',))
    """
    if isinstance(item, str):
        item = _from_json(item, where)
    if not isinstance(item, Mapping):
        return Reference(None, None, _answers(item, where), None, None, where)
    if "answers" not in item:
        raise DataError(f"{where}: the key 'answers' is missing; found {', '.join(map(repr, item))}")
    types = [
        None if item.get(key) is None else _text(item[key], key, where) for key in ("question_type", "answer_type")
    ]
    return Reference(*_ids(item, where), _answers(item["answers"], where), types[0], types[1], where)


def annotations_of(references: Any, where: str = "references") -> tuple[Sequence[Any], str]:
    """The list of annotations and what it is called in messages: a whole annotation file stands for its list.

    Args:
        references: References, or the content of an annotation file.
        where: Where they come from, for the message.

    Raises:
        DataError: An object without the list `annotations`.

    Example:
        >>> annotations_of({"info": {}, "annotations": [{"answers": ["net"]}]})
        ([{'answers': ['net']}], 'annotations')
    """
    if not isinstance(references, Mapping):
        return list(references), "references"
    found = references.get("annotations")
    if not isinstance(found, list):
        raise DataError(
            f"{where}: an object without the list 'annotations' (found {', '.join(map(repr, references))}); "
            "give an annotation file or a list of references"
        )
    return found, "annotations"


def read_predictions(items: Iterable[Any]) -> list[Prediction]:
    """Read predictions in any accepted shape; see `read_prediction`."""
    return [read_prediction(item, f"predictions[{index}]") for index, item in enumerate(items)]


def read_references(references: Any) -> list[Reference]:
    """Read references in any accepted shape; see `read_reference` and `annotations_of`."""
    items, name = annotations_of(references)
    return [read_reference(item, f"{name}[{index}]") for index, item in enumerate(items)]


def read_prediction_file(path: str) -> list[Prediction]:
    """Read a public result file (a JSON list of objects), or JSON lines of predictions.

    Raises:
        DataError: The file cannot be read, or a prediction in it; with file and place.
    """
    return [read_prediction(item, where) for where, item in _items_of(path, lambda found: not isinstance(found, list))]


def read_reference_file(path: str) -> list[Reference]:
    """Read a public annotation file, or JSON lines of references.

    Raises:
        DataError: The file cannot be read, or a reference in it; with file and place.
    """
    return [read_reference(item, where) for where, item in _items_of(path, _is_one_reference)]


def pair_answers(
    predictions: Sequence[Prediction], references: Sequence[Reference]
) -> list[tuple[Prediction, Reference]]:
    """Bring predictions and references together: by id where they have ids, else by position.

    The id is that of the question, together with that of the image where all items of both sides have one.

    Returns:
        (prediction, reference) in the order of the references.

    Raises:
        DataError: Ids on one side only or for some items only, ids that occur twice or on one side only, or without ids
            different numbers.
    """
    named = [_have_ids(predictions, "predictions"), _have_ids(references, "references")]
    if named[0] != named[1]:
        with_ids, without = ("predictions", "references") if named[0] else ("references", "predictions")
        raise DataError(f"{with_ids} have ids and {without} have none; give both a question_id, or neither")
    if not named[0]:
        if len(predictions) != len(references):
            raise DataError(
                f"{len(predictions)} predictions for {len(references)} references; "
                "give both a question_id to match by it"
            )
        return list(zip(predictions, references, strict=True))
    by_image = all(item.image_id is not None for item in predictions) and all(
        reference.image_id is not None for reference in references
    )
    found, wanted = _by_id(predictions, by_image), _by_id(references, by_image)
    missing, surplus = [key for key in wanted if key not in found], [key for key in found if key not in wanted]
    if missing or surplus:
        raise DataError(
            f"ids of predictions and references differ: {_examples(missing)} without prediction, "
            f"{_examples(surplus)} without reference; answer every question exactly once"
        )
    return [(found[key], reference) for key, reference in wanted.items()]


def _items_of(path: str, is_one: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """(place, item) of every item in a file: of one JSON document, or of one a line.

    Args:
        path: The file.
        is_one: Tells a document that is a single item, so a file of one line, from a list of items.
    """
    text = read_text(path)
    try:
        document = decode_json(text)
    except json.JSONDecodeError:
        first = text.lstrip().partition("\n")[0]
        if first:
            try:
                decode_json(first)
            except json.JSONDecodeError:  # not JSON lines either: the message is about the document
                parse_json(text.encode(), path)
        return parse_lines(text, path)
    name = ""
    if isinstance(document, Mapping) and "annotations" in document:
        document, name = annotations_of(document, path)
    elif is_one(document):
        return [(f"{path}:1", document)]
    return [(f"{path}: {name}[{index}]", item) for index, item in enumerate(document)]


def _is_one_reference(document: Any) -> bool:
    """Tell one question's list of answers from a list of references."""
    if not isinstance(document, list):
        return True
    return bool(document) and all(
        isinstance(entry, str) or (isinstance(entry, Mapping) and "answer" in entry and "question_id" not in entry)
        for entry in document
    )


def _have_ids(items: Sequence[Item], name: str) -> bool:
    without = [item for item in items if item.question_id is None]
    if without and len(without) < len(items):
        raise DataError(
            f"{name}: {len(without)} of {len(items)} items have no id, the first at {without[0].where}; "
            "give every item a question_id, or none"
        )
    return bool(items) and not without


def _by_id(items: Sequence[Item], by_image: bool) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for item in items:
        key = f"{item.question_id} (image {item.image_id})" if by_image else str(item.question_id)
        if key in found:
            hint = "" if by_image else "; where a question is asked about several images, give both sides an image_id"
            raise DataError(f"{item.where}: the id {key} is already at {found[key].where}; ids must be unique{hint}")
        found[key] = item
    return found


def _examples(keys: Sequence[str]) -> str:
    return f"{len(keys)} (e.g. {', '.join(sorted(keys)[:3])})" if keys else "0"


def _ids(item: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    found = []
    for name, value in (
        ("question_id", item.get("question_id", item.get("row_id"))),
        ("image_id", item.get("image_id")),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | np.integer)):
            raise DataError(f"{where}: {name} must be a number or text, found {value!r:.60}")
        found.append(None if value is None else str(value))
    return found[0], found[1]


def _answers(answers: Any, where: str) -> tuple[str, ...]:
    if not isinstance(answers, list | tuple):
        raise DataError(f"{where}: must be the list of the annotators' answers, found {answers!r:.60}")
    if not answers:
        raise DataError(f"{where}: holds no answers; leave questions without annotation out")
    return tuple(
        [
            answer if isinstance(answer, str) else _text(_inner(answer, where), "an annotator's answer", where)
            for answer in answers
        ]
    )


def _inner(answer: Any, where: str) -> Any:
    if not isinstance(answer, dict):
        return answer
    if "answer" not in answer:
        raise DataError(f"{where}: an annotator's entry lacks the key 'answer'; found {', '.join(map(repr, answer))}")
    return answer["answer"]


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} must be text, found {value!r:.60}")
    return value


def _from_json(text: str, where: str) -> Any:
    try:
        return decode_json(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON at column {error.colno} ({error.msg}): {text!r:.60}; give the list of the annotators' "
            "answers"
        ) from None
