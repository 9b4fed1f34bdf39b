"""Pictures on correlated backgrounds as files, in folders as ImageNet-9 is published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.folders import atomic_folder
from dair_hf.vision.backgrounds.composites import Composites
from dair_hf.vision.backgrounds.drawn import BackgroundsConfig, pictures_of
from dair_hf.vision.backgrounds.foregrounds import Foregrounds
from dair_hf.vision.backgrounds.variant_folders import class_folder, picture_name
from dair_hf.vision.backgrounds.variants import CLASSES, MIXED, MIXED_RAND, ORIGINAL, VARIANTS

# The training data come as original and mixed_rand, the test data in all variants; the public names of their splits.
WRITTEN = {"train": ("train", (ORIGINAL, MIXED_RAND)), "test": ("val", tuple(VARIANTS))}
FORMATS: dict[str, dict[str, Any]] = {".JPEG": {"quality": 95, "subsampling": 0}, ".png": {"compress_level": 1}}
BATCH = 256


def write_backgrounds(
    things: Mapping[str, Foregrounds],
    config: BackgroundsConfig,
    folder: str | os.PathLike[str],
    suffix: str = ".JPEG",
    overwrite: bool = False,
) -> Path:
    """Draw the training pictures, their partners, and the test pictures in all variants; whole or not at all.

    Args:
        things: What `backgrounds.load_foregrounds` found.
        config: The experiment; with fresh backgrounds the partners are those of epoch 0 and `backgrounds_seed`.
        folder: Where to; a new or empty folder, or one to overwrite.
        suffix: ".JPEG" as in the public data, or ".png", which loses nothing.
        overwrite: Whether a folder that an earlier call of the same program wrote may be replaced.

    Returns:
        The folder: `<variant>/train/<class>/<name><suffix>` and `<variant>/val/...`.

    Raises:
        DataError: The folder holds anything that may not be replaced, or cannot be written; the suffix is unknown; or
            there are too few things.

    Example:
        >>> write_backgrounds(load_foregrounds(config), config, "backgrounds")  # doctest: +SKIP
        PosixPath('backgrounds')
    """
    if suffix not in FORMATS:
        raise DataError(f"suffix {suffix!r} is unknown; use one of {', '.join(FORMATS)}")
    target = Path(folder)
    pictures = {split: pictures_of(things, config, split) for split in WRITTEN}
    count = sum(len(pictures[split]) * len(variants) for split, (_, variants) in WRITTEN.items())
    with (
        atomic_folder(target, overwrite=overwrite) as path,
        tqdm(total=count, desc="drawing pictures", disable=None) as bar,
    ):
        for split, (public, variants) in WRITTEN.items():
            # No test picture bears the name of a training picture.
            first = 0 if split == "train" else config.train_each
            for variant in variants:
                _write(pictures[split], variant, config.backgrounds_seed, path / variant / public, suffix, first, bar)
    return target


def _write(pictures: Composites, variant: str, seed: int, folder: Path, suffix: str, first: int, bar: tqdm) -> None:
    folders = [folder / class_folder(label, name) for label, name in enumerate(pictures.things.names)]
    for class_path in folders:
        class_path.mkdir(parents=True)
    for rows in torch.arange(len(pictures)).split(BATCH):
        donors = pictures.donors(variant, rows, seed) if variant in MIXED else None
        shown = (pictures.show(variant, rows, donors) * 255 + 0.5).byte().permute(0, 2, 3, 1).numpy()
        for place, row in enumerate(rows.tolist()):
            behind = None if donors is None else _picture_id(int(donors[place]), first)
            name = picture_name(_picture_id(row, first), behind) + suffix
            Image.fromarray(np.ascontiguousarray(shown[place])).save(folders[row % CLASSES] / name, **FORMATS[suffix])
        bar.update(len(rows))


def _picture_id(row: int, first: int) -> str:
    """In the form of ImageNet's: what kind of thing, and which picture of it, counted from `first`."""
    return f"n{row % CLASSES:08d}_{first + row // CLASSES:05d}"
