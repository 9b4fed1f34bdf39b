"""Published folders of ImageNet-9: reading, pairing and missing files."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset

from dair_hf.errors import DataError
from dair_hf.vision.backgrounds.variant_folders import (
    foreground_of,
    pair_variants,
    read_variant,
    read_variants,
    select_rows,
)
from tests.fixtures.variant_images import CLASSES, VARIANTS, file_name, foreground, write_variants


def a_file(folder: Path, variant: str, label: int, number: int, split: str = "val") -> Path:
    return folder / variant / split / CLASSES[label] / file_name(variant, label, number)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "expected"),
    [
        ("n02085620_00001", "n02085620_00001"),
        ("fg_n02497673_05944_bg_n02536864_02721", "n02497673_05944"),
        ("fg_n02497673_5_bg_n02497673_5", "n02497673_5"),
        ("fg_mine_bg_of_bg_yours", "mine"),
        ("fg_n02497673_05944", "fg_n02497673_05944"),
        ("a_bg_b", "a_bg_b"),
        ("fg__bg_b", "fg__bg_b"),
    ],
)
def test_foreground_of(stem: str, expected: str) -> None:
    assert foreground_of(stem) == expected


# --- one variant ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant(tmp_path: Path, variant: str) -> None:
    write_variants(tmp_path)
    rows = read_variant(tmp_path, variant)
    expected = [
        {
            "row_id": f"{name}/{foreground(label, number)}",
            "image": str(tmp_path / variant / "val" / name / file_name(variant, label, number)),
            "labels": label,
        }
        for label, name in enumerate(CLASSES)
        for number in (1, 2)
    ]
    assert rows[:] == {key: [row[key] for row in expected] for key in ("row_id", "image", "labels")}
    assert rows.features["labels"].names == [name[3:] for name in CLASSES]


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_variants(tmp_path / "data", variants=("original",))
    monkeypatch.chdir(tmp_path)
    rows = read_variant("data", "original")
    monkeypatch.chdir("/")
    assert all(Path(path).is_file() for path in rows["image"])


def test_rows_are_sorted_by_foreground_whatever_their_names_end_with(tmp_path: Path) -> None:
    """`n_2.JPEG` stands before `n_23.JPEG`, but `fg_n_23_bg` before `fg_n_2_bg`."""
    for variant, names in (
        ("original", ["n_2.JPEG", "n_23.JPEG"]),
        ("mixed_rand", ["fg_n_2_bg_m.JPEG", "fg_n_23_bg_m.JPEG"]),
    ):
        write_variants(tmp_path, variants=(variant,))
        for name in names:
            (tmp_path / variant / "val" / CLASSES[0] / name).touch()
    found = read_variants(tmp_path, variants=("original", "mixed_rand")).rows
    assert found["original"]["row_id"][:] == found["mixed_rand"]["row_id"][:]
    assert found["original"]["row_id"][2:4] == ["00_dog/n_2", "00_dog/n_23"]


def test_suffixes_and_ignored_files(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original",), each=1)
    folder = tmp_path / "original" / "val" / CLASSES[3]
    for name in ("b.png", "c.jpg", "d.jpeg", ".hidden.JPEG", "._b.png", "notes.txt", "mask.npy"):
        (folder / name).touch()
    (tmp_path / "original" / "val" / "readme.txt").touch()
    rows = read_variant(tmp_path, "original")
    found = [row_id.removeprefix("03_reptile/") for row_id in rows["row_id"] if row_id.startswith("03")]
    assert found == ["b", "c", "d", foreground(3, 1)]


def test_invalid_variants_are_refused(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original", "no_fg"))
    with pytest.raises(DataError, match="variants: mixed unknown; use some of original, mixed_rand"):
        read_variant(tmp_path, "mixed")
    with pytest.raises(
        DataError, match=r"only_fg/val: cannot be listed \(No such file.*\); give the folder that holds"
    ):
        read_variant(tmp_path, "only_fg")
    with pytest.raises(DataError, match="original/train: cannot be listed"):
        read_variant(tmp_path, "original", "train")
    (tmp_path / "original/val/00_dog/fg_n02085620_00001_bg_x.png").touch()
    with pytest.raises(DataError, match=r"00_dog: fg_n02085620_00001_bg_x.png and n02085620_00001.JPEG show the same"):
        read_variant(tmp_path, "original")
    for file in (tmp_path / "no_fg/val/08_fish").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="08_fish: no .jpeg, .jpg, .png file in it; fetch the data again"):
        read_variant(tmp_path, "no_fg")


@pytest.mark.parametrize("wrong", ["9_cat", "09_cat", "08_whale", "n02085620"])
def test_folders_other_than_nine_classes_are_refused(tmp_path: Path, wrong: str) -> None:
    write_variants(tmp_path, variants=("original",))
    root = tmp_path / "original" / "val"
    (root / wrong).mkdir()
    with pytest.raises(DataError, match=f"must hold nine folders, such as 00_dog .* one per class .*{wrong}"):
        read_variant(tmp_path, "original")
    (root / wrong).rmdir()
    (root / "08_fish").rename(root / wrong)
    if wrong == "08_whale":
        assert read_variant(tmp_path, "original").features["labels"].names[8] == "whale"
    else:
        with pytest.raises(DataError, match="must hold nine folders"):
            read_variant(tmp_path, "original")


# --- several variants -----------------------------------------------------------------------------------------------


def test_variants_have_the_same_order(tmp_path: Path) -> None:
    found = read_variants(write_variants(tmp_path))
    assert set(found.rows) == set(VARIANTS) and found.missing == {}
    for variant, rows in found.rows.items():
        assert rows["row_id"][:] == found.rows["original"]["row_id"][:]
        assert f"/{variant}/val/" in rows["image"][0] and len(rows) == 18


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_variants(tmp_path)
    a_file(tmp_path, "mixed_rand", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 0, 1).unlink()
    a_file(tmp_path, "only_fg", 4, 2).unlink()
    lost = [f"00_dog/{foreground(0, 1)}", f"04_carnivore/{foreground(4, 2)}"]
    with pytest.raises(
        DataError,
        match=f"files are missing: mixed_rand/val lacks {lost[0]}; only_fg/val lacks {lost[0]}, {lost[1]}; restore",
    ):
        read_variants(tmp_path)
    found = read_variants(tmp_path, strict=False)
    assert found.missing == {"mixed_rand": lost[:1], "only_fg": lost}
    for rows in found.rows.values():
        assert len(rows) == 16 and not set(lost) & set(rows["row_id"])
        assert rows["row_id"][:] == found.rows["original"]["row_id"][:]
    # Complete variants are read in full.
    assert len(read_variants(tmp_path, variants=("original", "mixed_next")).rows["original"]) == 18


def test_many_missing_files_are_counted(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original", "no_fg"), each=4)
    for label in range(4):
        for number in (1, 3):
            a_file(tmp_path, "no_fg", label, number).unlink()
    with pytest.raises(DataError, match=r"no_fg/val lacks (\S+ ?\S+, ){4}\S+ ?\S+ and 3 more; restore them"):
        read_variants(tmp_path, variants=("original", "no_fg"))
    assert len(read_variants(tmp_path, variants=("original", "no_fg"), strict=False).missing["no_fg"]) == 8


def test_variants_of_two_data_sets_are_refused(tmp_path: Path) -> None:
    write_variants(tmp_path, variants=("original", "only_fg", "no_fg"))
    for label, name in enumerate(CLASSES):
        folder = tmp_path / "only_fg" / "val" / name
        for number in (1, 2):
            a_file(tmp_path, "only_fg", label, number).rename(folder / f"other{number}.JPEG")
    with pytest.raises(DataError, match="no foreground is in all of original, only_fg; give variants of one data"):
        read_variants(tmp_path, variants=("original", "only_fg"), strict=False)
    (tmp_path / "no_fg/val/00_dog").rename(tmp_path / "no_fg/val/00_wolf")
    with pytest.raises(DataError, match="the classes of no_fg are wolf, bird, .*, those of original dog, bird, "):
        read_variants(tmp_path, variants=("original", "no_fg"))
    with pytest.raises(DataError, match="variants: none given"):
        read_variants(tmp_path, variants=())


# --- pairs ----------------------------------------------------------------------------------------------------------


def test_pairs_by_foreground_in_any_order() -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c"], "image": ["a1", "b1", "c1"], "labels": [0, 1, 2]})
    partners = Dataset.from_dict({"row_id": ["c", "d", "a"], "image": ["c2", "d2", "a2"], "labels": [2, 3, 0]})
    assert pair_variants(rows, partners)[:] == {
        "row_id": ["a", "b", "c"],
        "image": ["a1", "b1", "c1"],
        "labels": [0, 1, 2],
        "augmented_image": ["a2", None, "c2"],
        "augmented_labels": [0, None, 2],
    }
    with pytest.raises(DataError, match="no foreground of the originals has a partner; take both variants from one"):
        pair_variants(rows, select_rows(partners, {"d"}))


def test_pairs_keep_the_names_of_the_classes(tmp_path: Path) -> None:
    found = read_variants(write_variants(tmp_path)).rows
    pairs = pair_variants(found["original"], found["mixed_same"])
    assert pairs.features["augmented_labels"] == pairs.features["labels"] == found["no_fg"].features["labels"]
    assert pairs["augmented_image"][:] == found["mixed_same"]["image"][:]
