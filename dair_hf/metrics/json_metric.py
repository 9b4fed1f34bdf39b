"""Base class of the metrics for the `evaluate` library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import datasets
import evaluate

from dair_hf.errors import DataError

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
    below, `_compute`, and `_encode`: (predictions, references, further inputs) -> JSON texts of both. It imports this
    module, not this class, because `evaluate.load` takes the first metric class in a metric's module.

    Attributes:
        DESCRIPTION: Text of `metric.description`.
        CITATION: Text of `metric.citation`.
        INPUTS: Text of `metric.inputs_description`.
        EXTRA_INPUTS: Names of inputs besides `predictions` and `references`.
    """

    DESCRIPTION: str
    CITATION: str
    INPUTS: str
    EXTRA_INPUTS: tuple[str, ...] = ()
    _encode: Callable[..., tuple[list[str], list[str]]]

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.DESCRIPTION,
            citation=self.CITATION,
            inputs_description=self.INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def add(self, *, prediction: Any = None, reference: Any = None, **inputs: Any) -> None:
        """Add one item."""
        # `evaluate.combine` passes the names of the columns.
        prediction, reference = inputs.pop("predictions", prediction), inputs.pop("references", reference)
        self.add_batch(predictions=[prediction], references=[reference], **inputs)

    def add_batch(
        self, *, predictions: Iterable[Any] | None = None, references: Iterable[Any] | None = None, **inputs: Any
    ) -> None:
        """Add several items."""
        extra = {name: inputs.pop(name, None) for name in self.EXTRA_INPUTS}
        if (predictions is None) != (references is None) and not any(value is not None for value in extra.values()):
            raise DataError("predictions and references: only one of them was given; give both")
        texts = self._encode(predictions, references, **extra)
        super().add_batch(predictions=texts[0], references=texts[1], **inputs)

    def compute(
        self, *, predictions: Iterable[Any] | None = None, references: Iterable[Any] | None = None, **settings: Any
    ) -> dict[str, Any] | None:
        """Compute the metric over the items given here and all items added before."""
        extra = {name: settings.pop(name, None) for name in self.EXTRA_INPUTS}
        inputs = {"predictions": predictions, "references": references} | extra
        if any(value is not None for value in inputs.values()):
            self.add_batch(**inputs)
        return super().compute(**settings)
