"""Contents of pairs: decoded texts, labels, images, values that differ."""

from __future__ import annotations

from typing import Any

import datasets
import torch

from dair_hf import TensorPairs
from dair_hf.evaluation.views import views_of
from dair_hf.pair_report.contents import MAX_CHARACTERS, PairContents, row_of
from tests.fixtures import tiny


def shown(original: dict[str, Any], partner: dict[str, Any], tokenizer: Any = None, texts: Any = None) -> list[Any]:
    return [
        (field["name"], field["kind"], *[field.get(view) for view in ("original", "augmented")])
        for field in PairContents(tokenizer, texts, "class {}".format)(original, partner)
    ]


def test_tokens_are_decoded_without_padding_of_labels() -> None:
    original = {"input_ids": [5, 6, 1], "attention_mask": [1, 1, 1], "labels": [7, 1, -100]}
    partner = {"input_ids": [5, 8, 1], "attention_mask": [1, 1, 1], "labels": [9, 1, -100]}
    assert shown(original, partner, tiny.tokenizer()) == [
        ("input", "text", "w5 w6", "w5 w8"),
        ("target", "text", "w7", "w9"),
    ]


def test_prompt_of_a_decoder_only_model_is_parted_from_its_target() -> None:
    original = {"input_ids": [5, 6, 7, 1], "labels": [-100, -100, 7, 1]}
    partner = {"input_ids": [5, 8, 1], "labels": [-100, 8, 1]}
    assert shown(original, partner, tiny.tokenizer()) == [
        ("input", "text", "w5 w6", "w5"),
        ("target", "text", "w7", "w8"),
    ]


def test_inherited_labels_and_texts_by_name() -> None:
    original = {"text": "good", "input_ids": [5], "labels": 1}
    assert shown(original, {"text": "fine", "input_ids": [6]}, tiny.tokenizer(), ["text"]) == [
        ("text", "text", "good", "fine"),
        ("label", "text", "class 1", "class 1"),
    ]


def test_turns_of_a_dialogue_are_lines() -> None:
    turns = [{"speaker": "user", "text": "hello"}, {"speaker": "system", "text": "hi"}]
    ((_, _, text, _),) = shown({"history": turns}, {"history": turns[:1]}, None, ["history"])
    assert text == "user: hello\nsystem: hi"


def test_of_tables_the_values_that_differ_are_shown() -> None:
    (field,) = PairContents(None, None, str)(
        {"x": [0.5, 2.0, 3.0], "kind": 4, "same": 1}, {"x": [0.5, 2.5, 3.0], "kind": 5, "same": 1}
    )
    assert field["rows"] == [["x[1]", "2", "2.5"], ["kind", "4", "5"]]
    assert field["differing"] == 2


def test_images_and_labels_of_tensors() -> None:
    pairs = TensorPairs(
        {"pixel_values": torch.zeros(2, 1, 4, 4), "labels": torch.tensor([3, 4])},
        {"pixel_values": torch.ones(2, 1, 4, 4), "labels": torch.tensor([3, 5])},
        has_partner=torch.tensor([False, True]),
        columns={"digit": [3, 4]},
    )
    image, label = shown(*row_of(views_of(pairs), 1))
    assert image[:2] == ("pixel_values", "image") and image[2] != image[3]
    assert label == ("label", "text", "class 4", "class 5")
    assert row_of(views_of(pairs), 0)[1] == {"pixel_values": None, "labels": None}


def test_columns_are_those_of_the_named_partner() -> None:
    row = {"row_id": "a", "x": 1, "2d": 0, "augmented_x": 2, "augmented_2d": 8, "augmented_2_x": 3, "augmented_12_x": 4}
    views = views_of(datasets.Dataset.from_list([row]))
    partners = {partner: row_of(views, 0, partner)[1] for partner in (1, 2, 3, 12)}
    assert partners == {1: {"x": 2, "2d": 8}, 2: {"x": 3}, 3: {}, 12: {"x": 4}}
    assert row_of(views, 0, 2)[0] == {"x": 1, "2d": 0}
    images = [{"pixel_values": torch.full((1, 1, 4, 4), value), "labels": torch.tensor([3])} for value in (0.0, 0.5)]
    pairs = TensorPairs(images[0], [images[0], {**images[1], "labels": torch.tensor([7])}])
    image, label = shown(*row_of(views_of(pairs), 0, 2))
    assert image[1] == "image" and image[2] != image[3]
    assert label == ("label", "text", "class 3", "class 7")


def test_a_transform_of_the_data_is_applied() -> None:
    data = datasets.Dataset.from_dict({"row_id": ["a"], "x": [1], "augmented_x": [2]})
    data.set_transform(
        lambda batch: {name: [10 * v if name != "row_id" else v for v in vs] for name, vs in batch.items()}
    )
    assert row_of(views_of(data), 0) == ({"x": 10}, {"x": 20})


def test_endless_texts_are_cut() -> None:
    ((_, _, text, _),) = shown({"text": "x" * (MAX_CHARACTERS + 7)}, {"text": "y"})
    assert text.endswith("x [7 more]") and len(text) < MAX_CHARACTERS + 20
