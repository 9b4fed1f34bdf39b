"""Pairs of rows and edits: the draw of an edit, rows without edits, and the expansion for evaluation."""

from __future__ import annotations

import hashlib

import pytest
from datasets import Dataset

from dair_hf.vqa.pairs import edit_pairs, expand_edits
from dair_hf.vqa.readers.reading import EDIT_FEATURES, ROW_FEATURES

# Question -> edited images; the data has another order.
EDITED = {9000: ["9_3", "9_1", "9_2"], 25000: ["25_7"], 34000: ["34_5", "34_4"]}
QUESTIONS = (9000, 9001, 25000, 34000, 34001)


def rows(questions: tuple[int, ...] = QUESTIONS) -> Dataset:
    data = [
        {
            "row_id": str(question_id),
            "question_id": question_id,
            "image_id": str(question_id // 1000),
            "image": f"/images/{question_id // 1000}.jpg",
            "question": f"Question {question_id}?",
            "answers": ["4"] * 10,
            "question_type": "how many",
            "answer_type": "number",
        }
        for question_id in questions
    ]
    return Dataset.from_list(data, features=ROW_FEATURES)


def edits(edited: dict[int, list[str]] = EDITED) -> Dataset:
    data = [
        {
            "question_id": question_id,
            "image_id": image_id,
            "image": f"/edited/{image_id}.jpg",
            "question": f"Question {question_id}?",
            "answers": [image_id] * 10,
        }
        for question_id, images in reversed(edited.items())
        for image_id in images
    ]
    return Dataset.from_list(data, features=EDIT_FEATURES)


def draw_edits(rows: Dataset, edits: Dataset, seed: int, epoch: int) -> Dataset:
    return edit_pairs(rows, edits, seed).at(epoch)


def uniform(question_id: int, seed: int, epoch: int) -> float:
    """Compute `counter_rng.uniform` with Python integers: splitmix64 from a hashed start."""
    start = int.from_bytes(hashlib.blake2b(f"{seed}/{epoch}/0/vqa/edit".encode(), digest_size=8).digest(), "little")
    z = (start + question_id * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return ((z ^ (z >> 31)) >> 11) / 2**53


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (5, 0), (5, 39)])
def test_edit_depends_on_question_seed_and_epoch(seed: int, epoch: int) -> None:
    pairs = draw_edits(rows(), edits(), seed, epoch)
    for row in pairs:
        images = sorted(EDITED.get(row["question_id"], []))
        image_id = images[int(uniform(row["question_id"], seed, epoch) * len(images))] if images else None
        assert row["augmented_image_id"] == image_id


def test_pair_has_the_row_and_one_edit() -> None:
    pairs = draw_edits(rows(), edits(), 0, 0)
    assert pairs.features == {
        **ROW_FEATURES,
        **{f"augmented_{name}": EDIT_FEATURES[name] for name in ("image_id", "image", "question", "answers")},
    }
    assert pairs.remove_columns([name for name in pairs.column_names if name.startswith("augm")]).to_list() == (
        rows().to_list()
    )
    for row in pairs:
        augmented = {name: value for name, value in row.items() if name.startswith("augmented_")}
        image_id = row["augmented_image_id"]
        if row["question_id"] not in EDITED:
            assert set(augmented.values()) == {None}
            continue
        assert augmented == {
            "augmented_image_id": image_id,
            "augmented_image": f"/edited/{image_id}.jpg",
            "augmented_question": row["question"],
            "augmented_answers": [image_id] * 10,
        }


def test_draw_does_not_depend_on_order_or_other_rows() -> None:
    pairs = draw_edits(rows(), edits(), 3, 2)
    wanted = dict(zip(pairs["question_id"][:], pairs["augmented_image_id"][:], strict=True))
    shuffled = draw_edits(rows().shuffle(seed=1), edits().shuffle(seed=2), 3, 2)
    assert dict(zip(shuffled["question_id"][:], shuffled["augmented_image_id"][:], strict=True)) == wanted
    part = draw_edits(rows().select([3, 0]), edits(), 3, 2)
    assert part["augmented_image_id"][:] == [wanted[34000], wanted[9000]]


def test_equal_draws_have_equal_fingerprints() -> None:
    one, two = rows(), edits()
    kinds = [(0, 0), (0, 1), (1, 0)]
    prints = {draw_edits(one, two, *kind)._fingerprint for kind in kinds}
    assert len(prints) == 3
    assert draw_edits(one, two, 0, 0)._fingerprint in prints
    assert draw_edits(one, two.select([0, 1]), 0, 0)._fingerprint not in prints


def test_every_edit_becomes_a_pair() -> None:
    pairs = expand_edits(rows(), edits())
    wanted = [(question_id, image) for question_id in QUESTIONS for image in sorted(EDITED.get(question_id, []))]
    assert list(zip(pairs["question_id"][:], pairs["augmented_image_id"][:], strict=True)) == wanted
    assert pairs["row_id"][:] == [f"{question_id}/{image}" for question_id, image in wanted]
    assert pairs["image"][:] == [f"/images/{question_id // 1000}.jpg" for question_id, _ in wanted]
    assert pairs["augmented_answers"][:] == [[image] * 10 for _, image in wanted]
    assert pairs.features == draw_edits(rows(), edits(), 0, 0).features
