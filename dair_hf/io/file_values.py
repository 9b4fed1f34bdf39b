"""Values computed from files, cached as long as the files do not change, and fingerprints of rows that name files."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset
from tqdm.auto import tqdm

from dair_hf.errors import explained
from dair_hf.io.archives import sha256_of
from dair_hf.io.files import read_json, write_json
from dair_hf.io.processes import map_across_ranks, rank_and_size

# A file that changes twice within one tick of the file system's clock looks unchanged, so values of files modified
# within the last tick are not stored. No file system in use has longer ticks than this.
CLOCK_TICK_NS = 2 * 10**9


class _Entry(NamedTuple):
    size: int
    modified_ns: int
    changed_ns: int  # also updated by renaming or a new owner; cannot be set back
    value: str | None


class FileValueCache:
    """Cache of one value per file, which is computed again if the file's size or one of its timestamps changed.

    Args:
        cache_file: JSON file that keeps the values between runs; it may be deleted at any time. None: memory only.
        compute: Function from a path to its value, or to None for a file that has to be checked again next time.
        description: Label of the progress bar.
    """

    def __init__(
        self,
        cache_file: str | os.PathLike[str] | None,
        compute: Callable[[str], str | None],
        description: str = "checking images",
    ) -> None:
        self.cache_file = None if cache_file is None else Path(cache_file)
        self.compute = compute
        self.description = description
        self._entries: dict[str, _Entry] = {}
        self._is_saved = True
        if self.cache_file is not None and self.cache_file.exists():
            entries = read_json(self.cache_file)
            self._entries = {path: _Entry(*entry) for path, entry in entries.items()}

    @classmethod
    def of_contents(cls, folder: str | os.PathLike[str]) -> FileValueCache:
        """Return the cache of the SHA-256 of files, kept in `contents.json` in a folder."""
        return cls(Path(folder) / "contents.json", sha256_of, "hashing images")

    def get(self, paths: Iterable[str], progress: bool = False, shared: bool = False) -> list[str | None]:
        """Return the values of files, computing those that are missing or outdated.

        `shared` splits the files among the processes of the run, which must all call this method, and saves the cache.
        """
        paths = [os.path.abspath(path) for path in paths]
        distinct = list(dict.fromkeys(paths))
        compute = partial(self._current_entries, progress=progress)
        entries = dict(zip(distinct, map_across_ranks(distinct, compute) if shared else compute(distinct), strict=True))
        latest_ns = time.time_ns() - CLOCK_TICK_NS
        for path, entry in entries.items():
            is_settled = max(entry.modified_ns, entry.changed_ns) < latest_ns
            if entry.value is not None and is_settled and entry != self._entries.get(path):
                self._entries[path], self._is_saved = entry, False
        if shared and rank_and_size()[0] == 0:
            self.save()
        return [entries[path].value for path in paths]

    def fingerprint(self, rows: Dataset, path_columns: Sequence[str]) -> str:
        """Return a fingerprint of rows that depends on the values of their files, not on their location.

        All processes of a run must call this method, since they split the hashing; a path may be None.
        """
        others = rows.select_columns([name for name in rows.column_names if name not in path_columns])
        digest = hashlib.sha256(json.dumps(rows.features.to_dict(), sort_keys=True).encode())
        for batch in others.with_format("arrow").iter(1000):
            digest.update(json.dumps(batch.to_pydict(), default=str).encode())
        for name in path_columns:
            paths = rows[name][:]
            of_path = iter(self.get([path for path in paths if path is not None], progress=True, shared=True))
            digest.update(json.dumps([None if path is None else next(of_path) for path in paths]).encode())
        return digest.hexdigest()[:16]

    def save(self) -> None:
        """Write the cache file if there are new values."""
        if self.cache_file is not None and not self._is_saved:
            write_json(self.cache_file, self._entries)
            self._is_saved = True

    def _current_entries(self, paths: Sequence[str], progress: bool) -> list[_Entry]:
        disable = None if progress and rank_and_size()[0] == 0 else True
        threads = ThreadPoolExecutor(os.cpu_count())  # reading, hashing and decoding release the GIL
        try:
            entries = threads.map(self._current_entry, paths)
            return list(tqdm(entries, self.description, len(paths), delay=2.0, leave=False, disable=disable))
        finally:
            threads.shutdown(cancel_futures=True)  # otherwise an interrupt would wait for all files

    def _current_entry(self, path: str) -> _Entry:
        with explained(f"{path}: cannot be read", OSError):
            stat = os.stat(path)
            timestamps = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            entry = self._entries.get(path)
            return entry if entry is not None and entry[:3] == timestamps else _Entry(*timestamps, self.compute(path))
