"""Parts of a file of pairs: no group in two of them, and the classes of all labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.text.pair_files import GROUP, PairFileConfig, load_parts


def parts_of(folder: Path, rows: list[dict[str, Any]], group: str | None = None) -> Any:
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_parts(PairFileConfig(str(file), group))


def row(original: str, partner: str | None, **others: Any) -> dict[str, Any]:
    return {"text": original, "label": len(partner or "") % 2, "augmented_text": partner, **others}


def test_rows_that_share_a_text_directly_or_through_others_stay_together(tmp_path: Path) -> None:
    # Chains a0 - a1 - a2 of three rows, the last in the other direction, and a third of the rows without a partner.
    rows = []
    for name in map(str, range(40)):
        rows += [row(f"{name}a", f"{name}b"), row(f"{name}c", None), row(f"{name}c", f"{name}b")]
    parts, classes = parts_of(tmp_path, rows)
    assert {name: len(part) for name, part in parts.items()} == {"train": 66, "test": 36, "dev": 18}
    names = {name: {text[:-1] for text in part["text"]} for name, part in parts.items()}
    assert sum(map(len, names.values())) == 40 and len(set.union(*names.values())) == 40
    assert all(len(set(part[GROUP])) == len(part) / 3 for part in parts.values())
    assert classes == ["0", "1"]
    assert parts_of(tmp_path, rows)[0]["test"]["text"][:] == parts["test"]["text"][:]


@pytest.mark.parametrize(("column", "given"), [("dialogue_id", None), ("scene", "scene")])
def test_a_column_names_groups_and_a_large_one_is_trained_on(tmp_path: Path, column: str, given: str | None) -> None:
    rows = [row("same" if given else f"a{n}", f"b{n}", **{column: n // 4 if n < 60 else 99}) for n in range(100)]
    parts, _ = parts_of(tmp_path, rows, given)
    found = {name: set(part[column]) for name, part in parts.items()}
    assert sum(map(len, found.values())) == 16 and 99 in found["train"]
    assert (len(parts["test"]), len(parts["dev"])) == (28, 12)  # at most 30 and 15
    if given:
        parts, _ = parts_of(tmp_path, [{**line, given: line[given] % 99 or None} for line in rows], given)
        assert [len(parts[name]) for name in ("test", "dev")] == [30, 15], "rows without a group are groups"


def test_chats_of_other_dialogues_may_begin_alike(tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    rows = []
    for number in range(60):
        chats = ([*hello, {**hello[0], "content": f"{word} {number}"}, hello[1]] for word in ("a", "b"))
        rows.append(dict(zip(("messages", "augmented_messages"), chats, strict=True)))
    with pytest.raises(DataError, match="1 groups.*set group"):
        parts_of(tmp_path, rows)
    parts, _ = parts_of(tmp_path, [{**row, "dialogue_id": n // 2} for n, row in enumerate(rows)])
    assert len(parts["test"]) == 18 and sum(len(set(part["dialogue_id"])) for part in parts.values()) == 30


def test_texts_with_other_second_texts_and_parts_of_an_earlier_split(tmp_path: Path) -> None:
    rows = [row(f"a{n // 3}", f"p{n}", text_pair=f"b{n}", augmented_text_pair=f"c{n}") for n in range(90)]
    parts, _ = parts_of(tmp_path, rows)
    assert len(parts["test"]) == 27 and sum(len(set(part["text"])) for part in parts.values()) == 30
    assert all(map(len, parts_of(tmp_path, parts["train"].to_list())[0].values()))
    parts, _ = parts_of(tmp_path, [{**line, "text": "Is it?"} for line in rows])
    assert len(parts["test"]) == 27


def test_texts_connect_rows_with_different_ids(tmp_path: Path) -> None:
    ids = [None if n % 5 == 0 else n for n in range(60)]
    parts, _ = parts_of(tmp_path, [row(f"a{n // 2}", f"b{n}", original_id=ids[n]) for n in range(60)])
    texts = [set(part["text"]) for part in parts.values()]
    assert sum(map(len, texts)) == 30 and len(parts["test"]) == 18


@pytest.mark.parametrize("form", ["messages", "prompt"])
def test_dialogues_that_begin_alike_stay_together(tmp_path: Path, form: str) -> None:
    rows = []
    for number in range(60):
        turns = [f"{number // 2}?", "so", "and?", "then"][: 2 + number % 2 * 2]
        chat = [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]
        other = [{"role": "user", "content": f"again {number}"}, *chat[1:]]
        pair = {"": chat, "augmented_": other}
        if form == "messages":
            rows.append({"original_id": number, **{f"{prefix}messages": view for prefix, view in pair.items()}})
        else:
            cells = (("prompt", slice(-1)), ("completion", slice(-1, None)))
            rows.append({f"{prefix}{name}": view[part] for prefix, view in pair.items() for name, part in cells})
    parts, _ = parts_of(tmp_path, rows)
    first = [{cell[0]["content"] for cell in part[form]} for part in parts.values()]
    assert sum(map(len, first)) == 30 and len(parts["test"]) == 18


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["pos", "neg"], ["neg", "pos"]),
        ([10, 9], ["9", "10"]),
        ([True, False], ["False", "True"]),
        ([2.0, -1.0], ["-1", "2"]),
    ],
)
def test_classes_are_those_of_all_rows_and_views(tmp_path: Path, labels: list[Any], names: list[str]) -> None:
    original, partner = labels
    rows = [row(f"a{n}", f"b{n}", label=original, augmented_label=partner) for n in range(19)]
    rows.append(row("a19", None, label=original, augmented_label=None))
    parts, classes = parts_of(tmp_path, rows)
    assert classes == names
    views = {(r["label"], r["augmented_label"]) for part in parts.values() for r in part}
    assert views == {(names[1], names[0]), (names[1], None)}


@pytest.mark.parametrize(
    ("changes", "group", "message"),
    [
        ({}, "scene", "scene"),
        ({"text": "a"}, None, "test, dev"),
        ({"label": 0.5}, None, "0.5"),
        ({"label": "good"}, None, "two classes.*good"),  # a model with one output would be a regression
    ],
)
def test_what_cannot_be_split_is_refused(
    tmp_path: Path, changes: dict[str, Any], group: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        parts_of(tmp_path, [{**row(f"a{n}", f"b{n}"), **changes} for n in range(20)], group)
