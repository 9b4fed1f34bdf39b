"""Reader of counterfactual reviews and inference: pairs, layouts, broken files, and the published data."""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.text.counterfactual import read_nli, read_sentiment
from tests.fixtures import counterfactuals

SIZES = {"train": 5, "dev": 3, "test": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return counterfactuals.write(tmp_path / "data", counterfactuals.files(SIZES))


def change(path: Path, edit: Callable[[list[str]], None]) -> None:
    """Edit the lines of a file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    edit(lines)
    path.write_text("".join(lines), encoding="utf-8")


def test_the_first_review_of_a_pair_is_the_original(tmp_path: Path) -> None:
    header = "Sentiment\tText\tbatch_id\n"
    text = 'Negative\tA bore.\t7\nPositive\t"So ""good""<br />"\t3\nPositive\tA joy.\t7\nNegative\tSo bad\t3\n'
    (tmp_path / "dev_paired.tsv").write_text(header + text)
    rows = read_sentiment(tmp_path, "dev")
    assert rows.to_list() == [
        {
            "row_id": "dev/7", "original_id": "dev/7", "text": "A bore.", "label": 0,
            "augmented_text": "A joy.", "augmented_label": 1,
        },
        {
            "row_id": "dev/3", "original_id": "dev/3", "text": 'So "good"<br />', "label": 1,
            "augmented_text": "So bad", "augmented_label": 0,
        },
    ]  # fmt: skip
    assert rows.features["label"].names == rows.features["augmented_label"].names == ["negative", "positive"]


def test_an_inference_row_for_each_revision(tmp_path: Path) -> None:
    header = "sentence1\tsentence2\tgold_label\n"
    (tmp_path / "nli_original_dev.tsv").write_text(header + "p\t h\tneutral\nq\ti\tentailment\n")
    revised = "p1\th\tentailment\np2\tother\tcontradiction\nq1\ti\tneutral\nq2\ti\tcontradiction\n"
    (tmp_path / "nli_revised_premise_dev.tsv").write_text(header + revised)
    revised = "p\th1\tentailment\np\th2\tcontradiction\nq\ti1\tneutral\nq\ti2\tcontradiction\n"
    (tmp_path / "nli_revised_hypothesis_dev.tsv").write_text(header + revised)
    rows = read_nli(tmp_path, "dev")
    assert rows["row_id"][:] == [
        f"dev/{index}/{kind}/{number}" for index in (0, 1) for kind in ("premise", "hypothesis") for number in (0, 1)
    ]
    assert rows["original_id"][:] == ["dev/0"] * 4 + ["dev/1"] * 4
    assert rows["premise"][:] == ["p"] * 4 + ["q"] * 4 and rows["hypothesis"][:] == [" h"] * 4 + ["i"] * 4
    assert rows["augmented_premise"][:] == ["p1", "p2", "p", "p", "q1", "q2", "q", "q"]
    assert rows["augmented_hypothesis"][:] == ["h", "other", "h1", "h2", "i", "i", "i1", "i2"]
    assert (rows["label"][:], rows["augmented_label"][:]) == ([1] * 4 + [0] * 4, [0, 2, 0, 2, 1, 2, 1, 2])
    assert rows.features["label"].names == ["entailment", "neutral", "contradiction"]
    for kind, kept in (("premise", [0, 1, 4, 5]), ("hypothesis", [2, 3, 6, 7])):
        assert read_nli(tmp_path, "dev", kind).to_list() == rows.select(kept).to_list()


def test_all_layouts_give_the_same_rows(tmp_path: Path, folder: Path) -> None:
    clone = counterfactuals.write(tmp_path / "clone", counterfactuals.files(SIZES, as_clone=True))
    flat = counterfactuals.write_zip(tmp_path / "cad.zip", counterfactuals.files(SIZES))
    hub = counterfactuals.write_zip(tmp_path / "m.zip", counterfactuals.files(SIZES, as_clone=True), "name-master/")
    for split, size in SIZES.items():
        reviews, inference = read_sentiment(folder, split), read_nli(folder, split)
        assert (len(reviews), len(inference)) == (size, 4 * size)
        for other in (clone, flat, hub) if split == "dev" else ():
            assert read_sentiment(other, split).to_list() == reviews.to_list()
            assert read_nli(str(other), split).to_list() == inference.to_list()
            assert read_nli(other, split)._fingerprint == inference._fingerprint
    assert read_sentiment(clone / "sentiment", split).to_list() == reviews.to_list()
    assert read_nli(clone / "NLI", split).to_list() == inference.to_list()


def swap(old: str, new: str) -> Callable[[list[str]], None]:
    def edit(lines: list[str]) -> None:
        lines[:] = "".join(lines).replace(old, new, 1).splitlines(keepends=True)

    return edit


@pytest.mark.parametrize(
    ("file", "edit", "named"),
    [
        ("sentiment_dev_paired", lambda lines: lines.pop(4), "'151' has 1 rows"),
        ("sentiment_dev_paired", lambda lines: lines.append(lines[1]), "'150' has 3 rows"),
        ("sentiment_dev_paired", swap("Positive", "Good"), "good"),
        ("sentiment_dev_paired", swap("batch_id", "id"), "batch_id"),
        ("nli_original_dev", swap("\tcontradiction", "\t-"), "-"),
        ("nli_revised_premise_dev", swap("\tneutral", "\tmaybe"), "maybe"),
        ("nli_revised_hypothesis_dev", lambda lines: lines.append(lines.pop(1)), "line 3: expected the sentence1"),
        ("nli_revised_hypothesis_dev", lambda lines: lines.pop(), "two rows"),
    ],
)
def test_broken_files_are_refused(folder: Path, file: str, edit: Callable[[list[str]], None], named: str) -> None:
    read = read_nli if file.startswith("nli") else read_sentiment
    read(folder, "dev")
    change(folder / f"{file}.tsv", edit)
    with pytest.raises(ValueError, match=named):
        read(folder, "dev")


def test_missing_and_repeated_files_are_refused(folder: Path) -> None:
    (folder / "nli_revised_hypothesis_dev.tsv").unlink()
    assert len(read_nli(folder, "dev", "premise")) == 6  # a file that is not needed is not read
    with pytest.raises(DataError, match="nli_revised_hypothesis_dev"):
        read_nli(folder, "dev")
    with pytest.raises(DataError, match="val"):
        read_sentiment(folder, "val")
    counterfactuals.write(folder / "again", {"dev_paired.tsv": b""})
    with pytest.raises(DataError, match="again/dev_paired"):
        read_sentiment(folder, "dev")


@pytest.mark.realdata
@pytest.mark.parametrize(("split", "pairs"), [("train", 1707), ("dev", 245), ("test", 488)])
def test_the_published_reviews(real_data: Path, split: str, pairs: int) -> None:
    rows = read_sentiment(real_data / "cad" / "cad.zip", split)
    assert len(rows) == pairs == len(set(rows["row_id"]))
    assert {(row["label"], row["augmented_label"]) for row in rows} == {(0, 1), (1, 0)}
    # The table in its order: an original, then its revision.
    with zipfile.ZipFile(real_data / "cad" / "cad.zip") as archive:
        lines = archive.read(f"sentiment_{split}_paired.tsv").decode()
    table = list(csv.reader(io.StringIO(lines), delimiter="\t"))[1:]
    assert rows["text"][:] == [text for _, text, _ in table[::2]]
    assert rows["augmented_text"][:] == [text for _, text, _ in table[1::2]]
    unedited = {"train": ["train/8822"], "test": ["test/8893"]}
    assert [row["row_id"] for row in rows if row["text"] == row["augmented_text"]] == unedited.get(split, [])


@pytest.mark.realdata
@pytest.mark.parametrize(("split", "originals"), [("train", 1666), ("dev", 200), ("test", 400)])
def test_the_published_inference(real_data: Path, split: str, originals: int) -> None:
    rows = read_nli(real_data / "cad" / "cad.zip", split)
    assert len(rows) == 4 * originals == len(set(rows["row_id"]))
    assert Counter(Counter(rows["original_id"]).values()) == {4: originals}
    assert all(row["label"] != row["augmented_label"] for row in rows)
    of_original: dict[str, set[int]] = {}
    for row in rows:
        if "/premise/" in row["row_id"]:
            of_original.setdefault(row["original_id"], {row["label"]}).add(row["augmented_label"])
    assert all(labels == {0, 1, 2} for labels in of_original.values())
