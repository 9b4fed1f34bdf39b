"""Pictures in eight variants, in folders as ImageNet-9 is published, paired by the foreground that they show.

The data of Xiao et al. (2020) are folders `<variant>/<split>/<class>` with 450 test pictures of each of nine classes:

    bg_challenge/original/val/00_dog/n02085620_00001.JPEG
    bg_challenge/only_fg/val/00_dog/n02085620_00001.JPEG
    bg_challenge/mixed_rand/val/00_dog/fg_n02085620_00001_bg_n01829413_00002.JPEG

They are at github.com/MadryLab/backgrounds_challenge, as a release; the archives of the training data, which its page
links, hold `<variant>/train` in the same form. A name tells the foreground, and where the
background is mixed also that. The latter is not read: in the published test data the pictures of `mixed_rand` are
reported to bear the names of `mixed_next` (issue 8 of the data's repository).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import ClassLabel, Dataset, Features, Value

from dair_hf.data.collator import AUGMENTED_PREFIX, LABELS, ROW_ID
from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variants import CLASSES, VARIANTS, require_variants

IMAGE = "image"
SUFFIXES = (".jpeg", ".jpg", ".png")
SHOWN = 5  # names in a message
_CLASS = re.compile(r"(?P<label>\d\d)_(?P<name>.+)")
_MIXED = re.compile(r"fg_(?P<foreground>.+?)_bg_.+")


class VariantRows(NamedTuple):
    """The pictures of several variants, the same foregrounds in each.

    Attributes:
        rows: Variant -> its rows: `row_id` (class folder and foreground), `image` (path), `labels` (with the names of
            the classes), in the same order for all.
        missing: Variant -> the rows that others have and it lacks, and which therefore were left out of all.
    """

    rows: dict[str, Dataset]
    missing: dict[str, list[str]]


def class_folder(label: int, name: str) -> str:
    """The folder of a class.

    Example:
        >>> class_folder(2, "wheeled vehicle")
        '02_wheeled vehicle'
    """
    return f"{label:02d}_{name}"


def picture_name(foreground: str, background: str | None = None) -> str:
    """The name of a picture without suffix.

    Args:
        foreground: What is before.
        background: The picture that a mixed background is from.

    Example:
        >>> picture_name("n02497673_05944"), picture_name("n02497673_05944", "n02536864_02721")
        ('n02497673_05944', 'fg_n02497673_05944_bg_n02536864_02721')
    """
    return foreground if background is None else f"fg_{foreground}_bg_{background}"


def foreground_of(stem: str) -> str:
    """The foreground that `picture_name` has written into a name.

    Args:
        stem: Name of the picture without suffix.

    Example:
        >>> foreground_of("fg_n02497673_05944_bg_n02536864_02721"), foreground_of("n02497673_05944")
        ('n02497673_05944', 'n02497673_05944')
    """
    mixed = _MIXED.fullmatch(stem)
    return mixed["foreground"] if mixed else stem


def read_variant(folder: str | os.PathLike[str], variant: str, split: str = "val") -> Dataset:
    """The pictures of one variant; none is opened.

    Args:
        folder: Where the variants are, `bg_challenge`.
        variant: One of `VARIANTS`.
        split: "val" or "train".

    Returns:
        Rows as `VariantRows` has them, sorted by `row_id`.

    Raises:
        DataError: The folder is not there, does not hold nine classes with pictures, or holds two pictures of one
            foreground.

    Example:
        >>> read_variant("bg_challenge", "mixed_rand")[0]["row_id"]  # doctest: +SKIP
        '00_dog/n02085620_00001'
    """
    require_variants([variant])
    root = Path(os.path.abspath(folder)) / variant / split  # absolute, since the paths are opened elsewhere
    names = _classes(root)
    columns: dict[str, list[str | int]] = {ROW_ID: [], IMAGE: [], LABELS: []}
    for label, name in enumerate(names):
        found = _pictures(root / class_folder(label, name))
        for foreground in sorted(found):
            columns[ROW_ID].append(f"{class_folder(label, name)}/{foreground}")
            columns[IMAGE].append(found[foreground])
            columns[LABELS].append(label)
    features = Features({ROW_ID: Value("string"), IMAGE: Value("string"), LABELS: ClassLabel(names=names)})
    return Dataset.from_dict(columns, features=features)


def read_variants(
    folder: str | os.PathLike[str],
    split: str = "val",
    variants: Sequence[str] = tuple(VARIANTS),
    strict: bool = True,
) -> VariantRows:
    """The pictures of several variants, as `variants.evaluate_variants` takes them.

    Args:
        folder: Where the variants are, `bg_challenge`.
        split: "val" or "train".
        variants: Which ones.
        strict: Whether a foreground that not all of them have is refused; else it is left out of all, so that every
            accuracy is over the same foregrounds, and reported.

    Returns:
        Rows, and what was missing.

    Raises:
        DataError: As `read_variant`; the classes differ; no foreground is in all variants; or with `strict`, files are
            missing.

    Example:
        >>> read_variants("bg_challenge").rows["only_fg"].num_rows  # doctest: +SKIP
        4050
    """
    require_variants(variants)
    rows = {variant: read_variant(folder, variant, split) for variant in variants}
    _require_same_classes(folder, rows)
    ids = {variant: set(found[ROW_ID][:]) for variant, found in rows.items()}
    missing = {variant: sorted(set().union(*ids.values()) - known) for variant, known in ids.items()}
    missing = {variant: names for variant, names in missing.items() if names}
    if strict and missing:
        raise DataError(
            f"{folder}: files are missing: {_told(missing, split)}; restore them, or pass strict=False to leave these "
            "foregrounds out of every variant"
        )
    common = set.intersection(*ids.values())
    if not common:
        raise DataError(
            f"{folder}: no foreground is in all of {', '.join(variants)}; give the variants of one data set"
        )
    if missing:
        rows = {variant: chosen_rows(found, common) for variant, found in rows.items()}
    return VariantRows(rows, missing)


def pair_variants(originals: Dataset, partners: Dataset) -> Dataset:
    """Each picture and its partner, found by their foreground.

    Args:
        originals: Rows of one variant.
        partners: Rows of another.

    Returns:
        The originals with the columns `augmented_image` and `augmented_labels`, None where a foreground has no
        partner; partners of others are left alone.

    Raises:
        DataError: No foreground has a partner.

    Example:
        >>> rows = Dataset.from_dict({"row_id": ["00_dog/a", "00_dog/b"], "image": ["a", "b"], "labels": [0, 0]})
        >>> partners = Dataset.from_dict({"row_id": ["00_dog/b"], "image": ["fg_b_bg_c"], "labels": [0]})
        >>> pair_variants(rows, partners)["augmented_image"][:]
        [None, 'fg_b_bg_c']
    """
    places = {row_id: place for place, row_id in enumerate(partners[ROW_ID][:])}
    found = [places.get(row_id) for row_id in originals[ROW_ID][:]]
    if not any(place is not None for place in found):
        raise DataError("pairs: no foreground of the originals has a partner; take both variants from one split")
    for name in (IMAGE, LABELS):
        values = partners[name][:]
        column = [None if place is None else values[place] for place in found]
        originals = originals.add_column(AUGMENTED_PREFIX + name, column, feature=partners.features[name])
    return originals


def chosen_rows(rows: Dataset, row_ids: Collection[str]) -> Dataset:
    """The rows with these names, in their order.

    Example:
        >>> chosen_rows(Dataset.from_dict({"row_id": ["a", "b", "c"]}), {"c", "a"})["row_id"][:]
        ['a', 'c']
    """
    return rows.select([place for place, row_id in enumerate(rows[ROW_ID][:]) if row_id in row_ids])


def _classes(root: Path) -> list[str]:
    entries = _listed(root)
    folders = sorted(entry.name for entry in entries if entry.is_dir())
    found = {int(name["label"]): name["name"] for folder in folders if (name := _CLASS.fullmatch(folder))}
    if sorted(found) != list(range(CLASSES)) or len(found) != len(folders):
        raise DataError(
            f"{root}: must hold nine folders, such as 00_dog to 08_fish, one a class (found "
            f"{', '.join(folders[:12]) or 'none'})"
        )
    return [found[label] for label in range(CLASSES)]


def _pictures(folder: Path) -> dict[str, str]:
    """Foreground -> path."""
    found: dict[str, str] = {}
    for entry in _listed(folder):
        stem, suffix = os.path.splitext(entry.name)
        # macOS keeps a `._name.jpg`, which is no picture, beside `name.jpg`.
        if entry.name.startswith(".") or suffix.lower() not in SUFFIXES:
            continue
        known = found.setdefault(foreground_of(stem), entry.path)
        if known != entry.path:
            both = " and ".join(sorted((os.path.basename(known), entry.name)))
            raise DataError(f"{folder}: {both} show the same foreground; remove one")
    if not found:
        raise DataError(f"{folder}: no {', '.join(SUFFIXES)} file in it; fetch the data again")
    return found


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror or error}); give the folder that holds the variants, each "
            "with its splits, such as original/val"
        ) from error


def _require_same_classes(folder: str | os.PathLike[str], rows: Mapping[str, Dataset]) -> None:
    names = {variant: tuple(found.features[LABELS].names) for variant, found in rows.items()}
    first = next(iter(names))
    for variant, classes in names.items():
        if classes != names[first]:
            raise DataError(
                f"{folder}: the classes of {variant} are {', '.join(classes)}, those of {first} "
                f"{', '.join(names[first])}; give the variants of one data set"
            )


def _told(missing: Mapping[str, Sequence[str]], split: str) -> str:
    parts = []
    for variant, names in missing.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        parts.append(f"{variant}/{split} lacks {', '.join(names[:SHOWN])}{more}")
    return "; ".join(parts)
