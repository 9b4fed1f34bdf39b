"""Reader of counterfactually augmented data (Kaushik, Hovy and Lipton, ICLR 2020): reviews and inference.

People rewrote each text so that its label changes, with as few edits as possible. Texts are kept as published, with
their `<br />`, doubled quotes and control characters (`encoding.plain_text` says what a model sees of them); only the
quoting of the table itself is removed. Labels that the annotators got wrong are kept as well: in one training and one
test pair of the reviews both texts are equal and the labels differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, Features, Value

from dair_hf.data.view_columns import VIEW_PREFIXES
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import TAB, TableRow, read_table

SPLITS = ("train", "dev", "test")
SENTIMENT_LABELS = ("negative", "positive")
NLI_LABELS = ("entailment", "neutral", "contradiction")
# Value of `revisions` -> revised sentences, in the order of the rows.
REVISIONS = {"both": ("premise", "hypothesis"), "premise": ("premise",), "hypothesis": ("hypothesis",)}
REVISIONS_PER_SENTENCE = 2
_SENTENCES = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}


class CounterfactualRow(NamedTuple):
    """Original text with one of its revisions."""

    row_id: str
    original_id: str
    original: Mapping[str, str]
    revision: Mapping[str, str]


def read_sentiment(path: str | os.PathLike[str], split: str) -> Dataset:
    """Read pairs of movie reviews: `SPLIT_paired.tsv`, 1,707 / 245 / 488 pairs as published.

    Two rows share a `batch_id`. The first is the original, the second its revision: so the message of the commit that
    published the file says, and all originals but five, and all revisions, are word for word in the files `orig/` and
    `new/` of the same repository; the five differ in line breaks, quotes or a word, or are missing there.
    """
    table = _table(Source(path), split, r"(sentiment_)?{split}_paired\.tsv", ("Sentiment", "Text", "batch_id"))
    pairs: dict[str, list[TableRow]] = {}
    for row in table:
        pairs.setdefault(row.cells["batch_id"], []).append(row)
    rows = []
    for batch_id, of_pair in pairs.items():
        if len(of_pair) != 2:
            raise DataError(
                f"{of_pair[-1].where}: batch_id {batch_id!r} has {len(of_pair)} rows; a pair is two rows, the original "
                "and its revision"
            )
        views = [
            {"text": row.cells["Text"], "label": _label(row, row.cells["Sentiment"], SENTIMENT_LABELS)}
            for row in of_pair
        ]
        rows.append(CounterfactualRow(f"{split}/{batch_id}", f"{split}/{batch_id}", *views))
    return paired_rows(rows, ("text",), SENTIMENT_LABELS)


def read_nli(path: str | os.PathLike[str], split: str, revisions: str = "both") -> Dataset:
    """Read pairs of natural language inference: 1,666 / 200 / 400 originals of SNLI, each with four revisions.

    Rows 2i and 2i + 1 of a revised file belong to row i of the original file. Two revise the premise and two the
    hypothesis, one for each of the two other labels.
    """
    if revisions not in REVISIONS:
        raise DataError(f"revisions={revisions!r} is unknown; use one of {', '.join(REVISIONS)}")
    source = Source(path)
    columns = tuple(_SENTENCES.values())
    originals = _table(source, split, r"(nli_original_{split}|original/{split})\.tsv", columns)
    revised = {
        kind: _table(source, split, rf"(nli_revised_{kind}_{{split}}|revised_{kind}/{{split}})\.tsv", columns)
        for kind in REVISIONS[revisions]
    }
    for kind, table in revised.items():
        _require_alignment(originals, table, kind)
    rows = []
    for index, row in enumerate(originals):
        original = _inference(row)
        for kind, table in revised.items():
            start = REVISIONS_PER_SENTENCE * index
            for number, revision in enumerate(table[start : start + REVISIONS_PER_SENTENCE]):
                name = f"{split}/{index}"
                rows.append(CounterfactualRow(f"{name}/{kind}/{number}", name, original, _inference(revision)))
    return paired_rows(rows, ("premise", "hypothesis"), NLI_LABELS)


def paired_rows(rows: Iterable[CounterfactualRow], texts: Sequence[str], labels: Sequence[str]) -> Dataset:
    """Lay out originals and revisions as paired rows."""
    columns: dict[str, list[Any]] = {"row_id": [], "original_id": []}
    columns |= {view + name: [] for view in VIEW_PREFIXES for name in (*texts, "label")}
    for row in rows:
        columns["row_id"].append(row.row_id)
        columns["original_id"].append(row.original_id)
        for view, values in zip(VIEW_PREFIXES, (row.original, row.revision), strict=True):
            for name in texts:
                columns[view + name].append(values[name])
            columns[view + "label"].append(labels.index(values["label"]))
    kinds = {name: ClassLabel(names=list(labels)) if name.endswith("label") else Value("string") for name in columns}
    return Dataset.from_dict(columns, Features(kinds))


def _table(source: Source, split: str, pattern: str, columns: Sequence[str]) -> list[TableRow]:
    """Read the one file of the source whose path ends with a pattern; `{split}` in it stands for the split."""
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
    end = re.compile(rf"(^|.*/){pattern.format(split=split)}")
    names = [name for name in source.names if end.fullmatch(name)]
    wanted = pattern.format(split=split).replace("\\", "")
    if not names:
        raise DataError(
            f"{source.path}: holds no file {wanted} (found {', '.join(source.names[:5]) or 'nothing'}); give a clone "
            "of acmi-lab/counterfactually-augmented-data, or a folder or zip archive of its tsv files"
        )
    if len(names) > 1:
        raise DataError(f"{source.path}: holds {' and '.join(names)}; give the folder of one of them")
    return read_table(source.read(names[0]), source.label(names[0]), TAB, columns)


def _label(row: TableRow, name: str, labels: Sequence[str]) -> str:
    if name.lower() not in labels:
        raise DataError(f"{row.where}: unknown label {name!r}; use one of {', '.join(labels)}")
    return name.lower()


def _inference(row: TableRow) -> dict[str, str]:
    values = {name: row.cells[column] for name, column in _SENTENCES.items()}
    return {**values, "label": _label(row, values["label"], NLI_LABELS)}


def _require_alignment(originals: Sequence[TableRow], revised: Sequence[TableRow], kind: str) -> None:
    """Refuse a file in which row 2i or 2i + 1 has the unrevised sentence of another original than i.

    A sentence of no original is allowed, since one published revision of a premise has another hypothesis, too.
    """
    if len(revised) != REVISIONS_PER_SENTENCE * len(originals):
        raise DataError(
            f"{revised[-1].where}: the file ends with row {len(revised)}, but {len(originals)} originals need "
            f"{REVISIONS_PER_SENTENCE * len(originals)}, two for each; check the files"
        )
    kept = _SENTENCES["hypothesis" if kind == "premise" else "premise"]
    known = {tuple(original.cells[kept].split()) for original in originals}
    for index, row in enumerate(revised):
        original = originals[index // REVISIONS_PER_SENTENCE]
        words = tuple(row.cells[kept].split())
        if words in known and words != tuple(original.cells[kept].split()):
            raise DataError(
                f"{row.where}: {kept} is not that of its original at {original.where}; rows 2i and 2i + 1 of a revised "
                "file must belong to row i of the originals"
            )
