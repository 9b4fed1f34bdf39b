"""Token ids of paired texts."""

from __future__ import annotations

from datasets import Dataset

from dair_hf.text.encoding import ClassifierEncoder, plain_text
from dair_hf.word_tokenizer import build_word_tokenizer

WORDS = "a b c d"  # ids 2 to 5


def encode(rows: dict[str, list[str | None]], *texts: str, limit: int = 9, delimiters: bool = False) -> Dataset:
    tokenizer = build_word_tokenizer([WORDS], min_count=1, delimiters=delimiters)
    return Dataset.from_dict(rows).map(ClassifierEncoder(tokenizer, texts, limit), batched=True)


def test_line_breaks_are_spaces_and_the_rest_is_kept() -> None:
    assert plain_text('<br /><br />"A"\x85 <br/> b<br />c') == '  "A"\x85 <br/> b c'


def test_both_views_of_one_text() -> None:
    rows = {"text": ["A<br />b.", "d", "..."], "augmented_text": ["a c", None, "zebra b"], "label": [0, 1, 0]}
    encoded = encode(rows, "text")
    assert encoded["input_ids"][:] == [[2, 3], [5], [1]]  # a text without words is one unknown word
    assert encoded["augmented_input_ids"][:] == [[2, 4], None, [1, 3]]
    assert set(encoded.column_names) == {*rows, "input_ids", "augmented_input_ids"}


def test_two_texts_have_types_and_lose_the_end_of_the_longer() -> None:
    rows = {"premise": ["a b c d", "a"], "hypothesis": ["b a", "b"]}
    rows |= {"augmented_premise": ["a", None], "augmented_hypothesis": ["", None]}
    encoded = encode(rows, "premise", "hypothesis", limit=5)
    assert encoded["input_ids"][:] == [[2, 3, 4, 3, 2], [2, 3]]
    assert encoded["token_type_ids"][:] == [[0, 0, 0, 1, 1], [0, 1]]
    assert encoded["augmented_input_ids"][:] == [[2], None]
    assert encoded["augmented_token_type_ids"][:] == [[0], None]
    delimited = encode(rows, "premise", "hypothesis", limit=5, delimiters=True)
    assert delimited["input_ids"][:] == [[2, 4, 3, 5, 3], [2, 4, 3, 5, 3]]
    assert delimited["token_type_ids"][:] == [[0, 0, 0, 1, 1]] * 2
