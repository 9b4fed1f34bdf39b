"""Normalization of answers against the published evaluation code and hand-made cases."""

from __future__ import annotations

import json
from pathlib import Path

from dair_hf.metrics.vqa.answers import normalize_answer, strip_spaces

# (text, output of the evaluation code published with version 2 of the data) for all words of its tables and for edge
# cases of its rules.
PINNED = json.loads(Path(__file__).with_name("pinned_vqa.json").read_text(encoding="utf-8"))["normalized"]


def test_output_of_the_published_code() -> None:
    assert len(PINNED) > 200
    assert [[text, normalize_answer(text)] for text, _ in PINNED] == PINNED


def test_spaces() -> None:
    assert strip_spaces("\n a\tb \n") == "a b"
    assert strip_spaces("A  b") == "A  b"
    assert normalize_answer("  A  b\u00a0 c ") == "b c"
    assert normalize_answer("line\nend") == "line end"
