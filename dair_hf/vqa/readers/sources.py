"""Where the questions and annotations of VQA v2 can be downloaded."""

from __future__ import annotations

from dair_hf.errors import DataError
from dair_hf.io.archives import RemoteFile

HOST = "https://s3.amazonaws.com"
# The answers of the test split are not public. Its archive holds test-dev as well.
FILES = {
    "train": ("v2_Questions_Train_mscoco.zip", "v2_Annotations_Train_mscoco.zip"),
    "val": ("v2_Questions_Val_mscoco.zip", "v2_Annotations_Val_mscoco.zip"),
    "test": ("v2_Questions_Test_mscoco.zip",),
}


def vqa_files(split: str, host: str = HOST) -> list[RemoteFile]:
    """The archives of one split of VQA v2; they are read as they are.

    No checksums are published, so each file is trusted on its first use.

    Args:
        split: "train", "val" or "test".
        host: Another server with the same paths, such as a mirror.

    Raises:
        DataError: Unknown split.

    Example:
        >>> [file.name for file in vqa_files("val")]
        ['v2_Questions_Val_mscoco.zip', 'v2_Annotations_Val_mscoco.zip']
    """
    if split not in FILES:
        raise DataError(f"split {split!r} cannot be downloaded; use one of {', '.join(FILES)}")
    return [RemoteFile(name, f"{host}/cvmlp/vqa/mscoco/vqa/{name}") for name in FILES[split]]
