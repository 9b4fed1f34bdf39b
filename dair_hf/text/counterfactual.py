"""Reader of counterfactually augmented data (Kaushik, Hovy and Lipton, ICLR 2020): reviews and inference.

People rewrote each text so that its label changes, with as few edits as possible. Texts are kept as published, with
their `<br />`, doubled quotes and control characters (`encoding.plain_text` says what a model sees of them); only the
quoting of the table itself is removed. Labels that the annotators got wrong are kept as well: in one training and one
test pair of the reviews both texts are equal and the labels differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

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
# Column of the rows -> column of the table.
_REVIEW = {"text": "Text", "label": "Sentiment"}
_INFERENCE = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}


def read_sentiment(path: str | os.PathLike[str], split: str) -> Dataset:
    """Read pairs of movie reviews: `SPLIT_paired.tsv`, 1,707 / 245 / 488 pairs as published.

    Two rows share a `batch_id`. The first is the original, the second its revision, as the message of the commit that
    published the file says. All revisions, and all originals but five, occur word for word in the files `orig/` and
    `new/` of the same repository; the five differ in line breaks, quotes or a word, or are missing there.
    """
    table = _table(Source(path), split, r"(sentiment_)?{split}_paired\.tsv", (*_REVIEW.values(), "batch_id"))
    pairs: dict[str, list[TableRow]] = {}
    for row in table:
        pairs.setdefault(row.cells["batch_id"], []).append(row)
    rows = []
    for batch_id, views in pairs.items():
        if len(views) != 2:
            raise DataError(
                f"{views[-1].where}: batch_id {batch_id!r} has {len(views)} rows; expected an original and its revision"
            )
        rows.append(_paired(f"{split}/{batch_id}", f"{split}/{batch_id}", views, _REVIEW))
    return _dataset(rows, SENTIMENT_LABELS)


def read_nli(path: str | os.PathLike[str], split: str, revisions: str = "both") -> Dataset:
    """Read pairs of natural language inference: 1,666 / 200 / 400 originals of SNLI, each with four revisions.

    Rows 2i and 2i + 1 of a revised file belong to row i of the original file. Two revise the premise and two the
    hypothesis, one for each of the two other labels.
    """
    source = Source(path)
    columns = tuple(_INFERENCE.values())
    originals = _table(source, split, r"(nli_original_{split}|original/{split})\.tsv", columns)
    revised = {
        kind: _table(source, split, rf"(nli_revised_{kind}_{{split}}|revised_{kind}/{{split}})\.tsv", columns)
        for kind in REVISIONS[revisions]
    }
    for kind, table in revised.items():
        _require_alignment(originals, table, kind)
    rows = []
    for index, original in enumerate(originals):
        for kind, table in revised.items():
            for number, revision in enumerate(table[2 * index : 2 * index + 2]):
                name = f"{split}/{index}"
                rows.append(_paired(f"{name}/{kind}/{number}", name, (original, revision), _INFERENCE))
    return _dataset(rows, NLI_LABELS)


def _paired(row_id: str, original_id: str, views: Sequence[TableRow], columns: dict[str, str]) -> dict[str, str]:
    """Return an original and its revision as one row."""
    row = {"row_id": row_id, "original_id": original_id}
    for prefix, view in zip(VIEW_PREFIXES, views, strict=True):
        row |= {prefix + name: view.cells[column] for name, column in columns.items()}
        row[f"{prefix}label"] = row[f"{prefix}label"].lower()
    return row


def _dataset(rows: list[dict[str, str]], labels: Sequence[str]) -> Dataset:
    # One object per column: the fingerprint of the data, which identifies stored runs, depends on it.
    kinds = {name: ClassLabel(names=list(labels)) if name.endswith("label") else Value("string") for name in rows[0]}
    return Dataset.from_list(rows, Features(kinds))


def _table(source: Source, split: str, pattern: str, columns: Sequence[str]) -> list[TableRow]:
    """Read the one file of the source whose path ends with a pattern; `{split}` in it stands for the split."""
    end = re.compile(rf"(^|.*/){pattern.format(split=split)}")
    names = [name for name in source.names if end.fullmatch(name)]
    if len(names) != 1:
        wanted = pattern.format(split=split).replace("\\", "")
        found = " and ".join(names) or ", ".join(source.names[:5])
        raise DataError(
            f"{source.path}: expected one file {wanted} of acmi-lab/counterfactually-augmented-data, found {found}"
        )
    return read_table(source.read(names[0]), source.label(names[0]), TAB, columns)


def _require_alignment(originals: Sequence[TableRow], revised: Sequence[TableRow], kind: str) -> None:
    """Refuse a file in which row 2i or 2i + 1 has the unrevised sentence of an original other than i.

    A sentence that no original has is allowed, since one published revision of a premise also has a new hypothesis.
    """
    if len(revised) != 2 * len(originals):
        raise DataError(f"{revised[-1].where}: expected two rows for each of {len(originals)}, found {len(revised)}")
    kept = _INFERENCE["hypothesis" if kind == "premise" else "premise"]
    known = {tuple(original.cells[kept].split()) for original in originals}
    for index, row in enumerate(revised):
        original = originals[index // 2]
        words = tuple(row.cells[kept].split())
        if words in known and words != tuple(original.cells[kept].split()):
            raise DataError(f"{row.where}: expected the {kept} of its original, {original.where}, found another's")
