"""Optuna journal that survives writers that are killed while they write."""

from __future__ import annotations

from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from dair_hf.errors import DataError
from dair_hf.io.files import decode_json, explain_write_errors

_LINE_START = b'{"op_code":'  # of every line of a journal


class RepairingLock(JournalFileSymlinkLock):
    """Lock of a journal that removes an incomplete last line before its holder writes.

    Only a writer that was killed leaves such a line, since writers hold the lock. Readers of Optuna ignore it, but the
    next writer would append to it, and then no process could read the journal any more.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file

    def acquire(self) -> bool:
        """Wait for the lock, and repair the journal."""
        acquired = super().acquire()
        try:
            remove_incomplete_line(self.file)
        except BaseException:
            self.release()  # Optuna does so only after a lock that was acquired
            raise
        return acquired


def remove_incomplete_line(file: Path) -> None:
    """Remove the last line of a journal if it does not end with a line break; other files are left as they are."""
    with file.open("rb+") as journal:
        size = journal.seek(0, 2)
        if not size or (journal.seek(size - 1) and journal.read(1) == b"\n"):
            return
        journal.seek(0)
        for line in journal:
            last = line
        if last[: len(_LINE_START)] == _LINE_START[: len(last)]:
            journal.truncate(size - len(last))


def open_journal(file: Path) -> JournalStorage:
    """Open a journal, or create it."""
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        _check_lines(file)
        try:
            return JournalStorage(JournalFileBackend(str(file), lock_obj=RepairingLock(file)))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise DataError(f"{file}: not a journal of Optuna; name another file, or move this one away") from error


def _check_lines(file: Path) -> None:
    with file.open("rb") as journal:
        for number, line in enumerate(journal, 1):
            if not line.endswith(b"\n") and line[: len(_LINE_START)] == _LINE_START[: len(line)]:
                return  # incomplete: being written, or of a killed writer
            if not line.startswith(_LINE_START):
                raise DataError(
                    f"{file}: line {number}: not a journal of Optuna; name another file, or move this one away"
                )
            try:
                decode_json(line)
            except ValueError as error:
                raise DataError(
                    f"{file}: line {number}: damaged ({error}); move the file away and start again: finished runs are "
                    "kept in their records"
                ) from error
