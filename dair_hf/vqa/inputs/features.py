"""Disk cache of the features of a frozen backbone: computed once per image, memory-mapped for reading."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from dair_hf.errors import DataError
from dair_hf.io.file_values import content_hashes
from dair_hf.io.files import atomic_path, write_json
from dair_hf.io.processes import map_across_ranks, rank_and_size
from dair_hf.vqa.inputs.pixels import Pixels
from dair_hf.vqa.models.backbone import grid_features

LAYOUT = 1  # version of the files; part of the fingerprint
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEATURES, KEYS, FINGERPRINT = "features", "keys", "fingerprint"  # entries of a shard
SUFFIX = ".safetensors"
NAME_DIGITS = 16  # of a hash in a file name
# Configuration fields that do not affect the output of a model.
_IRRELEVANT_FIELDS = frozenset(
    {"transformers_version", "architectures", "dtype", "id2label", "label2id", "problem_type", "_name_or_path"}
)


class FeatureCache:
    """Image features from disk, as `VQACollator` takes them; `fill` computes them.

    Images are identified by the SHA-256 of their file, so they may be renamed, moved or duplicated, and a changed image
    is computed again. Features are identified by a fingerprint of the configuration and weights of the backbone, the
    preprocessing and the dtype; each fingerprint has its own folder below `folder`. A folder holds shards of about
    `shard_images` images, each written atomically: a killed run loses at most one shard, and the next run computes only
    what is missing. Several processes may fill and read a folder at once. Images must not change while a cache is open.

    The features of an image of 448 x 448 pixels from a ResNet-152 take 1.6 MB in float32, half as much in float16 and
    bfloat16.

    Args:
        folder: Folder of the features.
        backbone: Vision model of transformers without head, such as `load_backbone(...)` or the `backbone` of an
            `SAAA`. Its weights must not change from now on. It runs on its current device.
        pixels: Loads, resizes and normalizes images.
        dtype: Storage type: float32, float16 or bfloat16. Features are always returned as float32.
        shard_images: Images per file, rounded up to whole batches.

    Raises:
        DataError: A setting is out of range, or a file in the folder is damaged.

    Example:
        >>> cache = FeatureCache("features", load_backbone("microsoft/resnet-152"), Pixels())  # doctest: +SKIP
        >>> cache.fill(rows["image"])  # doctest: +SKIP
        82783
        >>> cache(rows["image"][:2]).shape  # doctest: +SKIP
        torch.Size([2, 2048, 14, 14])
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
        if dtype not in DTYPES:
            raise DataError(f"dtype={dtype}; use one of {', '.join(map(str, DTYPES))}")
        if shard_images < 1:
            raise DataError(f"shard_images={shard_images} must be at least 1")
        self.backbone: PreTrainedModel | None = backbone
        self.pixels = pixels
        self.dtype = dtype
        self.shard_images = shard_images
        self._settings = {"layout": LAYOUT, "dtype": str(dtype), "pixels": pixels.settings()}
        self.fingerprint = model_fingerprint(backbone, **self._settings)
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

    def fill(self, images: Iterable[str], batch_size: int = 32, num_workers: int = 0, progress: bool = True) -> int:
        """Compute the missing features.

        The work is split among the processes of the run: all of them must call this method with the same images, and
        each waits for the others as long as the process group allows (`ddp_timeout`, in seconds).

        Args:
            images: Paths of the images; repeats are ignored.
            batch_size: Images per forward pass.
            num_workers: Additional processes that load images.
            progress: Whether to show a progress bar on a terminal.

        Returns:
            Number of images computed by all processes together.

        Raises:
            DataError: On any process, an image cannot be read or a feature does not fit into the dtype; or the
                processes do not share the folder.
        """
        if self.backbone is None:
            raise DataError("fill: a copy in a worker process has no backbone; fill the cache before training")
        paths = list(dict.fromkeys(images))
        self._hash(paths, progress=progress, shared=True)
        path_of = {self._keys[path]: path for path in reversed(paths)}  # of equal images the first

        def fill_share(keys: Sequence[str]) -> list[bool]:
            missing = {key: path_of[key] for key in keys if key not in self._locations}
            self._fill(missing, batch_size, num_workers, progress and rank_and_size()[0] == 0)
            return [key in missing for key in keys]

        self._index_new_shards()
        computed = sum(map_across_ranks(list(dict.fromkeys(self._keys[path] for path in paths)), fill_share))
        self._index_new_shards()
        if absent := next((path for path in paths if self._keys[path] not in self._locations), None):
            raise DataError(
                f"{absent}: its features, which another process computed, are not in {self.folder}; give all machines "
                "of the run the same folder"
            )
        return computed

    def _fill(self, missing: dict[str, str], batch_size: int, num_workers: int, progress: bool) -> None:
        if not missing:
            return
        assert self.backbone is not None
        if model_fingerprint(self.backbone, **self._settings) != self.fingerprint:
            raise DataError(
                f"{self.folder}: the weights of the backbone have changed since the FeatureCache was created; create a "
                "new one"
            )
        about = {FINGERPRINT: self.fingerprint, **self._settings, "backbone": self.backbone.config.to_diff_dict()}
        write_json(self.folder / "about.json", about)
        with tqdm(total=len(missing), desc="image features", unit="image", disable=None if progress else True) as bar:
            keys: list[str] = []
            parts: list[Tensor] = []
            for batch_keys, features in self._compute(missing, batch_size, num_workers):
                keys, parts = [*keys, *batch_keys], [*parts, features]
                bar.update(len(batch_keys))
                if len(keys) >= self.shard_images:
                    self._write_shard(keys, torch.cat(parts))
                    keys, parts = [], []
            if keys:
                self._write_shard(keys, torch.cat(parts))

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
            raise DataError(f"{image}: its features are not in {self.folder}; call `fill` with it first")
        return self._locations[key]

    def _compute(
        self, missing: dict[str, str], batch_size: int, num_workers: int
    ) -> Iterator[tuple[list[str], Tensor]]:
        backbone = self.backbone
        assert backbone is not None
        keys, paths = list(missing), list(missing.values())
        starts = range(0, len(paths), batch_size)
        batches = [paths[start : start + batch_size] for start in starts]
        # Without a batch size the loader applies `collate_fn` to each entry, which here is a whole batch.
        loader: Iterable[Tensor] = torch.utils.data.DataLoader(
            batches,  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=self.pixels,
            num_workers=num_workers,
        )
        weights, was_training = next(backbone.parameters()), backbone.training
        backbone.eval()
        try:
            for start, batch, pixels in zip(starts, batches, loader, strict=True):
                with torch.no_grad():
                    features = grid_features(backbone, pixels.to(weights.device, weights.dtype))
                yield keys[start : start + batch_size], self._to_dtype(features, batch)
        finally:
            backbone.train(was_training)

    def _to_dtype(self, features: Tensor, images: list[str]) -> Tensor:
        converted = features.to(self.dtype).cpu().contiguous()
        finite = converted.flatten(1).isfinite().all(1)
        if not finite.all():
            image = images[int((~finite).nonzero()[0])]
            largest = features[~finite].abs().max().item()
            raise DataError(
                f"{image}: its features reach {largest:.4g}, which {self.dtype} cannot represent; use "
                "dtype=torch.float32, or check the backbone and the normalization if this is not finite"
            )
        return converted

    def _write_shard(self, keys: list[str], features: Tensor) -> None:
        # Named by its content, so that processes computing the same images write the same file.
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:NAME_DIGITS] + SUFFIX
        with atomic_path(self.folder / name) as path:
            save_file({FEATURES: features}, path, metadata={KEYS: json.dumps(keys), FINGERPRINT: self.fingerprint})

    def _index_new_shards(self) -> None:
        names = sorted(file.name for file in self.folder.glob(f"*{SUFFIX}")) if self.folder.is_dir() else []
        for name in names:
            if name in self._indexed:
                continue
            with _open_shard(self.folder / name) as shard:
                metadata = shard.metadata() or {}
            if metadata.get(FINGERPRINT) != self.fingerprint:
                raise DataError(f"{self.folder / name}: contains no features of this backbone; move it elsewhere")
            for row, key in enumerate(json.loads(metadata[KEYS])):
                self._locations.setdefault(key, (name, row))
            self._indexed.add(name)

    def _shard(self, name: str) -> Tensor:
        if name not in self._shards:
            with _open_shard(self.folder / name) as shard:
                self._shards[name] = shard.get_tensor(FEATURES)
        return self._shards[name]


def model_fingerprint(model: PreTrainedModel, **settings: Any) -> str:
    """Return a SHA-256 of everything that determines the output of a model: class, configuration and weights."""
    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in _IRRELEVANT_FIELDS}
    about = {"class": type(model).__name__, "config": config, "settings": settings}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _open_shard(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: damaged file ({error}); delete it, and its images are computed again") from error
