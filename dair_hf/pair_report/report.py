"""PairReport: the content of a pair report, its JSON file, and the page drawn from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.io.files import FilePath, read_json

FORMAT = "dair_hf pair report 1"
JSON_FILE, PAGE_FILE = "pair_report.json", "pair_report.html"
# Columns of every report; those of DAIR are missing in others.
PAIR_COLUMNS = ("row_id", "partner", "loss_original", "loss_augmented", "consistency", "score")


@dataclass
class PairReport:
    """Content of a pair report. Losses are in nats per row; undefined numbers are None.

    The JSON file holds these attributes and `format`; the page is drawn from them alone.

    Attributes:
        title: Title of the page.
        settings: What was reported on: `model`, `method`, `steps` (optimizer steps taken), and for methods with R
            `regularizer`, `dair_lambda` (None with auto before training) and `normalization`, its unit.
        summary: `rows`, `pairs`; means over the pairs `loss_original`, `loss_augmented`, `consistency` (R_sq) and
            `inconsistency` (rho = E[R_sq] / E[(l + l~) / 2]); `unlearned_share`, if the run used DAIR;
            `steps_per_pair`, how often training saw a pair on average, 0 if the ranking is by the final model alone;
            `share_of_worst`, the part of all scores that the worst 5 % of the pairs hold; with an evaluator its
            metrics, such as `cm`.
        pairs: Columns with one value per pair, worst first: `row_id`, `partner` (number of the partner of its row, from
            1), `loss_original`, `loss_augmented`, `consistency`, `score` (see `scores.disagreement`), and for DAIR
            `weight_original` and `weight_augmented`, the gradient weights c and c~ (`build.gradient_weights_of`). A row
            with several partners is as many pairs, each with the same original.
        curves: Name -> `step` and `value`, lists, as the trainer logged them.
        losses: One entry per grouping: `name`, and `groups` with `name`, `pairs`, `loss_original`, `loss_augmented`,
            `inconsistency`.
        correctness: One entry per grouping: `name`, and `groups` with `name`, `pairs`, `cm`, `cm_numerator`,
            `cm_denominator`, `both_correct`, `pos_to_neg`, `neg_to_pos`, `neg_to_neg`. Empty without an evaluator.
        worst: The pairs that are shown, worst first: `number` (position in `pairs`) and `fields`
            (`contents.PairContents`); with an evaluator `correct`, of both views, and `answer`, a field.

    Example:
        >>> pair = ["a/0", 1, 4.0, 2.25, 0.25, 0.25]
        >>> report = PairReport("Pairs", pairs={name: [value] for name, value in zip(PAIR_COLUMNS, pair)})
        >>> PairReport.from_dict(report.to_dict()) == report
        True
    """

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    pairs: dict[str, list[Any]] = field(default_factory=dict)
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    losses: list[dict[str, Any]] = field(default_factory=list)
    correctness: list[dict[str, Any]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        content = {name.name: getattr(self, name.name) for name in fields(self)}
        return {"format": FORMAT, **{name: json_value(value) for name, value in content.items()}}

    @classmethod
    def from_dict(cls, content: Any, where: str = "the report") -> PairReport:
        """Return the report with some content.

        Args:
            content: Value of `to_dict`.
            where: Name of its source, for messages.

        Raises:
            DataError: It is no content of a pair report.
        """
        names = {name.name: name.default_factory for name in fields(cls)}
        if not is_report(content):
            raise DataError(f"{where}: is no pair report ({FORMAT!r}); give the {JSON_FILE} of one")
        values = {name: value for name, value in content.items() if name != "format"}
        if set(values) != set(names):
            raise DataError(f"{where}: holds {sorted(values)}, not {sorted(names)}; write the report anew")
        pairs = values["pairs"]
        if not isinstance(pairs, dict) or not set(PAIR_COLUMNS) <= set(pairs):
            missing = sorted(set(PAIR_COLUMNS) - set(pairs if isinstance(pairs, dict) else ()))
            raise DataError(f"{where}: its pairs lack {', '.join(missing)}; write the report anew")
        count = len(pairs["row_id"]) if isinstance(pairs["row_id"], list) else 0
        if not count or any(not isinstance(column, list) or len(column) != count for column in pairs.values()):
            raise DataError(f"{where}: its pairs are no columns of equal length >= 1; write the report anew")
        return cls(**values)

    def shortened(self, worst: int) -> PairReport:
        """Return the report with fewer pairs shown.

        Args:
            worst: Number of pairs that are shown, >= 1.

        Raises:
            DataError: There are more pairs, but the report holds the contents of fewer than `worst`.
        """
        if len(self.worst) < min(worst, len(self.pairs["row_id"])):
            raise DataError(
                f"worst={worst}: the report holds the contents of {len(self.worst)} pairs; give at most as many, or "
                "make the report anew"
            )
        return replace(self, worst=self.worst[:worst])

    @classmethod
    def read(cls, path: FilePath) -> PairReport:
        """Read the JSON file of a report.

        Raises:
            DataError: The file cannot be read or holds something else.
        """
        return cls.from_dict(read_json(path, "write the report anew"), str(path))


def is_report(content: Any) -> bool:
    """Return whether a JSON value is the content of a pair report."""
    return isinstance(content, dict) and content.get("format") == FORMAT


def pair_name(pairs: dict[str, list[Any]], number: int) -> str:
    """Return the words for a pair: its `row_id`, and the number of its partner if it is not the first.

    Args:
        pairs: Columns `PairReport.pairs`.
        number: Position of the pair.

    Example:
        >>> pair_name({"row_id": ["a", "a"], "partner": [2, 1]}, 0)
        'a, partner 2'
    """
    partner = pairs["partner"][number]
    return str(pairs["row_id"][number]) + (f", partner {partner}" if partner > 1 else "")


def json_value(value: Any) -> Any:
    """Convert a value to what JSON holds: numpy values to Python's, NaN and infinity to None."""
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    if isinstance(value, np.generic):
        return json_value(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def share_text(value: float | None) -> str:
    """Write a share in percent.

    Example:
        >>> share_text(0.1234), share_text(None)
        ('12.3 %', '–')
    """
    return "–" if value is None or value != value else f"{value:.1%}".replace("%", " %")


def cm_text(metrics: dict[str, Any]) -> str:
    """Write CM in percent, if it is over enough pairs."""
    return share_text(None if has_few_pairs(metrics, "cm") else metrics["cm"])


def number_text(value: float | None) -> str:
    """Write a number with three digits."""
    return "–" if value is None or value != value else f"{value:.3g}"
