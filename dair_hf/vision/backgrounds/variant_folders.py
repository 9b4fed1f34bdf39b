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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import ClassLabel, Dataset, Features, Value

from dair_hf.data.collator import LABELS, ROW_ID
from dair_hf.data.view_columns import AUGMENTED_PREFIX
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variants import CLASSES, VARIANTS, require_variants

IMAGE = "image"
SUFFIXES = (".jpeg", ".jpg", ".png")
SHOWN = 5  # names in a message
_CLASS = re.compile(r"(?P<label>\d\d)_(?P<name>.+)")
_MIXED = re.compile(r"fg_(?P<foreground>.+?)_bg_.+")


class VariantRows(NamedTuple):
    """Images of several variants, with the same foregrounds in the same order."""

    rows: dict[str, Dataset]
    missing: dict[str, list[str]]


def foreground_of(stem: str) -> str:
    """Return the foreground in the name of a file without suffix."""
    mixed = _MIXED.fullmatch(stem)
    return mixed["foreground"] if mixed else stem


def read_variant(folder: str | os.PathLike[str], variant: str, split: str = "val") -> Dataset:
    """List the images of one variant, without opening them."""
    require_variants([variant])
    root = Path(os.path.abspath(folder)) / variant / split  # absolute, since files may be opened from elsewhere
    names = _class_names(root)
    columns: dict[str, list[str | int]] = {ROW_ID: [], IMAGE: [], LABELS: []}
    for label, name in enumerate(names):
        class_folder = f"{label:02d}_{name}"
        for foreground, path in sorted(_images(root / class_folder).items()):
            columns[ROW_ID].append(f"{class_folder}/{foreground}")
            columns[IMAGE].append(path)
            columns[LABELS].append(label)
    features = Features({ROW_ID: Value("string"), IMAGE: Value("string"), LABELS: ClassLabel(names=names)})
    return Dataset.from_dict(columns, features=features)


def read_variants(
    folder: str | os.PathLike[str],
    split: str = "val",
    variants: Sequence[str] = tuple(VARIANTS),
    strict: bool = True,
) -> VariantRows:
    """List the images of several variants, for `evaluate_variants`."""
    require_variants(variants)
    rows = {variant: read_variant(folder, variant, split) for variant in variants}
    _require_same_classes(folder, rows)
    ids = {variant: set(dataset[ROW_ID][:]) for variant, dataset in rows.items()}
    all_ids = set().union(*ids.values())
    missing = {variant: sorted(all_ids - present) for variant, present in ids.items() if all_ids - present}
    if strict and missing:
        raise DataError(
            f"{folder}: files are missing: {_describe_missing(missing, split)}; restore them, or pass strict=False to "
            "leave these foregrounds out of every variant"
        )
    common = set.intersection(*ids.values())
    if not common:
        raise DataError(f"{folder}: no foreground is in all of {', '.join(variants)}; give variants of one data set")
    if missing:
        rows = {variant: select_rows(dataset, common) for variant, dataset in rows.items()}
    return VariantRows(rows, missing)


def pair_variants(originals: Dataset, partners: Dataset) -> Dataset:
    """Pair each image with the image of the same foreground in another variant."""
    index_of = {row_id: index for index, row_id in enumerate(partners[ROW_ID][:])}
    indices = [index_of.get(row_id) for row_id in originals[ROW_ID][:]]
    if all(index is None for index in indices):
        raise DataError("pairs: no foreground of the originals has a partner; take both variants from one split")
    for name in (IMAGE, LABELS):
        values = partners[name][:]
        column = [None if index is None else values[index] for index in indices]
        originals = originals.add_column(AUGMENTED_PREFIX + name, column, feature=partners.features[name])
    return originals


def select_rows(rows: Dataset, row_ids: Collection[str]) -> Dataset:
    """Select rows by their ids, in the order of the data set."""
    return rows.select([index for index, row_id in enumerate(rows[ROW_ID][:]) if row_id in row_ids])


def _class_names(root: Path) -> list[str]:
    folders = sorted(entry.name for entry in _entries(root) if entry.is_dir())
    names = {int(match["label"]): match["name"] for folder in folders if (match := _CLASS.fullmatch(folder))}
    if sorted(names) != list(range(CLASSES)) or len(names) != len(folders):
        raise DataError(
            f"{root}: must hold nine folders, such as 00_dog to 08_fish, one per class (found "
            f"{', '.join(folders[:12]) or 'none'})"
        )
    return [names[label] for label in range(CLASSES)]


def _images(folder: Path) -> dict[str, str]:
    """Return foreground -> path."""
    paths: dict[str, str] = {}
    for entry in _entries(folder):
        stem, suffix = os.path.splitext(entry.name)
        # macOS stores metadata as `._name.jpg` beside `name.jpg`.
        if entry.name.startswith(".") or suffix.lower() not in SUFFIXES:
            continue
        first = paths.setdefault(foreground_of(stem), entry.path)
        if first != entry.path:
            both = " and ".join(sorted((os.path.basename(first), entry.name)))
            raise DataError(f"{folder}: {both} show the same foreground; remove one")
    if not paths:
        raise DataError(f"{folder}: no {', '.join(SUFFIXES)} file in it; fetch the data again")
    return paths


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror or error}); give the folder that holds the variants, each "
            "with its splits, such as original/val"
        ) from error


def _require_same_classes(folder: str | os.PathLike[str], rows: Mapping[str, Dataset]) -> None:
    names = {variant: tuple(dataset.features[LABELS].names) for variant, dataset in rows.items()}
    first = next(iter(names))
    for variant, classes in names.items():
        if classes != names[first]:
            raise DataError(
                f"{folder}: the classes of {variant} are {', '.join(classes)}, those of {first} "
                f"{', '.join(names[first])}; give variants of one data set"
            )


def _describe_missing(missing: Mapping[str, Sequence[str]], split: str) -> str:
    parts = []
    for variant, names in missing.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        parts.append(f"{variant}/{split} lacks {', '.join(names[:SHOWN])}{more}")
    return "; ".join(parts)
