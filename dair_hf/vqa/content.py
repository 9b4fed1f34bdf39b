"""What a file and a model are known by, whatever their name: hashes of their content."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from dair_hf.errors import DataError
from dair_hf.files import read_json, write_json

# Fields of a configuration that change nothing in what its model computes.
_NO_MATTER = frozenset(
    {"transformers_version", "architectures", "dtype", "id2label", "label2id", "problem_type", "_name_or_path"}
)
# A file that is changed twice within one tick of the file system's clock looks unchanged: so the key of a file that was
# changed just now is not kept. No file system in use has longer ticks than this.
_TICK_NS = 2 * 10**9


def content_key(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        DataError: The file cannot be read.

    Example:
        >>> content_key("COCO_val2014_000000262148.jpg")  # doctest: +SKIP
        '8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4'
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | os.PathLike[str], error: OSError) -> DataError:
    return DataError(f"{os.fspath(path)}: cannot be read ({error.strerror or error}); check the path")


class _Entry(NamedTuple):
    size: int
    modified_ns: int
    changed_ns: int  # of its name, its owner and so on as well; nobody can set it back
    key: str


class ContentKeys:
    """The content keys of files, each file hashed once as long as it does not change.

    Whether a file changed is told as git tells it: by its size and the times that the file system notes.

    Args:
        record: JSON file that keeps the keys between runs. It may be deleted at any time.

    Raises:
        DataError: The record cannot be read.

    Example:
        >>> keys = ContentKeys("features/contents.json")  # doctest: +SKIP
        >>> keys.of(["a.jpg", "copy_of_a.jpg"])  # doctest: +SKIP
        ['8f4343...', '8f4343...']
    """

    def __init__(self, record: str | os.PathLike[str]) -> None:
        self.record = Path(record)
        self._known: dict[str, _Entry] = {}
        self._saved = True
        if self.record.exists():
            try:
                self._known = {path: _Entry(*entry) for path, entry in read_json(self.record).items()}
            except (DataError, AttributeError, TypeError) as error:
                raise DataError(
                    f"{self.record}: no record of contents ({error}); delete it, it is made anew"
                ) from error

    def of(self, paths: Iterable[str], progress: bool = False) -> list[str]:
        """The keys of files, in their order.

        Args:
            paths: The files.
            progress: Whether to show a progress bar, on a terminal, if it takes longer than two seconds.

        Returns:
            64 hexadecimal digits each.

        Raises:
            DataError: A file cannot be read.
        """
        paths = [os.path.abspath(path) for path in paths]
        distinct = list(dict.fromkeys(paths))
        disable = None if progress else True
        with ThreadPoolExecutor() as threads:  # the interpreter is let go while a file is read and hashed
            found = threads.map(self._look_up, distinct)
            bar = tqdm(found, "checking images", len(distinct), delay=2.0, leave=False, disable=disable)
            entries = dict(zip(distinct, bar, strict=True))
        latest = time.time_ns() - _TICK_NS
        for path, entry in entries.items():
            if entry is not self._known.get(path) and max(entry.modified_ns, entry.changed_ns) < latest:
                self._known[path], self._saved = entry, False
        return [entries[path].key for path in paths]

    def save(self) -> None:
        """Write the record, if there is anything new in it."""
        if not self._saved:
            write_json(self.record, self._known)
            self._saved = True

    def _look_up(self, path: str) -> _Entry:
        try:
            state = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        known = self._known.get(path)
        if known is not None and known[:3] == (state.st_size, state.st_mtime_ns, state.st_ctime_ns):
            return known
        return _Entry(state.st_size, state.st_mtime_ns, state.st_ctime_ns, content_key(path))


def model_fingerprint(model: PreTrainedModel, **settings: Any) -> str:
    """SHA-256 of what a model computes by: its class, configuration and weights, and any settings besides.

    Args:
        model: A model of the Hugging Face library.
        **settings: Anything that can be written as JSON.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> from transformers import ResNetConfig, ResNetModel
        >>> model = ResNetModel(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))
        >>> model_fingerprint(model, size=64) == model_fingerprint(model, size=64)
        True
        >>> model_fingerprint(model, size=64) == model_fingerprint(model, size=32)
        False
    """
    config = {name: value for name, value in model.config.to_diff_dict().items() if name not in _NO_MATTER}
    about = {"class": type(model).__name__, "config": config, "settings": settings}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, values in sorted(model.state_dict().items()):
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
