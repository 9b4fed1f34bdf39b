"""The addresses of VQA v2."""

from __future__ import annotations

import pytest

from dair_hf.errors import DataError
from dair_hf.vqa.readers.sources import FILES, vqa_files


def test_every_split_has_its_archives() -> None:
    base = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa/"
    assert [file.url for split in FILES for file in vqa_files(split)] == [
        base + "v2_Questions_Train_mscoco.zip",
        base + "v2_Annotations_Train_mscoco.zip",
        base + "v2_Questions_Val_mscoco.zip",
        base + "v2_Annotations_Val_mscoco.zip",
        base + "v2_Questions_Test_mscoco.zip",
    ]
    for split in FILES:
        assert all(file.url.endswith("/" + file.name) for file in vqa_files(split))


def test_a_mirror_has_the_same_paths() -> None:
    (file, _) = vqa_files("val", "http://127.0.0.1:8000")
    assert file.url == "http://127.0.0.1:8000/cvmlp/vqa/mscoco/vqa/v2_Questions_Val_mscoco.zip"


@pytest.mark.parametrize("split", ["validation", "test-dev", ""])
def test_an_unknown_split_is_refused(split: str) -> None:
    with pytest.raises(DataError, match=f"split '{split}' cannot be downloaded; use one of train, val, test"):
        vqa_files(split)
