"""Folders are written completely or not at all, keep files of others, and belong to one process at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from dair_hf.io.files import LOCK, MANIFEST, atomic_folder, claim_folder, mark_folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write(target: Path, *names: str, **settings: bool) -> None:
    with atomic_folder(target, **settings) as folder:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)


def test_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="halfway"), atomic_folder(tmp_path / "new" / "data") as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "new" / "data").exists()
        raise RuntimeError("halfway")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for target in ("new/data", "empty", "link/below"):
        write(tmp_path / target, "a", "b/c")
        assert contents(tmp_path / target).keys() >= {"a", "b/c", MANIFEST}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "new"]


def test_only_folders_of_the_same_program_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "data"
    write(target, "first", "b/c")
    with pytest.raises(DataError, match="data: already exists"):
        write(target, "second")
    write(target, "second", overwrite=True)
    assert contents(target).keys() == {"second", MANIFEST}
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    before = contents(target)
    monkeypatch.setattr(sys, "argv", ["another_program.py"])
    with pytest.raises(DataError, match=f"holds {MANIFEST}, second, which this command did not write"):
        write(target, "third", overwrite=True)
    assert contents(target) == before


@pytest.mark.parametrize("foreign", ["notes.txt", "sub/notes.txt", "sub/", "link"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_kept(tmp_path: Path, foreign: str, overwrite: bool) -> None:
    for target in (tmp_path / "written", tmp_path / "foreign"):
        if target.name == "written":
            write(target, "a")
        path = target / foreign
        path.parent.mkdir(parents=True, exist_ok=True)
        if foreign.endswith("/"):
            path.mkdir()
        elif foreign == "link":
            path.symlink_to(tmp_path)
        else:
            path.write_text("mine")
        before = sorted(path.name for path in target.rglob("*") if not path.is_symlink())
        with pytest.raises(DataError, match=f"holds {foreign.rstrip('/')}, which this command did not write"):
            write(target, "b", overwrite=overwrite)
        assert sorted(path.name for path in target.rglob("*") if not path.is_symlink()) == before


def test_folder_filled_in_the_meantime_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds notes.txt"), atomic_folder(tmp_path / "data") as folder:
        (folder / "a").write_text("a")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "notes.txt").write_text("mine")
    assert contents(tmp_path) == {"data/notes.txt": "mine"}


def test_sources_files_and_the_working_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", "a")
    (tmp_path / "link").symlink_to("data")
    for target, source in (("link", "data"), ("data", "link"), ("data", "data/a"), ("data/new", "data")):
        with (
            pytest.raises(DataError, match=f"{target}: overlaps .*{source}"),
            atomic_folder(tmp_path / target, ["elsewhere", tmp_path / source], overwrite=True),
        ):
            pass
    with pytest.raises(DataError, match="data/a: "):
        write(tmp_path / "data" / "a", "b")
    with pytest.raises(DataError, match="a/b: cannot write there"):
        write(tmp_path / "data" / "a" / "b", "b")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(DataError, match="working folder"):
        write(Path(), "b")
    assert contents(tmp_path).keys() == {"data/a", f"data/{MANIFEST}"}


def test_claimed_folder_is_new_or_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.json").write_text("mine")
    with pytest.raises(DataError, match="mine: holds data.json, which a recipe would replace; name a new folder"):
        claim_folder(tmp_path / "mine")
    with pytest.raises(DataError, match="data.json: "):
        claim_folder(tmp_path / "mine" / "data.json")
    with pytest.raises(DataError, match="data.json/below: cannot write there"):
        claim_folder(tmp_path / "mine" / "data.json" / "below")
    assert contents(tmp_path) == {"mine/data.json": "mine"}
    monkeypatch.chdir(tmp_path)
    assert claim_folder("new/run") == Path("new/run")
    assert (tmp_path / "new/run" / LOCK).exists()
    # The same folder again, and a subfolder.
    claim_folder(tmp_path / "new" / "run")
    (tmp_path / "new/run/search").mkdir()
    (tmp_path / "new/run/search/trial.json").write_text("{}")
    claim_folder(tmp_path / "new/run/search")
    assert not (tmp_path / "new/run/search" / LOCK).exists()


@pytest.mark.parametrize(
    ("names", "content", "foreign"),
    [
        # For example after `recipe | tee out/train.log`.
        (["train.log", ".gitkeep", "notes/a.txt", "README.md"], "mine", None),
        (["comparison.md"], "[]", "comparison.md"),
        (["paired.json"], "[]", "paired.json"),
        (["erm_seed0.json"], "[]", "erm_seed0.json"),
        (["front.png"], "[]", "front.png"),
        (["runs"], "[]", "runs"),
    ],
)
def test_only_files_that_a_recipe_would_replace_are_refused(
    tmp_path: Path, names: list[str], content: str, foreign: str | None
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    if foreign is None:
        mark_folder(tmp_path)
    else:
        with pytest.raises(DataError, match=f"holds {foreign}, which a recipe would replace; name a new folder"):
            mark_folder(tmp_path)
    assert (tmp_path / LOCK).exists() == (foreign is None)
    assert (tmp_path / names[0]).read_text() == content


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_interrupt_between_the_renames_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, late: bool
) -> None:
    write(tmp_path / "data", "old")
    rename, count = os.rename, 0

    def interrupted(source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count != at or late:
            rename(source, target)
        if count == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "data", "new", overwrite=True)
    expected = "new" if at == 2 and late else "old"
    assert contents(tmp_path / "data").keys() == {expected, MANIFEST}
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("claim", [claim_folder, mark_folder])
@pytest.mark.parametrize("target", ["file", "absent"])
def test_lock_that_is_a_link_is_refused(tmp_path: Path, claim: Callable[[Path], object], target: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK).symlink_to(f"../{target}")
    with pytest.raises(DataError, match="out"):
        claim(tmp_path / "out")
    assert (tmp_path / "file").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]
