"""PairReport: the content of a pair report, its JSON file, and the page drawn from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any

import numpy as np

from dair_hf.data.view_columns import VIEWS
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import has_few_pairs
from dair_hf.io.files import FilePath, read_json

FORMAT = "dair_hf pair report 1"
JSON_FILE, PAGE_FILE = "pair_report.json", "pair_report.html"
# Columns of every report, with or without DAIR.
PAIR_COLUMNS = ("row_id", "partner", "loss_original", "loss_augmented", "consistency", "score")
SIZE, DOTS = 320, 200  # of the picture in a notebook, in pixels; pairs of a color in it, at most


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
            `weight_original` and `weight_augmented`, the gradient weights c and c~ (`build._gradient_weights`). A row
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
    pairs: dict[str, list[Any]] = field(default_factory=dict, repr=False)
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict, repr=False)
    losses: list[dict[str, Any]] = field(default_factory=list, repr=False)
    correctness: list[dict[str, Any]] = field(default_factory=list, repr=False)
    worst: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the summary, and the roots of both losses of pairs, the worst in orange."""
        losses = np.array([self.pairs.get(f"loss_{view}", []) for view in VIEWS], dtype=float)
        finite = np.isfinite(losses).all(0)
        roots = np.sqrt(losses.clip(min=0))
        x, y = SIZE * roots / (roots.max(initial=0, where=finite) or 1)
        worst = min(len(self.worst), DOTS)
        numbers = range(worst, x.size, 1 + x.size // DOTS), range(min(worst, x.size))
        others, shown = (
            "".join(f"M{x[pair]:.0f} {SIZE - y[pair]:.0f}h.01" for pair in chosen if finite[pair]) for chosen in numbers
        )
        known = {name: None if has_few_pairs(self.summary, name) else value for name, value in self.summary.items()}
        texts = (
            f"{name.replace('_', ' ')} {'-' if value is None else f'{value:.5g}'}" for name, value in known.items()
        )
        return (
            f"<b>{escape(self.title)}</b><br>{', '.join(texts)}<br>"
            f'<svg width="{SIZE}" height="{SIZE}" style="overflow: visible; margin: 8px" stroke-linecap="round">'
            f'<path d="M0 {SIZE}L{SIZE} 0" stroke="#e4e7eb"/><path d="{others}" stroke="#9aa5b1" stroke-width="4"/>'
            f'<path d="{shown}" stroke="#d55e00" stroke-width="4"/></svg><br>Each dot is a pair: the root of its '
            "original's loss to the right, of its partner's upwards. Orange: the worst, which `write_report` shows."
        )

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


def _json_value(value: Any) -> Any:
    """Convert a value to what JSON holds: numpy values to Python's, NaN and infinity to None."""
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
