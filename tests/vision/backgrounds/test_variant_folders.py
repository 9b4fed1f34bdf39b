"""Published folders of ImageNet-9: reading, pairing and missing files."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.imagenet9 import (
    _pair_variants,
    _read_variants,
)
from tests.fixtures.variant_images import CLASSES, file_name, foreground, write_variants


def a_file(folder: Path, variant: str, label: int, number: int, split: str = "val") -> Path:
    return folder / variant / split / CLASSES[label] / file_name(variant, label, number)


def test_rows_are_sorted_by_foreground_whatever_their_names_end_with(tmp_path: Path) -> None:
    """`n_2.JPEG` stands before `n_23.JPEG`, but `fg_n_23_bg` before `fg_n_2_bg`."""
    for variant, names in (
        ("original", ["n_2.JPEG", "n_23.JPEG"]),
        ("mixed_rand", ["fg_n_2_bg_m.JPEG", "fg_n_23_bg_m.JPEG"]),
    ):
        write_variants(tmp_path, variants=(variant,))
        for name in names:
            (tmp_path / variant / "val" / CLASSES[0] / name).touch()
    found = _read_variants(tmp_path, "val", variants=("original", "mixed_rand"))
    assert found["original"]["row_id"][:] == found["mixed_rand"]["row_id"][:]
    assert found["original"]["row_id"][2:4] == ["00_dog/n_2", "00_dog/n_23"]


def test_suffixes_names_and_ignored_files(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original",), each=1)
    folder = tmp_path / "original" / "val" / CLASSES[3]
    ignored = (".hidden.JPEG", "._b.png", "notes.txt", "mask.npy")
    mixed = ("fg_mine_bg_of_bg_yours.png", "fg_m_5_bg_m_5.png", "fg_m.png", "a_bg_b.png", "fg__bg_b.png")
    for name in ("b.png", "c.jpg", "d.jpeg", *ignored, *mixed):
        (folder / name).touch()
    (tmp_path / "original" / "val" / "readme.txt").touch()
    rows = _read_variants(tmp_path, "val", ("original",))["original"]
    found = {row_id.removeprefix("03_reptile/") for row_id in rows["row_id"] if row_id.startswith("03")}
    assert found == {"b", "c", "d", foreground(3, 1), "mine", "m_5", "fg_m", "a_bg_b", "fg__bg_b"}


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_variants(tmp_path)
    a_file(tmp_path, "mixed_rand", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 4, 2).unlink()
    lost = [f"00_dog/{foreground(0, 1)}", f"04_carnivore/{foreground(4, 2)}"]
    with pytest.raises(
        DataError,
        match=f"1 of mixed_rand/val: {lost[0]}; 2 of only_fg/val: {lost[0]}, {lost[1]}",
    ):
        _read_variants(tmp_path, "val")
    # Complete variants are read in full.
    assert len(_read_variants(tmp_path, "val", variants=("original", "mixed_next"))["original"]) == 18


def test_pairs_by_foreground_in_any_order() -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c"], "image": ["a1", "b1", "c1"], "labels": [0, 1, 2]})
    partners = Dataset.from_dict({"row_id": ["c", "d", "a"], "image": ["c2", "d2", "a2"], "labels": [2, 3, 0]})
    assert _pair_variants(rows, partners)[:] == {
        "row_id": ["a", "b", "c"],
        "image": ["a1", "b1", "c1"],
        "labels": [0, 1, 2],
        "augmented_image": ["a2", None, "c2"],
        "augmented_labels": [0, None, 2],
    }
