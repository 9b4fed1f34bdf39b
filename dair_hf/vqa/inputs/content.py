"""What a file and a model are known by, whatever their name: hashes of their content."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm.auto import tqdm

from dair_hf.errors import DataError
from dair_hf.io.files import read_json, write_json
from dair_hf.io.processes import map_across_ranks, rank_and_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    value: str | None


class FileRecord:
    """A property of files, such as a hash of their content, found out once for each file as long as it does not change.

    Whether a file changed is told as git tells it: by its size and the times that the file system notes.

    Args:
        record: JSON file that keeps the values between runs; it may be deleted at any time. None: they are not kept.
        look: Path -> the value; None where it should be looked for again the next time.
        doing: Words for the progress bar.

    Raises:
        DataError: The record cannot be read.

    Example:
        >>> keys = FileRecord("features/contents.json", content_key)  # doctest: +SKIP
        >>> keys.of(["a.jpg", "copy_of_a.jpg"])  # doctest: +SKIP
        ['8f4343...', '8f4343...']
    """

    def __init__(
        self,
        record: str | os.PathLike[str] | None,
        look: Callable[[str], str | None],
        doing: str = "checking images",
    ) -> None:
        self.record = None if record is None else Path(record)
        self.look = look
        self.doing = doing
        self._known: dict[str, _Entry] = {}
        self._saved = True
        if self.record is not None and self.record.exists():
            try:
                self._known = {path: _Entry(*entry) for path, entry in read_json(self.record).items()}
            except (DataError, AttributeError, TypeError) as error:
                raise DataError(
                    f"{self.record}: no record of contents ({error}); delete it, it is made anew"
                ) from error

    def of(self, paths: Iterable[str], progress: bool = False) -> list[str | None]:
        """The values of files, in their order.

        Args:
            paths: The files.
            progress: Whether to show a progress bar, on a terminal, if it takes longer than two seconds.

        Returns:
            One value a file.

        Raises:
            DataError: A file cannot be read.
        """
        paths = [os.path.abspath(path) for path in paths]
        distinct = list(dict.fromkeys(paths))
        return self._kept(paths, dict(zip(distinct, self._entries(distinct, progress), strict=True)))

    def share_out(self, paths: Iterable[str], progress: bool = False) -> list[str | None]:
        """As `of`, on several processes each looking into its share of the files, and saved by the first of them.

        All processes of the run must call it, with the same paths.
        """
        paths = [os.path.abspath(path) for path in paths]
        distinct = list(dict.fromkeys(paths))
        entries = map_across_ranks(distinct, lambda share: self._entries(share, progress))
        values = self._kept(paths, dict(zip(distinct, entries, strict=True)))
        if rank_and_size()[0] == 0:
            self.save()
        return values

    def save(self) -> None:
        """Write the record, if there is one and anything is new in it."""
        if self.record is not None and not self._saved:
            write_json(self.record, self._known)
            self._saved = True

    def _entries(self, paths: Sequence[str], progress: bool) -> list[_Entry]:
        disable = None if progress and rank_and_size()[0] == 0 else True
        threads = ThreadPoolExecutor(os.cpu_count())  # the interpreter is let go while a file is read and decoded
        try:
            found = threads.map(self._look_up, paths)
            return list(tqdm(found, self.doing, len(paths), delay=2.0, leave=False, disable=disable))
        finally:
            threads.shutdown(cancel_futures=True)  # or an interrupt would wait for all the files

    def _kept(self, paths: Sequence[str], entries: Mapping[str, _Entry]) -> list[str | None]:
        latest = time.time_ns() - _TICK_NS
        for path, entry in entries.items():
            settled = max(entry.modified_ns, entry.changed_ns) < latest
            if entry.value is not None and settled and entry != self._known.get(path):
                self._known[path], self._saved = entry, False
        return [entries[path].value for path in paths]

    def _look_up(self, path: str) -> _Entry:
        try:
            state = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        known = self._known.get(path)
        if known is not None and known[:3] == (state.st_size, state.st_mtime_ns, state.st_ctime_ns):
            return known
        return _Entry(state.st_size, state.st_mtime_ns, state.st_ctime_ns, self.look(path))


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
