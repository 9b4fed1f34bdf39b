"""Cache of values of files: when a value is computed again, stored, and shared between processes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from datasets import Dataset

from dair_hf.errors import DataError
from dair_hf.io import file_values
from dair_hf.io.archives import sha256_of
from dair_hf.io.file_values import FileValueCache
from tests.fixtures.ranks import on_ranks


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


class Hashed(list[str]):
    """Hash function that records the names of the files."""

    def __call__(self, path: str) -> str:
        self.append(os.path.basename(path))
        return sha256_of(path)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Return a recording hash function; no file counts as recently modified."""
    monkeypatch.setattr(file_values, "CLOCK_TICK_NS", -(10**12))
    return Hashed()


def test_values_follow_the_order_of_the_paths(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a", "one"), written(tmp_path / "b", "two"), written(tmp_path / "copy", "one")]
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert [sha256_of(path) for path in paths] == [one, two, one]
    assert FileValueCache(tmp_path / "cache.json", sha256_of).get([*paths, paths[0]]) == [one, two, one, one]


def test_file_is_hashed_once_in_all_runs(tmp_path: Path, hashed: Hashed) -> None:
    cache_file, path = tmp_path / "cache.json", written(tmp_path / "a", "one")
    hashes = FileValueCache(cache_file, hashed)
    first = hashes.get([path])
    assert hashes.get([path, path]) == first * 2
    assert hashes.get([path]) == first
    hashes.save()
    assert FileValueCache(cache_file, hashed).get([path]) == first
    assert hashed == ["a"]
    cache_file.unlink()
    assert FileValueCache(cache_file, hashed).get([path]) == first
    assert hashed == ["a", "a"]


def test_changed_file_is_hashed_again(tmp_path: Path, hashed: Hashed) -> None:
    """Even if its size and modification time are the same."""
    path = tmp_path / "a"
    hashes = FileValueCache(tmp_path / "cache.json", hashed)
    before, state = hashes.get([written(path, "one")]), path.stat()
    written(path, "two")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert hashes.get([str(path)]) == [hashlib.sha256(b"two").hexdigest()] != before
    assert hashes.get([written(path, "three")]) == [hashlib.sha256(b"three").hexdigest()]
    assert len(hashed) == 3


def test_recently_modified_file_is_not_stored(tmp_path: Path) -> None:
    """It could change again within the same clock tick."""
    hashes = FileValueCache(tmp_path / "cache.json", sha256_of)
    hashes.get([written(tmp_path / "a", "one")])
    hashes.save()
    assert not hashes.cache_file.exists()


def test_none_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "CLOCK_TICK_NS", -(10**12))
    paths = [written(tmp_path / name, name) for name in ("good", "bad")]
    computed: list[str] = []

    def compute(path: str) -> str | None:
        computed.append(os.path.basename(path))
        return "fine" if path.endswith("good") else None

    for _ in range(2):
        cache = FileValueCache(tmp_path / "cache.json", compute)
        assert cache.get(paths) == ["fine", None]
        cache.save()
    assert sorted(computed) == ["bad", "bad", "good"]
    assert FileValueCache(None, compute).get(paths[:1]) == ["fine"]


def test_processes_share_the_files(tmp_path: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [written(tmp_path / f"{number}", f"{number % 4}") for number in range(7)]
    expected = [hashlib.sha256(f"{number % 4}".encode()).hexdigest() for number in range(7)]
    caches = [FileValueCache(tmp_path / "cache.json", hashed) for _ in range(2)]
    found = on_ranks(monkeypatch, 2, lambda rank: caches[rank].get([*paths, paths[0]], shared=True))
    assert found == [[*expected, expected[0]]] * 2
    assert sorted(hashed) == [str(number) for number in range(7)]
    # Each process has the values of the other, and so does the next run.
    monkeypatch.undo()
    monkeypatch.setattr(file_values, "CLOCK_TICK_NS", -(10**12))
    assert [cache.get(paths) for cache in (*caches, FileValueCache(tmp_path / "cache.json", hashed))] == [expected] * 3
    assert len(hashed) == 7


def test_unreadable_files_and_damaged_caches_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jpg", tmp_path):
        for cache_file in (None, tmp_path / "cache.json"):
            with pytest.raises(DataError, match=f"{path}: cannot be read"):
                FileValueCache(cache_file, sha256_of).get([str(path)])
    (tmp_path / "cache.json").write_text("{")
    with pytest.raises(DataError, match=r"cache\.json: "):
        FileValueCache(tmp_path / "cache.json", sha256_of)


def test_fingerprint_of_rows_follows_the_content_of_their_files(tmp_path: Path) -> None:
    def fingerprint(folder: str, content: str, label: int = 1) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        image = written(tmp_path / folder / "a.png", content)
        rows = Dataset.from_dict({"row_id": ["1", "2"], "label": [label, 2], "image": [image, None]})
        return FileValueCache.of_contents(tmp_path).fingerprint(rows, ["image"])

    first = fingerprint("here", "red")
    assert len(first) == 16
    assert fingerprint("there", "red") == first
    assert fingerprint("there", "blue") != first
    assert fingerprint("there", "red", label=3) != first
    swapped = Dataset.from_dict({"row_id": ["1", "2"], "label": [1, 2], "image": [None, str(tmp_path / "here/a.png")]})
    assert FileValueCache.of_contents(tmp_path).fingerprint(swapped, ["image"]) != first
