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
        for other in (clone, flat, hub):
            assert read_sentiment(other, split).to_list() == reviews.to_list()
            assert read_nli(str(other), split).to_list() == inference.to_list()
            assert read_nli(other, split)._fingerprint == inference._fingerprint
        assert read_sentiment(clone / "sentiment", split).to_list() == reviews.to_list()
        assert read_nli(clone / "NLI", split).to_list() == inference.to_list()


def test_a_pair_needs_two_reviews(folder: Path) -> None:
    file = folder / "sentiment_dev_paired.tsv"
    change(file, lambda lines: lines.pop(4))
    with pytest.raises(DataError, match=r"dev_paired\.tsv: line 4: batch_id '151' has 1 rows; a pair is two rows"):
        read_sentiment(folder, "dev")
    change(file, lambda lines: lines.append(lines[1]))
    with pytest.raises(DataError, match=r"line 7: batch_id '150' has 3 rows"):
        read_sentiment(folder, "dev")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("sentiment_dev_paired", "Positive", "Good", r"line 3: unknown label 'Good'; use one of negative, positive"),
        ("sentiment_dev_paired", "batch_id", "id", r"expected the columns \[\'batch_id\'\]"),
        ("nli_original_dev", "\tcontradiction", "\t-", r"line 2: unknown label '-'; use one of entailment, neutral"),
        ("nli_revised_premise_dev", "\tneutral", "\tmaybe", r"premise_dev\.tsv: line 3: unknown label 'maybe'"),
    ],
)
def test_unknown_labels_and_missing_columns_are_refused(
    folder: Path, file: str, old: str, new: str, message: str
) -> None:
    path = folder / f"{file}.tsv"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_nli(folder, "dev") if file.startswith("nli") else read_sentiment(folder, "dev")


def test_bytes_that_are_not_utf8_are_refused(folder: Path) -> None:
    path = folder / "sentiment_dev_paired.tsv"
    path.write_bytes(path.read_bytes().replace(b"<br />", b"\x96", 1))
    with pytest.raises(DataError, match=r"dev_paired\.tsv: line 2: not UTF-8 text \(byte 0x96\)"):
        read_sentiment(folder, "dev")


def test_revisions_out_of_step_are_refused(folder: Path) -> None:
    path = folder / "nli_revised_hypothesis_dev.tsv"
    change(path, lambda lines: lines.append(lines.pop(1)))  # by one row
    with pytest.raises(DataError, match=r"line 3: sentence1 is not that of its original at .*nli_original_dev.*line 2"):
        read_nli(folder, "dev")
    change(path, lambda lines: lines.pop())
    with pytest.raises(DataError, match=r"line 6: the file ends with row 5, but 3 originals need 6, two for each"):
        read_nli(folder, "dev", "hypothesis")
    assert len(read_nli(folder, "dev", "premise")) == 6  # the broken file is not read


def test_missing_and_repeated_files_are_refused(folder: Path) -> None:
    for read in (read_sentiment, read_nli):
        with pytest.raises(DataError, match="split 'val' is unknown; use one of train, dev, test"):
            read(folder, "val")
        with pytest.raises(DataError, match="no such file or folder"):
            read(folder / "none", "dev")
    with pytest.raises(DataError, match="revisions='label' is unknown; use one of both, premise, hypothesis"):
        read_nli(folder, "dev", "label")
    (folder / "nli_revised_premise_dev.tsv").unlink()
    with pytest.raises(DataError, match=r"holds no file \(nli_revised_premise_dev\|revised_premise/dev\)\.tsv"):
        read_nli(folder, "dev")
    counterfactuals.write(folder / "again", {"dev_paired.tsv": b""})
    with pytest.raises(DataError, match=r"holds again/dev_paired\.tsv and sentiment_dev_paired\.tsv; give the folder"):
        read_sentiment(folder, "dev")


# --- the published data ---------------------------------------------------------------------------------------------


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
def test_originals_are_tidy_and_revisions_are_not(real_data: Path) -> None:
    """The originals have no double space and none at an end; people who edit a text leave some."""
    rows = read_sentiment(real_data / "cad" / "cad.zip", "train")
    for column, at_ends, doubled in (("text", 0, 0), ("augmented_text", 40, 394)):
        texts = rows[column][:]
        assert sum(text != text.strip() for text in texts) == at_ends
        assert sum("  " in text for text in texts) == doubled


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
