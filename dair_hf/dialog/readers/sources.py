"""Download addresses of the public data sets: pinned revisions and known checksums."""

from __future__ import annotations

from dair_hf.errors import DataError
from dair_hf.io.archives import RemoteFile

MULTIWOZ_REVISION = "5baf9a9323062705e8e34d95ee4fd71d387a97d4"
CONVLAB_REVISION = "6871fb8245da9eadf42009915763abebad95de51"
SGD_REVISION = "18cf5f085b4c2383a2103ef4885963136a7c8488"
WOZ2_REVISION = "63b5933d867fd9dacc2bfadcc5f6be3a3ef8ee77"
HOST = "https://raw.githubusercontent.com"

MULTIWOZ22_FILES = {"train": 17, "dev": 2, "test": 2}
SGD_FILES = {"train": 127, "dev": 20, "test": 34}
WOZ2_FILES = {"train": "woz_train_en.json", "dev": "woz_validate_en.json", "test": "woz_test_en.json"}
# SHA-256 and size in bytes. All other files are trusted on their first download.
KNOWN = {
    "multiwoz22/schema.json": ("ae9e2390f38fb967af64623c2f4f7e0c636fb377ad523b582a03161d3ddbdf68", 18_123),
    "multiwoz21/val.json.zip": ("25ddfd4d0b01304012b54e2d98caa038c91d95295c4b519cc721b9b616f506dc", 1_537_014),
    "multiwoz21/test.json.zip": ("438deb6ff5402cef5ff29cc0d5a10db818c1e9142727c1d631e71b563c66a5b4", 1_533_565),
    "woz2/woz_train_en.json": ("7cd9e971553e5f3e80bb0c93164bf4c619c7f49f45d636a0512474cdeb074485", 3_825_261),
    "woz2/woz_validate_en.json": ("ae1ea9067fd05c0179d349f140b38de1b2db587d5bfcb4f99ef0d77474ab00ad", 1_222_746),
    "woz2/woz_test_en.json": ("3673e433b21a6b0d74e9144bd059e64b29bc3e1c5dc0e18654a98ec597c0d72c", 2_481_214),
}


def _remote(data: str, name: str, url: str) -> RemoteFile:
    sha256, size = KNOWN.get(f"{data}/{name}", (None, None))
    return RemoteFile(name, url, sha256, size)


def multiwoz_files(version: str, split: str | None = None, host: str = HOST) -> list[RemoteFile]:
    """List the files of MultiWOZ 2.1 (the tokenized copy with spans, one file per split) or 2.2."""
    splits = _splits(split)
    if version == "2.1":
        base = f"{host}/thu-coai/ConvLab-2/{CONVLAB_REVISION}/data/multiwoz"
        names = [f"{'val' if name == 'dev' else name}.json.zip" for name in splits]
        return [_remote("multiwoz21", name, f"{base}/{name}") for name in names]
    if version != "2.2":
        raise DataError(f"MultiWOZ version {version!r} is unknown; use 2.1 or 2.2")
    base = f"{host}/budzianowski/multiwoz/{MULTIWOZ_REVISION}/data/MultiWOZ_2.2"
    names = ["schema.json", *_numbered({name: MULTIWOZ22_FILES[name] for name in splits})]
    return [_remote("multiwoz22", name, f"{base}/{name}") for name in names]


def woz2_downloads(split: str | None = None, host: str = HOST) -> list[RemoteFile]:
    """List the English files of WOZ 2.0."""
    base = f"{host}/nmrksic/neural-belief-tracker/{WOZ2_REVISION}/data/woz"
    names = [WOZ2_FILES[name] for name in _splits(split)]
    return [_remote("woz2", name, f"{base}/{name}") for name in names]


def sgd_files(split: str | None = None, host: str = HOST) -> list[RemoteFile]:
    """List the files of Schema-Guided Dialogue."""
    base = f"{host}/google-research-datasets/dstc8-schema-guided-dialogue/{SGD_REVISION}"
    splits = _splits(split)
    names = [f"{name}/schema.json" for name in splits] + _numbered({name: SGD_FILES[name] for name in splits})
    return [_remote("sgd", name, f"{base}/{name}") for name in names]


def _splits(split: str | None) -> list[str]:
    if split is None:
        return list(SGD_FILES)
    if split not in SGD_FILES:
        raise DataError(f"split {split!r} is unknown; use one of {', '.join(SGD_FILES)}")
    return [split]


def _numbered(counts: dict[str, int]) -> list[str]:
    return [f"{split}/dialogues_{number:03d}.json" for split, count in counts.items() for number in range(1, count + 1)]
