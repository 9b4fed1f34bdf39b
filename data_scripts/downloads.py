"""Public files that the commands of this folder download: where they are, and their checksums."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from dair_hf.errors import DataError, explained
from dair_hf.io.archives import sha256_of
from dair_hf.io.files import atomic_path, read_json, write_json

CHECKSUMS = "checksums.json"
TIMEOUT_SECONDS = 60

DIALOG_HOST = "https://raw.githubusercontent.com"
_DIALOG_REVISIONS = {
    "2.1": "thu-coai/ConvLab-2/6871fb8245da9eadf42009915763abebad95de51/data/multiwoz",
    "2.2": "budzianowski/multiwoz/5baf9a9323062705e8e34d95ee4fd71d387a97d4/data/MultiWOZ_2.2",
    "sgd": "google-research-datasets/dstc8-schema-guided-dialogue/18cf5f085b4c2383a2103ef4885963136a7c8488",
    "woz2": "nmrksic/neural-belief-tracker/63b5933d867fd9dacc2bfadcc5f6be3a3ef8ee77/data/woz",
}
# Files of each split; a number counts the files "dialogues_001.json", "dialogues_002.json", ...
_DIALOG_FILES: dict[str, dict[str, str | int]] = {
    "2.1": {"train": "train.json.zip", "dev": "val.json.zip", "test": "test.json.zip"},
    "2.2": {"train": 17, "dev": 2, "test": 2},
    "sgd": {"train": 127, "dev": 20, "test": 34},
    "woz2": {"train": "woz_train_en.json", "dev": "woz_validate_en.json", "test": "woz_test_en.json"},
}
# SHA-256 and size in bytes. All other files are trusted on their first download.
_DIALOG_CHECKSUMS = {
    ("2.2", "schema.json"): ("ae9e2390f38fb967af64623c2f4f7e0c636fb377ad523b582a03161d3ddbdf68", 18_123),
    ("2.1", "val.json.zip"): ("25ddfd4d0b01304012b54e2d98caa038c91d95295c4b519cc721b9b616f506dc", 1_537_014),
    ("2.1", "test.json.zip"): ("438deb6ff5402cef5ff29cc0d5a10db818c1e9142727c1d631e71b563c66a5b4", 1_533_565),
    ("woz2", "woz_train_en.json"): ("7cd9e971553e5f3e80bb0c93164bf4c619c7f49f45d636a0512474cdeb074485", 3_825_261),
    ("woz2", "woz_validate_en.json"): ("ae1ea9067fd05c0179d349f140b38de1b2db587d5bfcb4f99ef0d77474ab00ad", 1_222_746),
    ("woz2", "woz_test_en.json"): ("3673e433b21a6b0d74e9144bd059e64b29bc3e1c5dc0e18654a98ec597c0d72c", 2_481_214),
}

VQA_HOST = "https://s3.amazonaws.com"
# The answers of the test split are not public. Its archive contains test-dev as well.
_VQA_FILES = {
    "train": ("v2_Questions_Train_mscoco.zip", "v2_Annotations_Train_mscoco.zip"),
    "val": ("v2_Questions_Val_mscoco.zip", "v2_Annotations_Val_mscoco.zip"),
    "test": ("v2_Questions_Test_mscoco.zip",),
}


@dataclass(frozen=True)
class RemoteFile:
    """File to download: its relative name, its URL at a pinned revision, and its checksum and size if known."""

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


def download(files: Sequence[RemoteFile], folder: str | os.PathLike[str]) -> dict[str, str]:
    """Download files to a folder, each completely and verified or not at all; keep the files that already exist.

    A file without a known checksum is trusted on first use: its checksum is recorded in `checksums.json` in the
    folder, and verified on later calls. Returns name -> SHA-256 of the files that this call trusted.
    """
    folder = Path(folder)
    checksum_file = folder / CHECKSUMS
    recorded: dict[str, str] = read_json(checksum_file) if checksum_file.exists() else {}
    trusted: dict[str, str] = {}
    for remote in files:
        target = folder / remote.name
        expected = remote.sha256 or recorded.get(remote.name)
        if target.exists():
            sha256 = _verified_sha256(target, expected, str(target))
        else:
            with atomic_path(target) as path:
                with explained(f"{remote.url}: download failed", http.client.HTTPException, OSError, ValueError):
                    _fetch(remote, path)
                sha256 = _verified_sha256(path, expected, remote.url)
        if expected is None:
            trusted[remote.name] = sha256
        if recorded.get(remote.name) != sha256:
            recorded[remote.name] = sha256
            write_json(checksum_file, recorded)
    return trusted


def _fetch(remote: RemoteFile, path: Path) -> None:
    with urllib.request.urlopen(remote.url, timeout=TIMEOUT_SECONDS) as response, path.open("wb") as file:
        length = response.headers.get("Content-Length")
        size = remote.size if remote.size is not None else int(length) if length else None
        with tqdm.wrapattr(response, "read", total=size, desc=remote.name) as stream:
            shutil.copyfileobj(stream, file, 1 << 20)
        if size is not None and file.tell() != size:
            raise OSError(f"received {file.tell()} of {size} bytes")


def _verified_sha256(path: Path, expected: str | None, label: str) -> str:
    sha256 = sha256_of(path)
    if expected is not None and sha256 != expected.lower():
        raise DataError(f"{label}: checksum mismatch: expected SHA-256 {expected}, got {sha256}")
    return sha256


def dialog_files(data: str, split: str | None = None, host: str = DIALOG_HOST) -> list[RemoteFile]:
    """List the files of MultiWOZ "2.1" (the tokenized copy with spans) or "2.2", "sgd" or "woz2", by split."""
    names: list[str] = ["schema.json"] if data == "2.2" else []
    for name, files in _DIALOG_FILES[data].items():
        if split not in (None, name):
            continue
        if isinstance(files, str):
            names.append(files)
        else:
            names += [f"{name}/schema.json"] * (data == "sgd")
            names += [f"{name}/dialogues_{number:03d}.json" for number in range(1, files + 1)]
    remote = []
    for name in names:
        sha256, size = _DIALOG_CHECKSUMS.get((data, name), (None, None))
        remote.append(RemoteFile(name, f"{host}/{_DIALOG_REVISIONS[data]}/{name}", sha256, size))
    return remote


def vqa_files(split: str, host: str = VQA_HOST) -> list[RemoteFile]:
    """Return the downloadable archives of a split of VQA v2, which can be read without unpacking.

    No checksums are published, so each file is trusted on first use.
    """
    if split not in _VQA_FILES:
        raise DataError(f"download: expected a split of {', '.join(_VQA_FILES)}, got {split!r}")
    return [RemoteFile(name, f"{host}/cvmlp/vqa/mscoco/vqa/{name}") for name in _VQA_FILES[split]]
