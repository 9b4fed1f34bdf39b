"""The ceiling of a dialog experiment: the accuracy of a model that writes every target without fault.

Gold targets go the way that predictions will go: written, tokenised, cut, decoded, parsed and scored. What is lost on
that way no model can win back, however well it is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from dair_hf.dialog.audit_pair import NO_NAME, spelling, stands_in
from dair_hf.dialog.encoding import VIEWS, DialogEncoder
from dair_hf.dialog.text.rows import NAME_SLOTS
from dair_hf.dialog.text.state import parse, state_from_row
from dair_hf.errors import DataError
from dair_hf.io.arrow import to_python
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.metrics.state.joint_goal import joint_goal_correct

VARIANTS = ("original", "augmented")
BATCH = 1000


@dataclass
class ViewCeiling:
    """The ceiling of one view.

    Attributes:
        rows: Rows that have this view.
        right: Rows whose gold target scores right.
        in_input: Rows of whose state every value can be found in the input: each name, and each other value that the
            whole history holds. The rest were cut off, or were never said.
        examples: The first rows whose gold target scores wrong: `row_id`, `target`, `read_back`, `expected`.
    """

    rows: int = 0
    right: int = 0
    in_input: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON, with both shares."""
        shares = {
            f"{name}_share": getattr(self, name) / self.rows if self.rows else None for name in ("right", "in_input")
        }
        return {**vars(self), **shares}


@dataclass
class Ceiling:
    """The ceiling of both views.

    Attributes:
        preset: Preset of the joint goal accuracy.
        views: "original" and "augmented" -> the ceiling of the view.
        attainable: `[N]` bool, rows whose gold targets score right and whose values can be found in the input, in every
            view that the row has.
    """

    preset: str
    views: dict[str, ViewCeiling]
    attainable: NDArray[np.bool_]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; of `attainable` the number of rows."""
        views = {variant: view.to_dict() for variant, view in self.views.items()}
        return {"preset": self.preset, **views, "attainable": int(self.attainable.sum())}

    def lines(self) -> list[tuple[str, int, int, str]]:
        """What is counted, how many, of how many rows, and the ids of examples, for a table."""
        lines = []
        for variant, view in self.views.items():
            ids = ", ".join(str(example["row_id"]) for example in view.examples)
            lines.append((f"{variant} view: gold target scores right ({self.preset})", view.right, view.rows, ids))
            lines.append((f"{variant} view: all values are in the input", view.in_input, view.rows, ""))
        lines.append(("attainable in every view", int(self.attainable.sum()), len(self.attainable), ""))
        return lines

    def raise_if_low(self) -> None:
        """Refuse to train towards targets that score wrong.

        Raises:
            DataError: The gold target of a row scores wrong; the message names rows, what was written and what came
                back.
        """
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
            f"ceiling: only {counts} of the gold targets score right by preset {self.preset!r}, so no model can do "
            f"better: {'; '.join(examples)}. Where the end is missing raise max_target_tokens; where letters or signs "
            "differ use a tokenizer that keeps them, or a preset that does not mind case. allow_low_ceiling=true "
            "trains all the same"
        )


def find_ceiling(pairs: Dataset, encoder: DialogEncoder, max_examples: int = 5) -> Ceiling:
    """Score the gold targets of both views as predictions will be scored.

    Args:
        pairs: Rows of the dialog contract; with `augmented_history` and `augmented_state` where there are partners.
        encoder: Encodes them for the model.
        max_examples: Examples kept of each view.

    Returns:
        The ceiling of both views. Where no row has a partner the augmented view has no rows.

    Raises:
        DataError: The dataset is empty.

    Example:
        >>> find_ceiling(test_pairs, encoder).raise_if_low()  # doctest: +SKIP
    """
    if not len(pairs):
        raise DataError("ceiling: the dataset has no rows; check the split")
    views = {variant: ViewCeiling() for variant in VARIANTS}
    attainable = []
    names = [f"{prefix}{name}" for prefix in VIEWS for name in ("history", "state")]
    names = [name for name in names if name in pairs.column_names]
    for table in pairs.select_columns([*names, "row_id", "names"]).with_format("arrow").iter(BATCH):
        batch = {name: to_python(table[name]) for name in table.column_names}
        encoded = encoder({name: batch[name] for name in names})
        reachable = np.ones(len(batch["row_id"]), dtype=bool)
        for variant, prefix in zip(VARIANTS, VIEWS, strict=True):
            rows = [row for row, history in enumerate(batch.get(f"{prefix}history", [])) if history is not None]
            if rows:
                found = [_View(encoder, batch, encoded, prefix, row) for row in rows]
                reachable[rows] &= _add(views[variant], found, encoder, max_examples)
        attainable.append(reachable)
    return Ceiling(encoder.preset, views, np.concatenate(attainable))


class _View:
    """One view of a row: what is known of it, what the model is given, what it shall write."""

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
        """Whether all names, and all other values that the whole text holds, stand in what is left of the text."""
        whole = left = spelling(self.text)
        was_cut = len(self.source) >= encoder.max_source_tokens
        if was_cut:
            left = spelling(encoder.tokenizer.decode(self.source, skip_special_tokens=True))
        for slot, values in self.state.items():
            wanted = [spelling(value) for value in values]
            is_name = slot in self.name_slots
            if not (is_name or was_cut) or not NO_NAME.isdisjoint(wanted):
                continue
            if any(stands_in(value, left) for value in wanted):
                continue
            if is_name or any(stands_in(value, whole) for value in wanted):
                return False
        return True


def _add(ceiling: ViewCeiling, views: Sequence[_View], encoder: DialogEncoder, max_examples: int) -> NDArray[np.bool_]:
    """Count views; tell which of them can be got."""
    ends = {*(encoder.target_end or ())[:1], encoder.tokenizer.eos_token_id, encoder.tokenizer.pad_token_id}
    # As a prediction: up to its first end, decoded without special tokens.
    written = [list(takewhile(lambda token: token not in ends, view.target)) for view in views]
    answers = [parse(text) for text in encoder.tokenizer.batch_decode(written, skip_special_tokens=True)]
    right = joint_goal_correct(answers, [view.state for view in views], preset=encoder.preset)
    in_input = np.array([view.in_input(encoder) for view in views], dtype=np.bool_)
    ceiling.rows += len(views)
    ceiling.right += int(right.sum())
    ceiling.in_input += int(in_input.sum())
    for place in np.flatnonzero(~right)[: max_examples - len(ceiling.examples)]:
        view = views[place]
        shown = {"target": encoder.target(view.state), "read_back": answers[place], "expected": view.state}
        ceiling.examples.append({"row_id": view.row_id, **shown})
    return right & in_input
