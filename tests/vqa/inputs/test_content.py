"""Content keys and fingerprints: what they tell apart, what they do not, and when a file is hashed again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ResNetForImageClassification, ResNetModel

from dair_hf.errors import DataError
from dair_hf.vqa.inputs import content
from dair_hf.vqa.inputs.content import FileRecord, content_key, model_fingerprint
from tests.fixtures.ranks import on_ranks
from tests.fixtures.tiny_saaa import resnet


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


class Hashed(list[str]):
    """The names of the files that are hashed."""

    def __call__(self, path: str) -> str:
        self.append(os.path.basename(path))
        return content_key(path)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Notes the files that it hashes; no file counts as changed just now."""
    monkeypatch.setattr(content, "_TICK_NS", -(10**12))
    return Hashed()


def test_keys_are_sha256_of_the_content(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a", "one"), written(tmp_path / "b", "two"), written(tmp_path / "copy", "one")]
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"one", b"two"))
    assert [content_key(path) for path in paths] == [one, two, one]
    assert FileRecord(tmp_path / "record.json", content_key).of([*paths, paths[0]]) == [one, two, one, one]


def test_a_file_is_hashed_once_in_all_runs(tmp_path: Path, hashed: Hashed) -> None:
    record, path = tmp_path / "record.json", written(tmp_path / "a", "one")
    keys = FileRecord(record, hashed)
    first = keys.of([path])
    assert keys.of([path, path]) == first * 2
    assert keys.of([path]) == first
    keys.save()
    assert FileRecord(record, hashed).of([path]) == first
    assert hashed == ["a"]
    record.unlink()
    assert FileRecord(record, hashed).of([path]) == first
    assert hashed == ["a", "a"]


def test_a_changed_file_is_hashed_again(tmp_path: Path, hashed: Hashed) -> None:
    """Also where its size and the time of its change were made to look the same."""
    path = tmp_path / "a"
    keys = FileRecord(tmp_path / "record.json", hashed)
    before, state = keys.of([written(path, "one")]), path.stat()
    written(path, "two")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert keys.of([str(path)]) == [hashlib.sha256(b"two").hexdigest()] != before
    assert keys.of([written(path, "three")]) == [hashlib.sha256(b"three").hexdigest()]
    assert len(hashed) == 3


def test_a_file_changed_just_now_is_not_recorded(tmp_path: Path) -> None:
    """It could change again within the same tick of the clock."""
    keys = FileRecord(tmp_path / "record.json", content_key)
    keys.of([written(tmp_path / "a", "one")])
    keys.save()
    assert not keys.record.exists()


def test_an_unchanged_record_is_not_written_again(tmp_path: Path, hashed: Hashed) -> None:
    keys = FileRecord(tmp_path / "record.json", hashed)
    keys.of([written(tmp_path / "a", "one")])
    keys.save()
    keys.record.unlink()
    keys.of([str(tmp_path / "a")])
    keys.save()
    assert not keys.record.exists()
    keys.of([written(tmp_path / "b", "two")])
    keys.save()
    assert keys.record.exists()


def test_what_should_be_looked_for_again_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_TICK_NS", -(10**12))
    paths = [written(tmp_path / name, name) for name in ("good", "bad")]
    looked: list[str] = []

    def look(path: str) -> str | None:
        looked.append(os.path.basename(path))
        return "fine" if path.endswith("good") else None

    for _ in range(2):
        record = FileRecord(tmp_path / "record.json", look)
        assert record.of(paths) == ["fine", None]
        record.save()
    assert sorted(looked) == ["bad", "bad", "good"]
    assert FileRecord(None, look).of(paths[:1]) == ["fine"]


def test_processes_share_out_the_files(tmp_path: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [written(tmp_path / f"{number}", f"{number % 4}") for number in range(7)]
    expected = [hashlib.sha256(f"{number % 4}".encode()).hexdigest() for number in range(7)]
    records = [FileRecord(tmp_path / "record.json", hashed) for _ in range(2)]
    found = on_ranks(monkeypatch, 2, lambda rank: records[rank].share_out([*paths, paths[0]]))
    assert found == [[*expected, expected[0]]] * 2
    assert sorted(hashed) == [str(number) for number in range(7)]
    # Each knows what the other found, and so does the next run.
    monkeypatch.undo()
    monkeypatch.setattr(content, "_TICK_NS", -(10**12))
    assert [record.of(paths) for record in (*records, FileRecord(tmp_path / "record.json", hashed))] == [expected] * 3
    assert len(hashed) == 7


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"a": [1]}', '{"a": 1}'])
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(text)
    with pytest.raises(DataError, match=r"record\.json: no record of contents .*delete it"):
        FileRecord(record, content_key)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jpg", tmp_path):
        with pytest.raises(DataError, match=f"{path}: cannot be read"):
            content_key(path)
    with pytest.raises(DataError, match=r"none\.jpg: cannot be read"):
        FileRecord(tmp_path / "record.json", content_key).of([str(tmp_path / "none.jpg")])


def model(seed: int = 0, **settings: Any) -> ResNetModel:
    torch.manual_seed(seed)
    config = resnet()
    for name, value in settings.items():
        setattr(config, name, value)
    return ResNetModel(config)


def test_a_fingerprint_is_that_of_what_is_computed(tmp_path: Path) -> None:
    first = model_fingerprint(model(), size=64)
    assert len(first) == 64
    assert model_fingerprint(model().eval(), size=64) == first
    # Where it came from, and the labels of a head that it has not, change nothing.
    labelled = ResNetForImageClassification(resnet())
    labelled.resnet.load_state_dict(model().state_dict())
    labelled.config.id2label = {0: "cat", 1: "dog", 2: "cow"}
    labelled.save_pretrained(tmp_path)
    assert model_fingerprint(ResNetModel.from_pretrained(tmp_path), size=64) == first


def test_a_fingerprint_tells_weights_settings_and_configuration_apart() -> None:
    first = model_fingerprint(model(), size=64)
    shifted, counted = model(), model()
    with torch.no_grad():
        next(shifted.parameters()).view(-1)[0] += 1e-6
        next(values for name, values in counted.named_buffers() if "running_var" in name).add_(1)
    others = [
        model_fingerprint(model(), size=32),
        model_fingerprint(model(seed=1), size=64),
        model_fingerprint(model().half(), size=64),
        model_fingerprint(model(hidden_act="gelu"), size=64),
        model_fingerprint(shifted, size=64),
        model_fingerprint(counted, size=64),
    ]
    assert len({first, *others}) == 1 + len(others)
