"""Contents of pairs: decoded texts, labels, images, values that differ."""

from __future__ import annotations

import base64
import io
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from dair_hf import TensorPairs
from dair_hf.data.held_rows import HeldRows
from dair_hf.evaluation.views import views_of
from dair_hf.pair_report import contents
from dair_hf.pair_report.contents import (
    MAX_CHARACTERS,
    MAX_SIDE,
    PairContents,
    _is_image,
    _png_uris,
    mark_differences,
    row_of,
)
from tests.fixtures import tiny


def shown(original: dict[str, Any], partner: dict[str, Any], tokenizer: Any = None, texts: Any = None) -> list[Any]:
    return [
        (field["name"], field["kind"], *[field.get(view) for view in ("original", "augmented")])
        for field in PairContents(tokenizer, texts, "class {}".format)(original, partner)
    ]


def test_tokens_are_decoded_without_padding_of_labels_and_prompts_without_targets() -> None:
    encoder_decoder = [{"input_ids": [5, i, 1], "attention_mask": [1] * 3, "labels": [i + 1, 1, -100]} for i in (6, 8)]
    assert shown(*encoder_decoder, tiny.tokenizer()) == [
        ("input", "text", "w5 w6", "w5 w8"),
        ("target", "text", "w7", "w9"),
    ]
    original = {"input_ids": [5, 6, 7, 1], "labels": [-100, -100, 7, 1]}
    assert shown(original, {"input_ids": [5, 8, 1], "labels": [-100, 8, 1]}, tiny.tokenizer()) == [
        ("input", "text", "w5 w6", "w5"),
        ("target", "text", "w7", "w8"),
    ]


def test_inherited_labels_and_texts_by_name() -> None:
    original = {"text": "good", "input_ids": [5], "labels": 1}
    assert shown(original, {"text": "fine", "input_ids": [6]}, tiny.tokenizer(), ["text"]) == [
        ("text", "text", "good", "fine"),
        ("label", "text", "class 1", "class 1"),
    ]


def test_turns_of_a_dialogue_are_lines_and_endless_texts_are_cut() -> None:
    turns = [{"speaker": "user", "text": "hello"}, {"speaker": "system", "text": "hi"}]
    ((_, _, text, _),) = shown({"history": turns}, {"history": turns[:1]}, None, ["history"])
    assert text == "user: hello\nsystem: hi"
    ((_, _, text, _),) = shown({"text": "x" * (MAX_CHARACTERS + 7)}, {"text": "y"})
    assert text.endswith("x [7 more]") and len(text) < MAX_CHARACTERS + 20


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
    assert row_of(views_of(HeldRows(data)), 0) == ({"x": 10}, {"x": 20})


def test_scores_of_classes_are_shown_beside_texts() -> None:
    pair = [{"input_ids": [5], "labels": [1.0, 0.0, 1.0]}, {"input_ids": [6], "labels": [0.0, 0.0, 1.0]}]
    text, values = PairContents(tiny.tokenizer(), None, str)(*pair)
    assert text["name"] == "input" and values["differing"] == 1 and "labels" in str(values["rows"])
    for value in (["a", "b"], [[0.1, 0.2]]):  # of other losses
        assert len(shown({**pair[0], "labels": value}, {**pair[1], "labels": value}, tiny.tokenizer())) == 1


# ---- differing words ----

TEXT = st.text(alphabet=st.sampled_from("ab ,.é\u0301\n喝茶🙂<&"), max_size=40)


def changed(segments: list[contents._Segment]) -> list[str]:
    return [segment.text for segment in segments if segment.kind == "changed"]


@pytest.mark.parametrize(
    ("original", "augmented", "marked"),
    [
        ("book the lensfield , please", "book narug yerdrc , please", (["the lensfield"], ["narug yerdrc"])),
        ("a b c", "a c", (["b"], [])),
        ("", "new text", ([], ["new text"])),
        ("same", "same", ([], [])),
        ("same  words", "same words", ([], [])),  # spaces are no words
        ("a good, short film", "a bad, short film!", (["good"], ["bad", "!"])),
        ("我要喝茶", "我要喝水", (["茶"], ["水"])),
        ("cafe\u0301 x", "cafe x", (["cafe\u0301"], ["cafe"])),
        ("x=1", "x=2", (["1"], ["2"])),
    ],
)
def test_marked_are_the_words_that_differ(original: str, augmented: str, marked: tuple[list[str], list[str]]) -> None:
    left, right = mark_differences(original, augmented)
    assert (changed(left), changed(right)) == marked


@given(TEXT, TEXT)
@example("<<", "<<<")
@example("a", "b a")
def test_no_character_is_lost(original: str, augmented: str) -> None:
    left, right = mark_differences(original, augmented, context=1000)
    assert ("".join(s.text for s in left), "".join(s.text for s in right)) == (original, augmented)
    # What is not marked is the same in both, but for spaces.
    plain = [
        [words for s in segments if s.kind == "same" for words in contents._WORD.findall(s.text)]
        for segments in (left, right)
    ]
    assert plain[0] == plain[1]


def test_long_texts_are_shortened_around_differences() -> None:
    words = [f"w{number}" for number in range(200)]
    other = [*words[:100], "new", *words[101:]]
    left, right = mark_differences(" ".join(words), " ".join(other), context=3)
    assert [s.text for s in left] == ["97 words", "w97 w98 w99 ", "w100", " w101 w102 w103", "96 words"]
    assert [s.kind for s in left] == ["omitted", "same", "changed", "same", "omitted"]
    assert changed(right) == ["new"]


def test_what_is_only_appended_or_put_before_keeps_its_neighbours() -> None:
    words = [f"w{number}" for number in range(50)]
    for other, kept in (([*words, "new"], "w48 w49"), (["new", *words], "w0 w1")):
        left, right = mark_differences(" ".join(words), " ".join(other), context=2)
        assert [s.text.strip() for s in left if s.kind == "same"] == [kept]
        assert changed(left) == [] and changed(right) == ["new"]


def test_equal_long_texts_show_their_beginning_and_huge_differences_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(["word"] * 50)
    (shown, note), _ = mark_differences(text, text, context=4)
    assert (shown.text, note.text) == ("word word word word", "46 words")
    monkeypatch.setattr(contents, "MAX_COMPARISONS", 5)
    assert changed(mark_differences("same a b c end", "same x b y end")[0]) == ["a b c"]


# ---- images ----


def pixels(uri: str) -> np.ndarray:
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(1, 28, 28), True),
        (np.zeros((28, 28, 3)), True),
        (np.zeros((8, 8), np.uint8).tolist(), True),
        (Image.new("RGB", (4, 4)), True),
        (np.zeros((6, 8, 8)), False),
        (np.zeros((1, 1, 9)), False),
        (np.zeros(9), False),
        ([[1], [1, 2]], False),
        ("text", False),
        (None, False),
    ],
)
def test_what_is_an_image(value: Any, expected: bool) -> None:
    assert _is_image(value) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Shares of white become bytes.
        (([[0.0, 0.5], [1.0, 0.2]], [[0.0, 0.0], [0.0, 0.0]]), ([[0, 128], [255, 51]], [[0, 0], [0, 0]])),
        # Standardized pixels are stretched over both views.
        (([[-1.0, 0.0], [0.0, 0.0]], [[3.0, 1.0], [0.0, 0.0]]), ([[0, 64], [64, 64]], [[255, 128], [64, 64]])),
    ],
)
def test_values_become_bytes(values: Any, expected: Any) -> None:
    for kind in (torch.tensor, np.array):
        assert tuple(pixels(uri).tolist() for uri in _png_uris(*map(kind, values))) == expected


def test_channels_become_colors() -> None:
    red_green = np.zeros((2, 4, 5))
    red_green[0] = 1.0
    assert pixels(_png_uris(red_green, red_green)[0])[0, 0].tolist() == [255, 0, 0]
    last = np.zeros((4, 5, 3), np.uint8)
    last[..., 2] = 7
    assert pixels(_png_uris(last, last)[0])[0, 0].tolist() == [0, 0, 7]
    image = Image.new("RGB", (5, 4), (1, 2, 3))
    assert pixels(_png_uris(image, image)[0])[0, 0].tolist() == [1, 2, 3]


def test_large_images_are_scaled_down_and_nan_is_black() -> None:
    large = np.full((3, 500, 250), np.nan)
    large[0, 0, 0] = 1.0
    assert pixels(_png_uris(large, large)[0]).shape == (MAX_SIDE, MAX_SIDE // 2, 3)
