"""PairReport: the content of a pair report, its JSON file, and the page drawn from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.io.files import FilePath, read_json

FORMAT = "dair_hf pair report 1"
JSON_FILE, PAGE_FILE = "pair_report.json", "pair_report.html"
# Columns of every report, with or without DAIR.
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
        return {"format": FORMAT, **{name: _json_value(value) for name, value in content.items()}}

    @classmethod
    def from_dict(cls, content: Any, where: str = "the report") -> PairReport:
        """Return the report with the content of `to_dict`; `where` names its source in errors."""
        if not is_report(content):
            raise DataError(f"{where}: expected a pair report with the format {FORMAT!r}")
        return cls(**{name: value for name, value in content.items() if name != "format"})

    @classmethod
    def read(cls, path: FilePath) -> PairReport:
        """Read the JSON file of a report."""
        return cls.from_dict(read_json(path), str(path))


def is_report(content: Any) -> bool:
    """Return whether a JSON value is the content of a pair report."""
    return isinstance(content, dict) and content.get("format") == FORMAT


def pair_name(pairs: dict[str, list[Any]], number: int) -> str:
    """Return the words for a pair: its `row_id`, and the number of its partner if it is not the first."""
    partner = pairs["partner"][number]
    return str(pairs["row_id"][number]) + (f", partner {partner}" if partner > 1 else "")


def _json_value(value: Any) -> Any:
    """Convert a value to what JSON holds: numpy values to Python's, NaN and infinity to None."""
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, np.ndarray):
        return _json_value(value.tolist())
    if isinstance(value, np.generic):
        return _json_value(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def share_text(value: float | None) -> str:
    """Write a share in percent."""
    return "–" if value is None or value != value else f"{value:.1%}".replace("%", " %")


def cm_text(metrics: dict[str, Any]) -> str:
    """Write CM in percent, if it is over enough pairs."""
    return share_text(None if has_few_pairs(metrics, "cm") else metrics["cm"])


def number_text(value: float | None) -> str:
    """Write a number with three digits."""
    return "–" if value is None or value != value else f"{value:.3g}"
