"""Command that draws counting scenes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.data import VQAConfig, load_vqa
from dair_hf.vqa.scenes.files import SceneConfig
from tests.data_scripts.scripts import Done, run_script

SPLITS = ("train", "familiar", "validation", "test")
SMALL = ("--train_scenes", 30, "--test_scenes", 12)


def run(*arguments: object) -> Done:
    return run_script("prepare_counting_scenes.py", *arguments)


def records(folder: Path, split: str, name: str, kind: str) -> list[dict[str, Any]]:
    return json.loads((folder / split / name / f"{kind}.json").read_text())[kind]


def test_scenes_are_written_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "scenes"
    done = run(*SMALL, "--output", folder)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"written: {folder}"), done.stderr
    header, *lines = done.stdout.splitlines()[:-1]
    assert header.split() == list(SPLITS)
    assert len({len(line) for line in (header, *lines)}) == 1, "aligned columns"
    numbers = {}
    for line in lines:
        name, counts = re.fullmatch(r"((?:  )?\S+(?: \S+)*) {2,}(.*)", line).groups()
        numbers[name] = re.split(" {2,}", counts)
    assert [name for name in numbers if name[0] != " "] == ["questions", "answers", "edits", "questions with an edit"]
    assert numbers["questions"] == ["30", "12", "12", "12"]
    for place, split in enumerate(SPLITS):
        answered = records(folder, split, "", "annotations")
        types = Counter(record["question_type"] for record in answered)
        answers = Counter(record["multiple_choice_answer"] for record in answered)
        edited = [record["question_id"] for record in records(folder, split, "edits", "questions")]
        expected = {f"  {name}": str(count) for name, count in (types + answers).items()}
        expected |= {"edits": str(len(edited)), "answers": str(len(answered))}
        expected["questions with an edit"] = f"{100 * len(set(edited)) / len(answered):.1f} %"
        assert {name: numbers[name][place] for name in expected} == expected
    names = list(numbers)
    values = [name.strip() for name in names[names.index("answers") + 1 : names.index("edits")]]
    assert values == sorted(values), "numbers, then words"


def test_recipe_reads_the_same_rows_drawn_and_prepared(tmp_path: Path) -> None:
    assert run(*SMALL, "--edit", "iv", "--output", tmp_path / "scenes").returncode == 0
    settings = SceneConfig("iv", train_scenes=30, test_scenes=12)
    config = VQAConfig(scene_folder=str(tmp_path / "scenes"))
    prepared = load_vqa(config, settings, tmp_path / "unused")
    drawn = load_vqa(VQAConfig(), settings, tmp_path / "drawn")
    assert not (tmp_path / "unused").exists()
    assert (prepared.name, prepared.reports) == (drawn.name, drawn.reports)
    for name in ("train", "train_edits", "test", "test_edits", "familiar"):
        rows, expected = getattr(prepared, name), getattr(drawn, name)
        images = [[Path(path) for path in part["image"][:]] for part in (rows, expected)]
        assert [path.relative_to(tmp_path / "scenes") for path in images[0]] == [
            path.relative_to(tmp_path / "drawn") for path in images[1]
        ]
        assert images[0][0].read_bytes() == images[1][0].read_bytes()
        assert rows.remove_columns("image").to_list() == expected.remove_columns("image").to_list()


def test_recipe_refuses_scenes_of_other_settings_and_versions(tmp_path: Path) -> None:
    assert run(*SMALL, "--output", tmp_path / "scenes").returncode == 0
    config = VQAConfig(scene_folder=str(tmp_path / "scenes"))
    mark = tmp_path / "scenes" / "prepared.json"
    text = mark.read_text()
    for settings, content, said in (
        (SceneConfig("iv", train_scenes=30, test_scenes=12), text, "'edit': 'iv'"),
        (SceneConfig(train_scenes=30), text, "'test_scenes': 2000"),
        (SceneConfig(), '{"kind": "scenes", "version": 9}', "version"),
        (SceneConfig(), '{"kind": "vqa", "version": 2}', "kind"),
    ):
        mark.write_text(content)
        with pytest.raises(DataError, match=re.escape(said)):
            load_vqa(config, settings, tmp_path / "unused")
