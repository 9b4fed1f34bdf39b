"""Base class of the metrics for the `evaluate` library."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any

import datasets
import evaluate

_JSON_TEXT = functools.partial(json.dumps, default=methodcaller("tolist"))  # of numpy and torch
DAIR_CITATION = """
@article{huang2022robustness,
  title = {Robustness through Data Augmentation Loss Consistency},
  author = {Huang, Tianjian and Halbe, Shaunak and Sankar, Chinnadhurai and Amini, Pooyan and Kottur, Satwik and
            Geramifard, Alborz and Razaviyayn, Meisam and Beirami, Ahmad},
  journal = {Transactions on Machine Learning Research},
  year = {2022}
}
"""


class JsonMetric(evaluate.Metric):
    """Metric of any JSON values.

    `evaluate` stores inputs with one fixed type, so every item is stored as its JSON text. A metric defines the texts
    below and `_score`. It imports this module, not this class, because `evaluate.load` takes the first metric class in
    a metric's module.
    """

    DESCRIPTION: str
    CITATION: str
    INPUTS: str
    EXTRA_INPUTS: tuple[str, ...] = ()  # which `_items` turns into predictions and references
    _score: Callable[..., dict[str, Any]]

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.DESCRIPTION,
            citation=self.CITATION,
            inputs_description=self.INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _items(self, predictions: Any, references: Any) -> tuple[Iterable[Any], Iterable[Any]]:
        return predictions, references

    def add(self, *, prediction: Any = None, reference: Any = None, **inputs: Any) -> None:
        """Add one item."""
        # `evaluate.combine` passes the names of the columns.
        prediction, reference = inputs.pop("predictions", prediction), inputs.pop("references", reference)
        self.add_batch(predictions=[prediction], references=[reference], **inputs)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **inputs: Any) -> None:
        """Add several items."""
        extra = {name: inputs.pop(name, None) for name in self.EXTRA_INPUTS}
        texts = [list(map(_JSON_TEXT, items)) for items in self._items(predictions, references, **extra)]
        super().add_batch(predictions=texts[0], references=texts[1], **inputs)

    def compute(self, *, predictions: Any = None, references: Any = None, **settings: Any) -> dict[str, Any] | None:
        """Compute the metric over the items given here and all items added before."""
        extra = {name: settings.pop(name, None) for name in self.EXTRA_INPUTS}
        inputs = {"predictions": predictions, "references": references} | extra
        if any(value is not None for value in inputs.values()):
            self.add_batch(**inputs)
        return super().compute(**settings)

    def _compute(self, predictions: Sequence[str], references: Sequence[str], **settings: Any) -> dict[str, Any]:
        return self._score([*map(json.loads, predictions)], [*map(json.loads, references)], **settings)
