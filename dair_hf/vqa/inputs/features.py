"""Image inputs: normalized pixels, or features of a frozen backbone from a disk cache, computed once per image."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from dair_hf.errors import DataError, explained
from dair_hf.io.file_values import content_hashes
from dair_hf.io.files import atomic_path, write_json
from dair_hf.io.processes import map_across_ranks, rank_and_size
from dair_hf.vqa.models.backbone import grid_features
from dair_hf.vqa.readers.images import load_image as load_file

# Mean and standard deviation of the RGB channels of ImageNet, in 0..1; most backbones were trained with these.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

LAYOUT = 1  # version of the files; part of the fingerprint
FEATURES, KEYS = "features", "keys"  # entries of a shard
SUFFIX = ".safetensors"
NAME_DIGITS = 16  # of a hash in a file name
# Configuration fields that do not affect the output of a model.
_IRRELEVANT_FIELDS = frozenset(
    {"transformers_version", "architectures", "dtype", "id2label", "label2id", "problem_type", "_name_or_path"}
)


LoadImage = Callable[[Any], NDArray[np.uint8]]


class Pixels:
    """Loads images, resizes them (Pillow, bilinear) and normalizes them: `(pixel / 255 - mean) / std`.

    Args:
        load_image: Function from an entry of the image column to `[H, W, 3]` uint8 RGB; by default the entry is a path.
        size: Height and width of the result in pixels; one number for a square. The aspect ratio is not kept, as usual
            if attention has to cover the whole image.
        mean: Mean of each channel, in 0..1.
        std: Standard deviation of each channel, in 0..1.

    Example:
        >>> gray = lambda path: np.full((4, 6, 3), 51, dtype=np.uint8)
        >>> pixels = Pixels(gray, size=2, mean=(0.0, 0.1, 0.4), std=(1.0, 1.0, 2.0))(["a.jpg"])
        >>> pixels.shape, pixels[0, :, 0, 0]
        (torch.Size([1, 3, 2, 2]), tensor([ 0.2000,  0.1000, -0.1000]))
    """

    model_input = "pixel_values"

    def __init__(
        self,
        load_image: LoadImage = load_file,
        size: int | tuple[int, int] = 448,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        self.load_image = load_image
        self.size = (size, size) if isinstance(size, int) else size
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))

    def settings(self) -> dict[str, Any]:
        """Return all settings that affect the result, as JSON values."""
        loader = self.load_image if hasattr(self.load_image, "__qualname__") else type(self.load_image)
        return {
            "load_image": f"{loader.__module__}.{loader.__qualname__}",
            "size": list(self.size),
            "resize": "bilinear",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """Load N entries of the image column as `[N, 3, H, W]` float32."""
        # (x / 255 - mean) / std as one multiplication and one subtraction, in place.
        scale = torch.tensor([1 / (255 * std) for std in self.std]).view(3, 1, 1)
        shift = torch.tensor([mean / std for mean, std in zip(self.mean, self.std, strict=True)]).view(3, 1, 1)
        loaded = torch.stack([self._load(image) for image in images])
        return loaded.to(torch.float32).mul_(scale).sub_(shift)

    def _load(self, image: Any) -> Tensor:
        """Return `[3, H, W]` uint8."""
        opened = Image.fromarray(self.load_image(image))
        height, width = self.size
        if opened.size != (width, height):
            opened = opened.resize((width, height), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(opened).transpose(2, 0, 1).copy())


class FeatureCache:
    """Image features from disk, as `VQACollator` takes them; `fill` computes them.

    Images are identified by the SHA-256 of their file, so they may be renamed, moved or duplicated, and a changed image
    is computed again. Each fingerprint of backbone (configuration and weights), preprocessing and dtype has its own
    folder of shards, each written atomically: a killed run loses at most one shard, and the next run computes only what
    is missing. Several processes may fill and read a folder at once. Images must not change while a cache is open.

    The features of an image of 448 x 448 pixels from a ResNet-152 take 1.6 MB in float32, half as much in float16 and
    bfloat16.

    Args:
        folder: Folder of the features.
        backbone: Vision model of transformers without head, such as `load_backbone(...)` or the `backbone` of an
            `SAAA`. Its weights must not change from now on. It runs on its current device.
        pixels: Loads, resizes and normalizes images.
        dtype: Storage type: float32, float16 or bfloat16. Features are always returned as float32.
        shard_images: Images per file, rounded up to whole batches.
    """

    model_input = "image_features"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        backbone: PreTrainedModel,
        pixels: Pixels,
        dtype: torch.dtype = torch.float32,
        shard_images: int = 256,
    ) -> None:
        self.backbone: PreTrainedModel | None = backbone
        self.pixels = pixels
        self.dtype = dtype
        self.shard_images = shard_images
        self._settings = {"layout": LAYOUT, "dtype": str(dtype), "pixels": pixels.settings()}
        self.fingerprint = _model_fingerprint(backbone, **self._settings)
        self.folder = Path(folder) / self.fingerprint[:NAME_DIGITS]
        self._hashes = content_hashes(folder)
        self._keys: dict[str, str] = {}  # path -> SHA-256, in this run
        self._locations: dict[str, tuple[str, int]] = {}  # SHA-256 -> shard and row
        self._indexed: set[str] = set()  # shards in `_locations`
        self._shards: dict[str, Tensor] = {}  # shard -> memory-mapped features
        self._index_new_shards()

    def __getstate__(self) -> dict[str, Any]:
        # A worker process of a data loader opens its own memory maps and computes nothing.
        return {**self.__dict__, "backbone": None, "_shards": {}}

    def fill(self, images: Iterable[str], batch_size: int = 32) -> int:
        """Compute the missing features.

        The work is split among the processes of the run: all of them must call this method with the same images, and
        each waits for the others as long as the process group allows (`ddp_timeout`, in seconds).

        Args:
            images: Paths of the images; repeats are ignored.
            batch_size: Images per forward pass.

        Returns:
            Number of images computed by all processes together.

        Raises:
            DataError: An image cannot be read, a feature does not fit into the dtype, or the backbone has changed.
        """
        paths = list(dict.fromkeys(images))
        self._hash(paths, progress=True, shared=True)
        path_of = {self._keys[path]: path for path in reversed(paths)}  # the first of equal images

        def fill_share(keys: Sequence[str]) -> list[bool]:
            missing = {key: path_of[key] for key in keys if key not in self._locations}
            if missing:
                self._fill(missing, batch_size)
            return [key in missing for key in keys]

        self._index_new_shards()
        computed = sum(map_across_ranks(list(dict.fromkeys(self._keys[path] for path in paths)), fill_share))
        self._index_new_shards()
        return computed

    def __call__(self, images: Sequence[str]) -> Tensor:
        """Return the features of images."""
        if unknown := [image for image in images if image not in self._keys]:
            self._hash(unknown)
        rows = [self._shard(file)[row] for file, row in map(self._location, images)]
        return torch.stack(rows).to(torch.float32)

    def _hash(self, paths: list[str], **options: bool) -> None:
        self._keys.update(zip(paths, cast(list[str], self._hashes.get(paths, **options)), strict=True))

    def _location(self, image: str) -> tuple[str, int]:
        key = self._keys[image]
        if key not in self._locations:
            self._index_new_shards()  # another process may have computed it
        if key not in self._locations:
            raise DataError(f"{image}: expected features in {self.folder}, got none; call `fill` with it first")
        return self._locations[key]

    @torch.no_grad()
    def _fill(self, missing: dict[str, str], batch_size: int) -> None:
        backbone = self.backbone
        assert backbone is not None  # a copy in a worker process reads only
        if _model_fingerprint(backbone, **self._settings) != self.fingerprint:  # would be stored as the old model's
            raise DataError(f"{self.folder}: expected the weights that the cache was created with, got changed ones")
        about = {"fingerprint": self.fingerprint, **self._settings, "backbone": backbone.config.to_diff_dict()}
        write_json(self.folder / "about.json", about)
        all_keys, weights, was_training = list(missing), next(backbone.parameters()), backbone.training
        keys: list[str] = []
        parts: list[Tensor] = []
        backbone.eval()
        disable = None if rank_and_size()[0] == 0 else True
        with tqdm(total=len(missing), desc="image features", unit="image", disable=disable) as bar:
            for start in range(0, len(missing), batch_size):
                batch_keys = all_keys[start : start + batch_size]
                batch = [missing[key] for key in batch_keys]
                pixels = self.pixels(batch).to(weights.device, weights.dtype)
                parts.append(self._to_dtype(grid_features(backbone, pixels), batch))
                keys += batch_keys
                bar.update(len(batch))
                if len(keys) >= self.shard_images or start + batch_size >= len(missing):
                    self._write_shard(keys, torch.cat(parts))
                    keys, parts = [], []
        backbone.train(was_training)

    def _to_dtype(self, features: Tensor, images: list[str]) -> Tensor:
        converted = features.to(self.dtype).cpu().contiguous()
        finite = converted.flatten(1).isfinite().all(1)
        if not finite.all():  # float16 ends at 65504
            image = images[int((~finite).nonzero()[0])]
            raise DataError(
                f"{image}: expected features that {self.dtype} holds, got {features.abs().max().item():.4g}"
            )
        return converted

    def _write_shard(self, keys: list[str], features: Tensor) -> None:
        # Named by its content, so that processes computing the same images write the same file.
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:NAME_DIGITS] + SUFFIX
        with atomic_path(self.folder / name) as path:
            save_file({FEATURES: features}, path, metadata={KEYS: json.dumps(keys)})

    def _index_new_shards(self) -> None:
        for file in sorted(self.folder.glob(f"*{SUFFIX}")):
            if file.name not in self._indexed:
                with _open_shard(file) as shard:
                    keys = json.loads(shard.metadata()[KEYS])
                for row, key in enumerate(keys):
                    self._locations.setdefault(key, (file.name, row))
                self._indexed.add(file.name)

    def _shard(self, name: str) -> Tensor:
        if name not in self._shards:
            with _open_shard(self.folder / name) as shard:
                self._shards[name] = shard.get_tensor(FEATURES)
        return self._shards[name]


def _model_fingerprint(model: PreTrainedModel, **settings: Any) -> str:
    """Return a SHA-256 of everything that determines the output of a model: class, configuration and weights."""
    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in _IRRELEVANT_FIELDS}
    about = {"class": type(model).__name__, "config": config, "settings": settings}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _open_shard(path: Path) -> Any:
    with explained(f"{path}: damaged, delete it", SafetensorError, OSError):
        return safe_open(path, framework="pt")
