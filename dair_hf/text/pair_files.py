"""Pairs of one file as train, dev and test parts: names of classes, and groups that stay together."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from datasets import Dataset
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from dair_hf.data.texts.files import pairs_from_jsonl
from dair_hf.data.texts.forms import CLASSES, FORMS, LABEL, classes_of, is_missing, name_of, view_of
from dair_hf.data.view_columns import partner_numbers
from dair_hf.errors import DataError
from dair_hf.evaluation.views import views_of
from dair_hf.settings import Settings

GROUP = "pair_group"  # column of the parts; rows of a group are in one part
GROUP_COLUMNS = ("dialogue_id", "original_id")  # that stand for a group, if the data have one
SHARES = {"test": 0.3, "dev": 0.15}  # of the rows; the others are trained on
MOST = {"test": 2000, "dev": 500}  # rows


@dataclass
class PairFileConfig(Settings):
    """File of pairs, and which of its rows belong together."""

    PATH_FIELDS: ClassVar = ("pairs",)  # not compared between runs: the data have a fingerprint

    pairs: str = field(
        metadata={"help": "File of pairs (JSON lines, CSV, Parquet), as dair_hf.pairs_from_jsonl reads it."}
    )
    group: str | None = field(
        default=None,
        metadata={
            "help": "Column of rows that belong together, such as a dialogue: they are never both trained on and "
            "tested with. Default: rows that share dialogue_id, original_id, or the first text of a view."
        },
    )


def load_parts(config: PairFileConfig) -> tuple[dict[str, Dataset], list[str]]:
    """Read a file of pairs; return its train, dev and test part, and the names of classes, if it has labels."""
    rows, classes = pairs_from_jsonl(config.pairs), list[str]()
    if set(CLASSES.needed) <= set(rows.column_names):
        columns, found = classes_of(rows)
        for column, labels in columns.items():
            names = [None if label is None else str(label) for label in labels]
            rows = rows.remove_columns(column).add_column(column, names)
        classes = list(dict.fromkeys(map(str, found)))
        if len(classes) < 2:  # a model with one output is a regression
            raise DataError(f"{config.pairs}, column {LABEL!r}: expected at least two classes, got {classes}")
    return _split_by_groups(rows, config.group), classes


def _split_by_groups(rows: Dataset, group: str | None = None) -> dict[str, Dataset]:
    """Split pairs at random, but always alike, into "train", "dev" and "test"; each group is in one part.

    A group is the rows with the same value in the column `group`; by default, those that share `dialogue_id`,
    `original_id`, or the first text of a view. The parts name it in the column `pair_group`.
    """
    if group and group not in rows.column_names:
        raise DataError(f"group={group!r}: expected one of the columns {rows.column_names}")
    if group:  # a row without one is a group of its own
        groups = [f"row {row}" if is_missing(name) else str(name) for row, name in enumerate(rows[group])]
    else:
        groups = _linked_rows(rows)
    sizes = Counter(groups)
    order = sorted(sizes)
    random.Random("pair groups").shuffle(order)
    left = {part: min(round(share * len(rows)), MOST[part]) for part, share in SHARES.items()}
    part_of = {}
    for name in order:
        part_of[name] = next((part for part, room in left.items() if sizes[name] <= room), "train")
        if part_of[name] in left:
            left[part_of[name]] -= sizes[name]
    # A part of an earlier split has such a column.
    rows = rows.remove_columns([name for name in rows.column_names if name == GROUP]).add_column(GROUP, groups)
    numbers = {part: [n for n, name in enumerate(groups) if part_of[name] == part] for part in ("train", *SHARES)}
    has_partner = views_of(rows).has_partner
    if without := [part for part, chosen in numbers.items() if not has_partner[chosen].any()]:
        found = f"{len(rows)} rows in {len(order)} groups"
        raise DataError(f"{found}: no pair is left for {', '.join(without)}; add rows, or set group")
    return {part: rows.select(chosen) for part, chosen in numbers.items()}


def _linked_rows(rows: Dataset) -> list[str]:
    """Return groups of rows that share an id, a first text, or messages before an answer, also through others."""
    form = next(form for form in FORMS if set(form.needed) <= set(rows.column_names))
    is_same = len(set(map(str, rows[form.inputs[0]]))) == 1  # such as one question about all texts
    shared: dict[str, int] = {}
    links = []
    for number, row in enumerate(rows):
        keys: list[object] = [{name: row[name]} for name in GROUP_COLUMNS if not is_missing(row.get(name))]
        is_named = not is_missing(row.get("dialogue_id"))
        for view in (0, *partner_numbers(rows.column_names)):
            content = view_of(row, form, view, name_of(row, number)) or {}
            values = [content[name] for name in form.columns if name in content]
            if values and isinstance(values[0], list):
                chat = list(itertools.chain(*values))
                ends = [end for end in range(1, len(chat)) if chat[end]["role"] == "assistant"]
                keys += [chat[:end] for end in (ends[-1:] if is_named else ends)]  # other dialogues may begin alike
            elif values:
                keys.append([content[name] for name in form.all_inputs if name in content] if is_same else values[0])
        links += [(number, len(rows) + shared.setdefault(json.dumps(key, default=str), len(shared))) for key in keys]
    size = len(rows) + len(shared)
    graph = coo_array((np.ones(len(links)), np.transpose(links)), shape=(size, size))
    groups = connected_components(graph, directed=False)[1][: len(rows)]
    ids = next((rows[name] for name in GROUP_COLUMNS if name in rows.column_names), [None] * len(rows))
    names: dict[int, str] = {}
    return [names.setdefault(g, str(g if is_missing(name) else name)) for g, name in zip(groups, ids, strict=True)]
