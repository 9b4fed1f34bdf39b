"""Ceiling of a dialog experiment: the accuracy of a model whose answers are the gold targets.

Gold targets are tokenized, truncated, decoded, parsed and scored like predictions. No model can do better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from dair_hf.data.view_columns import VIEW_PREFIXES, VIEWS
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.rows import NO_NAME, contains_name, normalize_name, state_from_row
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.metrics.state.belief_text import parse
from dair_hf.metrics.state.conventions import NAME_SLOTS
from dair_hf.metrics.state.joint_goal import joint_goal_correct

_BATCH_SIZE = 1000
EXAMPLES = 5  # of each finding


@dataclass
class _ViewCeiling:
    """Ceiling of one view."""

    rows: int = 0
    right: int = 0
    in_input: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and their shares as plain values for JSON."""
        shares = {
            f"{name}_share": getattr(self, name) / self.rows if self.rows else None for name in ("right", "in_input")
        }
        return {**vars(self), **shares}


@dataclass
class Ceiling:
    """Ceiling of both views."""

    preset: str
    views: dict[str, _ViewCeiling]  # "original" and "augmented"
    attainable: NDArray[np.bool_]  # [N], rows that count as `right` and `in_input` in each of their views

    def to_dict(self) -> dict[str, Any]:
        """Return the ceiling as plain values for JSON, `attainable` as a count."""
        views = {variant: view.to_dict() for variant, view in self.views.items()}
        return {"preset": self.preset, **views, "attainable": int(self.attainable.sum())}

    def lines(self) -> list[tuple[str, int, int, str]]:
        """Return the lines of a table: description, count, number of rows, and ids of examples."""
        lines = []
        for variant, view in self.views.items():
            ids = ", ".join(str(example["row_id"]) for example in view.examples)
            lines.append((f"{variant} view: gold target scores right ({self.preset})", view.right, view.rows, ids))
            lines.append((f"{variant} view: all values are in the input", view.in_input, view.rows, ""))
        lines.append(("attainable in every view", int(self.attainable.sum()), len(self.attainable), ""))
        return lines

    def raise_if_low(self) -> None:
        """Raise an error if a gold target scores as wrong, with examples before and after encoding."""
        low = {variant: view for variant, view in self.views.items() if view.right < view.rows}
        if not low:
            return
        counts = " and ".join(f"{view.right} of {view.rows} in the {variant} view" for variant, view in low.items())
        examples = [
            f"row {example['row_id']!r} ({variant} view) has {example['expected']}, its target {example['target']!r} "
            f"is read back as {example['read_back']}"
            for variant, view in low.items()
            for example in view.examples[:1]
        ]
        raise DataError(
            f"ceiling: only {counts} of the gold targets score right by preset {self.preset!r}: {'; '.join(examples)}; "
            "raise max_target_tokens if the end is missing, or set allow_low_ceiling=true"
        )


def find_ceiling(pairs: Dataset, encoder: DialogEncoder) -> Ceiling:
    """Score the gold targets of both views like predictions."""
    views = {variant: _ViewCeiling() for variant in VIEWS}
    attainable = []
    columns = [f"{prefix}{name}" for prefix in VIEW_PREFIXES for name in ("history", "state")]
    columns = [column for column in columns if column in pairs.column_names]
    for table in pairs.select_columns([*columns, "row_id", "names"]).with_format("arrow").iter(_BATCH_SIZE):
        batch = {column: table[column].to_pylist() for column in table.column_names}
        encoded = encoder({column: batch[column] for column in columns})
        reachable = np.ones(len(batch["row_id"]), dtype=bool)
        for variant, prefix in zip(VIEWS, VIEW_PREFIXES, strict=True):
            rows = [row for row, history in enumerate(batch.get(f"{prefix}history", [])) if history is not None]
            if rows:
                of_batch = [_View(encoder, batch, encoded, prefix, row) for row in rows]
                reachable[rows] &= _add(views[variant], of_batch, encoder)
        attainable.append(reachable)
    return Ceiling(encoder.preset, views, np.concatenate(attainable))


class _View:
    """State, text, input tokens and target tokens of one view of a row."""

    def __init__(
        self, encoder: DialogEncoder, batch: Mapping[str, Any], encoded: Mapping[str, Any], prefix: str, row: int
    ) -> None:
        self.row_id = batch["row_id"][row]
        self.state = state_from_row(batch[f"{prefix}state"][row])
        self.name_slots = frozenset(NAME_SLOTS).union(entry["slot"] for entry in batch["names"][row])
        self.text = encoder.source(batch[f"{prefix}history"][row])
        self.target = [token for token in encoded[f"{prefix}labels"][row] if token != IGNORE_INDEX]
        input_ids = encoded[f"{prefix}input_ids"][row]
        self.source = input_ids[: len(input_ids) - len(self.target)] if encoder.causal else input_ids

    def in_input(self, encoder: DialogEncoder) -> bool:
        """Return whether the input contains all names, and all other values that the whole text contains."""
        text = remaining = normalize_name(self.text)
        is_truncated = len(self.source) >= encoder.max_source_tokens
        if is_truncated:
            remaining = normalize_name(encoder.tokenizer.decode(self.source, skip_special_tokens=True))
        for slot, alternatives in self.state.items():
            values = [normalize_name(value) for value in alternatives]
            is_name = slot in self.name_slots
            if not (is_name or is_truncated) or not NO_NAME.isdisjoint(values):
                continue
            if any(contains_name(remaining, value) for value in values):
                continue
            if is_name or any(contains_name(text, value) for value in values):
                return False
        return True


def _add(ceiling: _ViewCeiling, views: Sequence[_View], encoder: DialogEncoder) -> NDArray[np.bool_]:
    """Add views to the counts; return which of them are attainable."""
    ends = {*(encoder.target_end or ())[:1], encoder.tokenizer.eos_token_id, encoder.tokenizer.pad_token_id}
    # Like a prediction: up to the first end token, decoded without special tokens.
    written = [list(takewhile(lambda token: token not in ends, view.target)) for view in views]
    answers = [parse(text) for text in encoder.tokenizer.batch_decode(written, skip_special_tokens=True)]
    right = joint_goal_correct(answers, [view.state for view in views], preset=encoder.preset)
    in_input = np.array([view.in_input(encoder) for view in views], dtype=np.bool_)
    ceiling.rows += len(views)
    ceiling.right += int(right.sum())
    ceiling.in_input += int(in_input.sum())
    for index in np.flatnonzero(~right)[: EXAMPLES - len(ceiling.examples)]:
        view = views[index]
        texts = {"target": encoder.target(view.state), "read_back": answers[index], "expected": view.state}
        ceiling.examples.append({"row_id": view.row_id, **texts})
    return right & in_input
