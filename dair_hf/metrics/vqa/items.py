"""Predicted answers and annotations as metrics accept them: the public JSON files of VQA, rows of a dataset, or lists.

A prediction is an answer or, as in the public result files, an object with the id of its question:

    {"question_id": 458752000, "answer": "net"}

A reference is the list of the annotators' answers, or an object with this list, as in the public annotation files:

    {"question_id": 458752000, "answers": [{"answer": "net"}, ...], "answer_type": "other", "question_type": ...}

or as in the rows of a dataset, "answers": ["net", ...]. An annotation file, {"annotations": [...]}, may replace the
list of references. "row_id" may replace "question_id". If a question is asked about several edits of an image, an
"image_id" in all objects distinguishes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.metrics.json_items import pair_items, parse_item, read_name, short


class Prediction(NamedTuple):
    """Predicted answer to a question; the ids are None if the item has none."""

    question_id: str | None
    image_id: str | None
    answer: str
    where: str


class Reference(NamedTuple):
    """The annotators' answers to a question; ids and types are None if the item has none."""

    question_id: str | None
    image_id: str | None
    answers: tuple[str, ...]
    question_type: str | None
    answer_type: str | None
    where: str


def read_prediction(item: Any, where: str) -> Prediction:
    """Read one prediction."""
    if isinstance(item, str):
        return Prediction(None, None, item, where)
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: expected an answer, or an object with question_id and answer, found {short(item)}")
    if "answer" not in item:
        raise DataError(f"{where}: the key 'answer' is missing; found {', '.join(map(repr, item))}")
    return Prediction(*_ids(item, where), require_text(item["answer"], "answer", where), where)


def read_reference(item: Any, where: str) -> Reference:
    """Read one reference."""
    if isinstance(item, str):
        item = parse_item(item, where, f"expected the list of the annotators' answers, found {short(item)}")
    if not isinstance(item, Mapping):
        return Reference(None, None, read_answers(item, where), None, None, where)
    if "answers" not in item:
        raise DataError(f"{where}: the key 'answers' is missing; found {', '.join(map(repr, item))}")
    question_type, answer_type = (
        None if item.get(key) is None else require_text(item[key], key, where)
        for key in ("question_type", "answer_type")
    )
    return Reference(*_ids(item, where), read_answers(item["answers"], where), question_type, answer_type, where)


def read_predictions(items: Iterable[Any]) -> list[Prediction]:
    """Read predictions in any accepted shape, see `read_prediction`."""
    return [read_prediction(item, f"predictions[{index}]") for index, item in enumerate(items)]


def read_references(references: Any) -> list[Reference]:
    """Read references in any accepted shape, see `read_reference`; an annotation file stands for its list."""
    if not isinstance(references, Mapping):
        return [read_reference(item, f"references[{index}]") for index, item in enumerate(references)]
    annotations = _annotations(references, "references")
    return [read_reference(item, f"annotations[{index}]") for index, item in enumerate(annotations)]


def read_answers(answers: Any, where: str) -> tuple[str, ...]:
    """Read the annotators' answers to a question, a list of strings or of {"answer": string}."""
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise DataError(f"{where}: expected the list of the annotators' answers, found {short(answers)}")
    if not answers:
        raise DataError(f"{where}: the list of answers is empty; remove questions without annotation")
    texts = [answer if isinstance(answer, str) else _annotated_answer(answer, where) for answer in answers]
    return tuple(texts)


def require_text(value: Any, name: str, where: str) -> str:
    """Return the value if it is a string, else raise DataError."""
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} must be a string, found {short(value)}")
    return value


def pair_answers(
    predictions: Sequence[Prediction], references: Sequence[Reference]
) -> list[tuple[Prediction, Reference]]:
    """Pair predictions with references: by id if they have ids, else by position.

    The id is that of the question, with that of the image if all predictions and references have one.

    Returns:
        (prediction, reference) in the order of the references.

    Raises:
        DataError: Only some items have ids, an id is repeated, an id occurs on one side only, or the numbers of items
            without ids differ.
    """
    by_image = all(item.image_id is not None for items in (predictions, references) for item in items)

    def item_id(item: Prediction | Reference) -> str | None:
        if item.question_id is None or not by_image:
            return item.question_id
        return f"{item.question_id} (image {item.image_id})"

    hint = "" if by_image else ". If a question is asked about several images, give every item an image_id"
    return pair_items(predictions, references, item_id, "question_id", hint)


def _annotations(file: Mapping[str, Any], where: str) -> list[Any]:
    annotations = file.get("annotations")
    if not isinstance(annotations, list):
        raise DataError(
            f"{where}: expected an annotation file with the list 'annotations', or a list of references, found an "
            f"object with {', '.join(map(repr, file))}"
        )
    return annotations


def _ids(item: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    question, image = item.get("question_id", item.get("row_id")), item.get("image_id")
    return (
        None if question is None else read_name(question, "question_id", where),
        None if image is None else read_name(image, "image_id", where),
    )


def _annotated_answer(annotation: Any, where: str) -> str:
    if isinstance(annotation, dict):
        if "answer" not in annotation:
            raise DataError(
                f"{where}: the key 'answer' is missing in an annotation; found {', '.join(map(repr, annotation))}"
            )
        annotation = annotation["answer"]
    return require_text(annotation, "an annotator's answer", where)
