"""Choice of whole dialogues: the first ones, those held out for validation, and those that two data sets share."""

from __future__ import annotations

from datasets import Dataset
from transformers.utils import logging

from dair_hf.dialog.text.rows import history_to_text
from dair_hf.errors import DataError

logger = logging.get_logger(__name__)


def held_out(rows: Dataset) -> tuple[Dataset, Dataset]:
    """Split rows into the first nine tenths of the dialogues and the last tenth (at least one dialogue).

    Raises:
        DataError: There are fewer than two dialogues.
    """
    dialogue_ids = rows["dialogue_id"][:]
    dialogues = list(dict.fromkeys(dialogue_ids))
    if len(dialogues) < 2:
        raise DataError(
            f"held_out: found {len(dialogues)} dialogues, and one is held out for validation, so none is left to train "
            "on; give at least 2"
        )
    last = set(dialogues[-max(len(dialogues) // 10, 1) :])
    parts: tuple[list[int], list[int]] = ([], [])
    for index, dialogue_id in enumerate(dialogue_ids):
        parts[dialogue_id in last].append(index)
    return rows.select(parts[0]), rows.select(parts[1])


def first_dialogs(rows: Dataset, count: int | None) -> Dataset:
    """Return the rows of the first `count` dialogues, or all rows if it is None."""
    if count is None:
        return rows
    dialogue_ids = rows["dialogue_id"][:]
    first = set(list(dict.fromkeys(dialogue_ids))[:count])
    return rows.select([index for index, dialogue_id in enumerate(dialogue_ids) if dialogue_id in first])


def warn_of_shared_dialogs(train: Dataset, test: Dataset) -> None:
    """Log a warning if test dialogues have the same utterances as training dialogues, whatever their ids are."""
    trained = set(_whole_dialogs(train).values())
    tested = _whole_dialogs(test)
    if shared := [dialogue_id for dialogue_id, text in tested.items() if text in trained]:
        logger.warning(
            f"{len(shared)} of {len(tested)} test dialogues are also training dialogues, such as {shared[0]!r}: their "
            "results are not those of new dialogues; check the splits of the data"
        )


def _whole_dialogs(rows: Dataset) -> dict[str, str]:
    """Return the text of every dialogue; its last row has all its utterances."""
    last = {name: index for index, name in enumerate(rows["dialogue_id"][:])}
    whole = rows.select_columns(["dialogue_id", "history"]).select(list(last.values()))
    return {row["dialogue_id"]: history_to_text(row["history"]) for row in whole}
