"""Answer vocabulary: the classes of a VQA model, and answers as soft targets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, Features, List, Value

from dair_hf.errors import DataError
from dair_hf.io.files import read_json, write_json
from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces

ANSWERS = "answers"
ANSWER_IDS = "answer_ids"
ANSWER_SCORES = "answer_scores"
DEFAULT_SIZE = 3000  # of the paper and of the SAAA network
TARGET_FEATURES: Mapping[str, Any] = {ANSWER_IDS: List(Value("int32")), ANSWER_SCORES: List(Value("float32"))}

_FIELDS = ("answers", "spellings", "counts")


@dataclass(frozen=True, repr=False)
class AnswerVocabulary:
    """The most frequent answers of the training annotators, as classes.

    Answers are counted after the normalization of the official evaluation, so "two" and "2" are one class. The
    evaluation itself does not normalize if all annotators wrote the same answer, so a class is predicted in its most
    frequent spelling: "t-shirt", not "t shirt".

    Attributes:
        answers: `[A]` normalized answers by descending frequency, ties in alphabetical order.
        spellings: `[A]` texts to predict.
        counts: `[A]` number of annotators' answers in each class.

    Raises:
        DataError: The three differ in length, or an answer is empty, not normalized or repeated.

    Example:
        >>> vocabulary = AnswerVocabulary.from_answers([["two", "2", "2", "the cat"], ["a dog", "cat"]], size=2)
        >>> vocabulary.answers, vocabulary.spellings, vocabulary.counts
        (('2', 'cat'), ('2', 'cat'), (3, 2))
        >>> vocabulary.encode(["Two", "2", "dog", "cat"])
        ([0, 1], [0.5, 0.25])
    """

    answers: tuple[str, ...]
    spellings: tuple[str, ...]
    counts: tuple[int, ...]
    _ids: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.answers:
            raise DataError("answer vocabulary: contains no answers; build it from annotated questions")
        if not len(self.answers) == len(self.spellings) == len(self.counts):
            raise DataError(
                f"answer vocabulary: {len(self.answers)} answers, {len(self.spellings)} spellings and "
                f"{len(self.counts)} counts; give one of each per class"
            )
        ids: dict[str, int] = {}
        for number, (answer, spelling) in enumerate(zip(self.answers, self.spellings, strict=True)):
            if not answer or normalize_answer(spelling) != answer:
                raise DataError(
                    f"answer vocabulary: class {number} is {answer!r}, but its spelling {spelling!r} normalizes to "
                    f"{normalize_answer(spelling)!r}"
                )
            if ids.setdefault(answer, number) != number:
                raise DataError(f"answer vocabulary: classes {ids[answer]} and {number} are both {answer!r}")
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def from_answers(cls, answers: Iterable[Sequence[str]], size: int = DEFAULT_SIZE) -> AnswerVocabulary:
        """Build the vocabulary from the annotators' answers to the training questions.

        Args:
            answers: Annotators' answers to each question; may be empty. Answers that are empty after normalization
                ("the", "?") are ignored.
            size: Maximal number of classes.

        Raises:
            DataError: `size` is not positive, or there is no answer.
        """
        if size < 1:
            raise DataError(f"answer vocabulary: size={size} must be at least 1; {DEFAULT_SIZE} is usual on VQA v2")
        written = Counter(strip_spaces(answer) for question_answers in answers for answer in question_answers)
        counts: Counter[str] = Counter()
        spellings: dict[str, str] = {}
        for spelling, count in sorted(written.items(), key=lambda item: (-item[1], item[0])):
            answer = normalize_answer(spelling)
            counts[answer] += count
            spellings.setdefault(answer, spelling)
        del counts[""]
        frequent = sorted(counts, key=lambda answer: (-counts[answer], answer))[:size]
        return cls(
            tuple(frequent), tuple(map(spellings.__getitem__, frequent)), tuple(map(counts.__getitem__, frequent))
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AnswerVocabulary:
        """Load a saved vocabulary.

        Raises:
            DataError: The file is missing or contains something else.
        """
        content = read_json(path)
        if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _FIELDS):
            raise DataError(
                f"{path}: expected an answer vocabulary, an object with the lists {', '.join(_FIELDS)}; give a file "
                "that AnswerVocabulary.save wrote"
            )
        for name, kind in zip(_FIELDS, (str, str, int), strict=True):
            wrong = [value for value in content[name] if not isinstance(value, kind)]
            if wrong:
                raise DataError(f"{path}: {name} contains {wrong[0]!r:.60}, expected {kind.__name__}")
        try:
            return cls(*(tuple(content[name]) for name in _FIELDS))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save as JSON, atomically."""
        write_json(path, {name: list(getattr(self, name)) for name in _FIELDS})

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        return f"AnswerVocabulary({len(self)} answers)"

    @property
    def id2label(self) -> dict[int, str]:
        """Class -> spelling, for the configuration of a model."""
        return dict(enumerate(self.spellings))

    def encode(self, answers: Sequence[str]) -> tuple[list[int], list[float]]:
        """Return the soft targets of one question: the share of annotators who gave each class.

        Args:
            answers: Annotators' answers.

        Returns:
            Distinct classes in ascending order, and their scores, number of annotators / all annotators. Answers
            outside the vocabulary have no class, but their annotators count.
        """
        counts = Counter(self._ids.get(normalize_answer(answer)) for answer in answers)
        del counts[None]
        classes = sorted(number for number in counts if number is not None)
        return classes, [counts[number] / len(answers) for number in classes]

    def encode_batch(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Encode the column `answers` of a batch of rows; None stays None. See `encode_answers`."""
        encoded = [(None, None) if answers is None else self.encode(answers) for answers in batch[ANSWERS]]
        return {ANSWER_IDS: [ids for ids, _ in encoded], ANSWER_SCORES: [scores for _, scores in encoded]}

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the spellings of classes.

        Raises:
            DataError: There is no such class.
        """
        numbers = [int(number) for number in ids]
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise DataError(f"answer vocabulary: no class {wrong[0]}; classes are 0 to {len(self) - 1}")
        return [self.spellings[number] for number in numbers]


def encode_answers(rows: Dataset, vocabulary: AnswerVocabulary) -> Dataset:
    """Add the soft targets of every row: `answer_ids` (list of int32) and `answer_scores` (list of float32).

    Args:
        rows: Rows or edits with the column `answers`, lists of text.
        vocabulary: Vocabulary of the training rows.

    Returns:
        The rows with both columns, which are empty lists if a row has no answer in the vocabulary.

    Raises:
        DataError: The rows have no column `answers`.

    Example:
        >>> vocabulary = AnswerVocabulary.from_answers([["cat", "cat", "dog"]])
        >>> rows = Dataset.from_dict({"answers": [["dog", "cat", "a cat", "cow"], ["cow"]]})
        >>> encode_answers(rows, vocabulary)["answer_ids"][:]
        [[0, 1], []]
    """
    if ANSWERS not in rows.column_names:
        raise DataError(f"column {ANSWERS!r} is missing; the data has {rows.column_names}")
    features = Features({**rows.features, **TARGET_FEATURES})
    return rows.map(vocabulary.encode_batch, batched=True, features=features, desc="Encoding answers")
