"""Background challenge with the images of ImageNet-9 or of the drawn stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dair_hf.data.tensor_pairs import tensor_fingerprint
from dair_hf.io.archives import sha256_of
from dair_hf.io.file_values import FileValueCache
from dair_hf.settings import Settings
from dair_hf.vision.backgrounds.composites import shape_foregrounds
from dair_hf.vision.backgrounds.drawn import (
    PICTURE_SIZE,
    BackgroundsConfig,
    background_tests,
    background_train_pairs,
)
from dair_hf.vision.backgrounds.imagenet9 import (
    CropCollator,
    ImageNet9Config,
    imagenet9_train_pairs,
    load_imagenet9,
)


@dataclass
class ChallengeConfig(Settings):
    """Source of the images."""

    source: Literal["drawn", "imagenet9"] = field(
        default="drawn", metadata={"help": "drawn: the stand-in; imagenet9: the public images."}
    )


class Challenge(NamedTuple):
    """Data of a run."""

    name: str
    config: BackgroundsConfig | ImageNet9Config
    train: Callable[[int, bool], Any]
    tests: Mapping[str, Any]
    collator: CropCollator | None
    content: dict[str, str]


def load_challenge(
    source: ChallengeConfig,
    drawn: BackgroundsConfig,
    public: ImageNet9Config,
    hashes: FileValueCache | None = None,
) -> Challenge:
    """Draw the images, or find the files of the public ones; all processes of a run must call this function."""
    if source.source == "imagenet9":
        data = load_imagenet9(public)
        content: dict[str, str] = {**data.fingerprints(hashes or FileValueCache(None, sha256_of, "hashing images"))}

        def public_pairs(seed: int, with_partners: bool) -> Any:
            return imagenet9_train_pairs(data, seed, with_partners)

        collator = CropCollator(public.input_size)
        return Challenge("ImageNet-9", public, public_pairs, data.tests, collator, content)
    foregrounds = shape_foregrounds(PICTURE_SIZE // 2)

    def drawn_pairs(seed: int, with_partners: bool) -> Any:
        pairs = background_train_pairs(foregrounds, drawn, seed)
        return pairs if with_partners else pairs.originals()

    content = {split: tensor_fingerprint(foregrounds) for split in ("train", "test")}
    tests = background_tests(foregrounds, drawn, public.evaluate_on)
    return Challenge("shapes on stripes", drawn, drawn_pairs, tests, None, content)
