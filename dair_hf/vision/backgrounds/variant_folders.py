"""Reader of the published folders of ImageNet-9: images in eight variants, paired by their foreground.

The data of Xiao et al. (2020) are folders `<variant>/<split>/<class>`, with 450 test images of each of nine classes:

    bg_challenge/original/val/00_dog/n02085620_00001.JPEG
    bg_challenge/only_fg/val/00_dog/n02085620_00001.JPEG
    bg_challenge/mixed_rand/val/00_dog/fg_n02085620_00001_bg_n01829413_00002.JPEG

They are a release at github.com/MadryLab/backgrounds_challenge. Its page links archives of the training data, which
hold `<variant>/train` in the same layout. A file name contains the foreground, and for mixed variants the background.
The background is ignored: in the published test data, the images of `mixed_rand` are reported to have the names of
`mixed_next` (issue 8 of that repository).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import ClassLabel, Dataset, Features, Value

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.view_columns import AUGMENTED_PREFIX
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variants import CLASSES, VARIANTS

IMAGE = "image"
SUFFIXES = (".jpeg", ".jpg", ".png")
_CLASS = re.compile(r"(?P<label>\d\d)_(?P<name>.+)")
_MIXED = re.compile(r"fg_(?P<foreground>.+?)_bg_.+")


class VariantRows(NamedTuple):
    """Images of several variants, with the same foregrounds in the same order."""

    rows: dict[str, Dataset]
    missing: dict[str, list[str]]


def read_variants(
    folder: str | os.PathLike[str], split: str, variants: Sequence[str] = tuple(VARIANTS), strict: bool = True
) -> VariantRows:
    """List the images of several variants, for `evaluate_variants`, without opening them.

    A foreground that is missing from a variant is an error, or if not `strict`, left out of all variants.
    """
    rows = {variant: _read_variant(Path(folder) / variant / split) for variant in variants}
    ids = {variant: set(dataset[ROW_ID][:]) for variant, dataset in rows.items()}
    all_ids = set().union(*ids.values())
    missing = {variant: sorted(all_ids - present) for variant, present in ids.items() if all_ids - present}
    if strict and missing:
        found = "; ".join(
            f"{len(names)} of {variant}/{split}: {', '.join(names[:5])}" for variant, names in missing.items()
        )
        raise DataError(f"{folder}: expected the same foregrounds in every variant, missing {found}")
    if missing:
        common = set.intersection(*ids.values())
        rows = {variant: select_rows(dataset, common) for variant, dataset in rows.items()}
    return VariantRows(rows, missing)


def pair_variants(originals: Dataset, partners: Dataset) -> Dataset:
    """Pair each image with the image of the same foreground in another variant."""
    index_of = {row_id: index for index, row_id in enumerate(partners[ROW_ID][:])}
    indices = [index_of.get(row_id) for row_id in originals[ROW_ID][:]]
    for name in (IMAGE, LABELS):
        values = partners[name][:]
        column = [None if index is None else values[index] for index in indices]
        originals = originals.add_column(AUGMENTED_PREFIX + name, column, feature=partners.features[name])
    return originals


def select_rows(rows: Dataset, row_ids: Collection[str]) -> Dataset:
    """Select rows by their ids, in the order of the data set."""
    return rows.select([index for index, row_id in enumerate(rows[ROW_ID][:]) if row_id in row_ids])


def _read_variant(root: Path) -> Dataset:
    root = root.absolute()  # files may be opened from elsewhere
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    classes = [match for folder in folders if (match := _CLASS.fullmatch(folder))]
    if [match["label"] for match in classes] != [f"{label:02d}" for label in range(CLASSES)] or len(folders) != CLASSES:
        raise DataError(
            f"{root}: expected nine folders of classes, such as 00_dog to 08_fish, got {', '.join(folders)}"
        )
    columns: dict[str, list[str | int]] = {ROW_ID: [], IMAGE: [], LABELS: []}
    for label, folder in enumerate(folders):
        for foreground, path in sorted(_images(root / folder).items()):
            columns[ROW_ID].append(f"{folder}/{foreground}")
            columns[IMAGE].append(path)
            columns[LABELS].append(label)
    names = [match["name"] for match in classes]
    features = Features({ROW_ID: Value("string"), IMAGE: Value("string"), LABELS: ClassLabel(names=names)})
    return Dataset.from_dict(columns, features=features)


def _images(folder: Path) -> dict[str, str]:
    """Return foreground -> path."""
    paths: dict[str, str] = {}
    for file in folder.iterdir():
        # macOS stores metadata as `._name.jpg` next to `name.jpg`.
        if file.name.startswith(".") or file.suffix.lower() not in SUFFIXES:
            continue
        mixed = _MIXED.fullmatch(file.stem)
        foreground = mixed["foreground"] if mixed else file.stem
        if foreground in paths:
            raise DataError(f"{folder}: expected one image of {foreground}, got {paths[foreground]} and {file.name}")
        paths[foreground] = str(file)
    return paths
