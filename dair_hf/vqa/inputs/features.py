"""Features of a frozen backbone on disk: computed once for each image, read by memory map."""

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
from dair_hf.io.files import atomic_path, write_json
from dair_hf.io.processes import gather_results, rank_and_size
from dair_hf.vqa.inputs.content import FileRecord, content_key, model_fingerprint
from dair_hf.vqa.inputs.pixels import Pixels
from dair_hf.vqa.models.backbone import grid_features

LAYOUT = 1  # of the files; part of the fingerprint
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FEATURES, KEYS, FINGERPRINT = "features", "keys", "fingerprint"  # the names within a shard
SUFFIX = ".safetensors"
SHORT = 16  # digits of a hash that make a name


class FeatureCache:
    """Gives the features of images, as `VQACollator` wants them, from files that `fill` has written.

    An image is known by the SHA-256 of its file's content: it may be renamed, moved or kept twice, and a changed one is
    never mistaken for what it was. Features are known by a fingerprint of the backbone's configuration and weights, of
    the preprocessing and of their type, which has a folder of its own below `folder`. They lie there in shards of about
    `shard_images` images, each written as a whole: a run that is killed loses one shard at most, and the next computes
    only what is missing. Several processes may fill and read a folder at once. While a cache is open its images are
    taken not to change.

    An image of 448 x 448 pixels through a ResNet-152 takes 1.6 MB in float32, half of that in the other types.

    Args:
        folder: Where the features are kept.
        backbone: A vision model of the library, without its head, frozen from now on: `load_backbone(...)`, or the
            `backbone` of an `SAAA`. It is run where its weights are.
        pixels: How images are loaded, resized and normalised.
        dtype: Type in which features are kept: float32, float16 or bfloat16. They are given as float32.
        shard_images: Images of one file, rounded up to whole batches.

    Raises:
        DataError: An unknown dtype, a shard without images, or a damaged file in the folder.

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
            raise DataError(f"shard_images={shard_images}; must be 1 or more")
        self.backbone: PreTrainedModel | None = backbone
        self.pixels = pixels
        self.dtype = dtype
        self.shard_images = shard_images
        self._settings = {"layout": LAYOUT, "dtype": str(dtype), "pixels": pixels.settings()}
        self.fingerprint = model_fingerprint(backbone, **self._settings)
        self.folder = Path(folder) / self.fingerprint[:SHORT]
        self._content = FileRecord(Path(folder) / "contents.json", content_key)
        self._keys: dict[str, str] = {}  # path -> content key, of this run
        self._places: dict[str, tuple[str, int]] = {}  # content key -> file and row
        self._read: set[str] = set()  # files whose keys are known
        self._shards: dict[str, Tensor] = {}  # file -> its features, a memory map
        self._refresh()

    def __getstate__(self) -> dict[str, Any]:
        # What a worker process of a data loader gets: it reads with maps of its own, and computes nothing.
        return {**self.__dict__, "backbone": None, "_shards": {}}

    def fill(self, images: Iterable[str], batch_size: int = 32, num_workers: int = 0, progress: bool = True) -> int:
        """Compute the features that are missing.

        The processes of one run share the images out: all of them must call it, with the same images, and each waits
        until the others are done, as long as the process group allows (`ddp_timeout`, in seconds).

        Args:
            images: Paths of the images, in any number of repeats.
            batch_size: Images that are run together.
            num_workers: Processes that load images beside this one.
            progress: Whether to show a progress bar with the time that is left, on a terminal.

        Returns:
            How many images were computed, by all processes together.

        Raises:
            DataError: An image cannot be read, or a feature is no finite number of the type it is kept in, on any of
                the processes; or the processes do not see the same folder.
        """
        if self.backbone is None:
            raise DataError("fill: a copy in a worker process has no backbone; fill the cache before training")
        paths = list(dict.fromkeys(images))
        self._keys.update(zip(paths, cast(list[str], self._content.share_out(paths, progress)), strict=True))
        self._refresh()
        rank, size = rank_and_size()
        missing = {self._keys[path]: path for path in paths if self._keys[path] not in self._places}
        # By the content alone: processes that find different shards there still agree on who computes what.
        share = {key: path for key, path in missing.items() if int(key[:SHORT], 16) % size == rank}
        computed = sum(gather_results(lambda: self._fill(share, batch_size, num_workers, progress and rank == 0)))
        self._refresh()
        if absent := next((path for path in paths if self._keys[path] not in self._places), None):
            raise DataError(
                f"{absent}: its features, which another process computed, are not in {self.folder}; give all machines "
                "of the run the same folder"
            )
        return computed

    def _fill(self, missing: dict[str, str], batch_size: int, num_workers: int, progress: bool) -> int:
        if not missing:
            return 0
        assert self.backbone is not None
        if model_fingerprint(self.backbone, **self._settings) != self.fingerprint:
            raise DataError(f"{self.folder}: the backbone's weights have changed since; make a new FeatureCache of it")
        about = {FINGERPRINT: self.fingerprint, **self._settings, "backbone": self.backbone.config.to_diff_dict()}
        write_json(self.folder / "about.json", about)
        with tqdm(total=len(missing), desc="image features", unit="image", disable=None if progress else True) as bar:
            keys: list[str] = []
            parts: list[Tensor] = []
            for part_keys, part in self._compute(missing, batch_size, num_workers):
                keys, parts = [*keys, *part_keys], [*parts, part]
                bar.update(len(part_keys))
                if len(keys) >= self.shard_images:
                    self._write(keys, torch.cat(parts))
                    keys, parts = [], []
            if keys:
                self._write(keys, torch.cat(parts))
        return len(missing)

    def __call__(self, images: Sequence[str]) -> Tensor:
        """The features of images.

        Args:
            images: Paths, N of them.

        Returns:
            `[N, C, h, w]` float32.

        Raises:
            DataError: The features of an image are not in the cache.
        """
        if unknown := [image for image in images if image not in self._keys]:
            self._keys.update(zip(unknown, cast(list[str], self._content.of(unknown)), strict=True))
        rows = [self._shard(file)[row] for file, row in map(self._place, images)]
        return torch.stack(rows).to(torch.float32)

    def _place(self, image: str) -> tuple[str, int]:
        key = self._keys[image]
        if key not in self._places:
            self._refresh()  # another process may have computed it
        if key not in self._places:
            raise DataError(f"{image}: its features are not in {self.folder}; call fill with it before reading")
        return self._places[key]

    def _compute(
        self, missing: dict[str, str], batch_size: int, num_workers: int
    ) -> Iterator[tuple[list[str], Tensor]]:
        backbone = self.backbone
        assert backbone is not None
        keys, paths = list(missing), list(missing.values())
        starts = range(0, len(paths), batch_size)
        batches = [paths[start : start + batch_size] for start in starts]
        # Without a batch size a loader gives what the function makes of each entry, here of a whole batch.
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
                yield keys[start : start + batch_size], self._kept(features, batch)
        finally:
            backbone.train(was_training)

    def _kept(self, features: Tensor, images: list[str]) -> Tensor:
        kept = features.to(self.dtype).cpu().contiguous()
        finite = kept.flatten(1).isfinite().all(1)
        if not finite.all():
            image = images[int((~finite).nonzero()[0])]
            largest = features[~finite].abs().max().item()
            raise DataError(
                f"{image}: its features reach {largest:.4g}, which {self.dtype} cannot hold; use dtype=torch.float32, "
                "or look at the backbone and the normalisation if that is no number either"
            )
        return kept

    def _write(self, keys: list[str], features: Tensor) -> None:
        # Named by what is in it: processes that compute the same images write the same file.
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:SHORT] + SUFFIX
        with atomic_path(self.folder / name) as path:
            save_file({FEATURES: features}, path, metadata={KEYS: json.dumps(keys), FINGERPRINT: self.fingerprint})

    def _refresh(self) -> None:
        """Take note of the files that are new in the folder."""
        found = sorted(file.name for file in self.folder.glob(f"*{SUFFIX}")) if self.folder.is_dir() else []
        for name in found:
            if name in self._read:
                continue
            with _opened(self.folder / name) as shard:
                about = shard.metadata() or {}
            if about.get(FINGERPRINT) != self.fingerprint:
                raise DataError(f"{self.folder / name}: no features of this backbone; move it elsewhere")
            for row, key in enumerate(json.loads(about[KEYS])):
                self._places.setdefault(key, (name, row))
            self._read.add(name)

    def _shard(self, name: str) -> Tensor:
        if name not in self._shards:
            with _opened(self.folder / name) as shard:
                self._shards[name] = shard.get_tensor(FEATURES)
        return self._shards[name]


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it, its images are computed again") from error
