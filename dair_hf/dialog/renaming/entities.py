"""Augmented view of dialog rows: the same turns with renamed entities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features
from datasets.formatting.formatting import LazyRow

from dair_hf.dialog.linking.spelling import kind_of
from dair_hf.dialog.renaming.new_names import METHODS, RESERVED, rename
from dair_hf.dialog.renaming.rewriting import Dialogue, lost_values, rewrite_history, rewrite_state
from dair_hf.dialog.text.rows import PLACE_SLOTS
from dair_hf.dialog.text.spans import normalize_name
from dair_hf.errors import DataError
from dair_hf.io.files import read_json
from dair_hf.io.records import paused_gc
from dair_hf.metrics.state.conventions import NAME_SLOTS

COLUMNS = ("row_id", "dialogue_id", "history", "state", "entities", "names")
REMOVED = "removed"  # key of the removed names in a bank file, beside the splits
AUGMENTED = {"augmented_history": "history", "augmented_state": "state"}

_USAGE = "call dataset.map(augmenter, batched=True) on a dataset with format None or 'arrow'"

Row = Mapping[str, Any]
View = tuple[list[dict[str, str]], list[dict[str, Any]]]


@dataclass(frozen=True)
class EntityAugmenter:
    """Function for `Dataset.map(..., batched=True)` that renames the entities of dialog rows in history and state.

    An entity gets one new name in all rows of its dialogue, for every spelling and every slot. Mentions keep their case
    pattern (lower, UPPER, Title Case) and spacing; "a" and "an" before them follow the new name. A new name is no
    spelling of an entity of the dialogue, no other new name and no category ("east", "cheap"). It depends on (method,
    seed, epoch, dialogue, entity), and not on the order of rows or on `num_proc`.

    A row has no partner (None in both columns) if nothing in it would change, or if a new name already occurs in the
    row. With `mentioned_only`, a row has no partner either if the model could not know its new state: the history does
    not mention a name of the state, or a new name replaces the only mention of another value ("christ's college", if
    the attraction is a college).

    Methods:
    - `scramble` shuffles letters within words, and the words (training data of the paper);
    - `anagram` shuffles letters across words;
    - `gibberish` draws 3 to 11 made-up words (released code of the paper);
    - `swap` draws a name from `bank` (test data of the paper).

    Names that cannot change ("aaa", "7", or no name left in the bank) are unchanged.

    Args:
        method: "scramble", "anagram", "gibberish" or "swap".
        seed: Any integer.
        epoch: Any integer. Each epoch has other names.
        slots: Slots whose entities are renamed.
        places: Also rename departures and destinations of taxi and train.
        bank: For `swap`: names by slot ("hotel-name") or by kind ("hotel"; "place" for departures and destinations).
        mentioned_only: Pair rows only if the history mentions all renamed entities of the state, and the augmented
            history all other values that the original one mentions.
        covariant_only: Pair rows only if their state changes. False also pairs rows in which only the history changes
            (a name that the system offered), with the same target in both views.

    Raises:
        DataError: The method is unknown, there are no slots, a slot is no text, `swap` has no bank or another method
            has one, or the bank lacks names for a slot, or has something else than a list of names.

    Example:
        >>> row = {
        ...     "row_id": "d/0", "dialogue_id": "d",
        ...     "history": [{"speaker": "user", "text": "Is Nandos open?"}],
        ...     "state": [{"slot": "restaurant-name", "values": ["nandos"]}],
        ...     "entities": [{"slot": "restaurant-name", "name": "nandos", "turn": 0, "start": 3, "end": 9}],
        ...     "names": [{"slot": "restaurant-name", "name": "nandos", "forms": ["nandos"]}],
        ... }
        >>> augmenter = EntityAugmenter("swap", slots=["restaurant-name"], bank={"restaurant": ["Sea Thai"]})
        >>> views = augmenter({column: [value] for column, value in row.items()})
        >>> views["augmented_history"], views["augmented_state"]
        ([[{'speaker': 'user', 'text': 'Is Sea Thai open?'}]], [[{'slot': 'restaurant-name', 'values': ['sea thai']}]])
    """

    method: str = "scramble"
    seed: int = 0
    epoch: int = 0
    slots: Sequence[str] = NAME_SLOTS
    places: bool = False
    bank: Mapping[str, Sequence[str]] | None = None
    mentioned_only: bool = True
    covariant_only: bool = False
    # Part of the fingerprint of a cached map: increase it when the same settings give other names.
    revision: int = field(default=5, init=False)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise DataError(f"method: {self.method!r} is unknown; choose one of {', '.join(METHODS)}")
        if isinstance(self.slots, str):
            raise DataError(f"slots: {self.slots!r} is one string; give a list of slots")
        slots = tuple(sorted({*self.slots, *(PLACE_SLOTS if self.places else ())}, key=str))
        if not slots:
            raise DataError("slots: empty, so nothing would be renamed; name at least one slot such as 'hotel-name'")
        if not all(isinstance(slot, str) for slot in slots):
            raise DataError(f"slots: {list(slots)} are not all texts; give names of slots such as 'hotel-name'")
        if (self.method == "swap") != (self.bank is not None):
            remedy = "give one, for instance load_bank(path, split)" if self.bank is None else "leave the bank out"
            raise DataError(f"bank: method {self.method!r} with {'no' if self.bank is None else 'a'} bank; {remedy}")
        # Plain sorted values: equal settings must have equal fingerprints.
        object.__setattr__(self, "slots", slots)
        if self.bank is not None:
            object.__setattr__(self, "bank", {slot: _bank_names(self.bank, slot) for slot in slots})

    def __call__(self, batch: Any) -> Any:
        """Augment a batch of rows."""
        if not isinstance(batch, (pa.Table, Mapping)):
            raise DataError(f"found {type(batch).__name__} instead of a batch of rows; {_USAGE}")
        if isinstance(batch, LazyRow) or (isinstance(batch, dict) and isinstance(batch.get("row_id"), str)):
            raise DataError(f"found the row {batch.get('row_id')!r} instead of a batch of rows; {_USAGE}")
        # Columns read from the lazy batch itself would be written again by `map`.
        source = batch if isinstance(batch, pa.Table) else getattr(batch, "pa_table", batch)
        present = source.column_names if isinstance(source, pa.Table) else list(source)
        missing = [column for column in COLUMNS if column not in present]
        if missing:
            raise DataError(f"columns {missing} are missing (found {sorted(present)}); prepare dialog rows first")
        with paused_gc():
            columns = [source[c].to_pylist() if isinstance(source, pa.Table) else source[c] for c in COLUMNS]
            dialogues: dict[str, Dialogue] = {}
            rows = (dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True))
            views = [self._augment(row, dialogues) or (None, None) for row in rows]
        new = {name: [view[index] for view in views] for index, name in enumerate(AUGMENTED)}
        if not isinstance(batch, pa.Table):
            return new
        for name, original in AUGMENTED.items():
            column = pa.array(new[name], type=batch.schema.field(original).type)
            if name in batch.column_names:
                batch = batch.set_column(batch.column_names.index(name), name, column)
            else:
                batch = batch.append_column(name, column)
        return batch

    def renaming(self, row: Row) -> dict[str, str]:
        """Return the new names in the row's dialogue: normalized canonical name -> new name."""
        return dict(self._dialogue(row, {}).renaming.new_names)

    def _dialogue(self, row: Row, dialogues: dict[str, Dialogue]) -> Dialogue:
        dialogue = dialogues.get(row["dialogue_id"])
        if dialogue is None or dialogue.names != row["names"]:
            renaming = rename(
                row["names"],
                method=self.method,
                slots=frozenset(self.slots),
                bank=self.bank,
                seed=self.seed,
                epoch=self.epoch,
                dialogue_id=row["dialogue_id"],
            )
            dialogue = dialogues[row["dialogue_id"]] = Dialogue(row["names"], renaming, {})
        return dialogue

    def _augment(self, row: Row, dialogues: dict[str, Dialogue]) -> View | None:
        dialogue = self._dialogue(row, dialogues)
        if not dialogue.renaming.new_names:
            return None
        utterances = rewrite_history(row, dialogue)
        linked = {*self.slots, *NAME_SLOTS, *PLACE_SLOTS}
        try:
            state, in_state, others = rewrite_state(row["state"], dialogue.renaming, linked)
        except ValueError as error:
            raise DataError(f"row {row['row_id']!r}: state: {error}") from error
        in_text: set[str] = set().union(*(utterance.renamed for utterance in utterances))
        used = in_text | in_state
        if not used or (self.mentioned_only and not in_state <= in_text):
            return None
        if self.covariant_only and not in_state:
            return None
        if any(utterance.clashes & used for utterance in utterances):
            return None
        if any(normalize_name(dialogue.renaming.new_names[key]) in others for key in used):
            return None
        if self.mentioned_only and lost_values(row, utterances, state):
            return None
        return [utterance.turn for utterance in utterances], state


def _bank_names(bank: Mapping[str, Sequence[str]], slot: str) -> tuple[str, ...]:
    domain, _, name = slot.partition("-")
    kinds = [slot, domain, name, kind_of(slot)]
    kind = next((kind for kind in kinds if kind in bank), None)
    if kind is None:
        raise DataError(f"bank: no names for slot {slot!r} (looked for {kinds}, found {sorted(bank)}); add them")
    given: Any = bank[kind]
    # The order of a set changes between processes.
    is_list = isinstance(given, Iterable) and not isinstance(given, (str, set, frozenset))
    if not is_list or not all(isinstance(name, str) for name in given):
        raise DataError(
            f"bank: kind {kind!r} for slot {slot!r}: expected a list of names, found {given!r:.80}; write "
            f'{{"{kind}": ["Sea Thai", ...]}}'
        )
    names = {normalize_name(name): name.strip() for name in reversed(list(given))}
    usable = tuple(names[spelling] for spelling in sorted(names) if spelling not in RESERVED)
    if not usable:
        raise DataError(f"bank: kind {kind!r} has no usable name for slot {slot!r}; add some")
    return usable


def load_bank(path: str | os.PathLike[str], split: str, *, with_removed: bool = False) -> dict[str, list[str]]:
    """Read the names of one split from a bank file: `{"train": {"hotel": ["...", ...], ...}, "test": {...}}`.

    Args:
        path: JSON file, for instance from `data_scripts/prepare_sgd_entities.py`.
        split: One of its splits.
        with_removed: Add the names that were removed from the split because an earlier one has them.

    Returns:
        Kind -> names.

    Raises:
        DataError: The file cannot be read, has no such split, or has another form.

    Example:
        >>> bank = load_bank("sgd_names.json", "test")  # doctest: +SKIP
        >>> augmenter = EntityAugmenter(method="swap", bank=bank)  # doctest: +SKIP
    """
    content = read_json(path)
    splits = sorted(content.keys() - {REMOVED}) if isinstance(content, dict) else type(content).__name__
    if split not in splits or not isinstance(content, dict):
        raise DataError(f"{path}: no split {split!r} (found {splits}); choose one of these or prepare the bank anew")
    bank = _checked_names(content[split], f"{path}: {split}")
    if not with_removed:
        return bank
    removed = content.get(REMOVED)
    if (
        not isinstance(removed, dict)
        or not isinstance(removed.get(split), dict)
        or removed[split].keys() != bank.keys()
    ):
        raise DataError(
            f"{path}: names of split {split!r} are not in the current format of prepare_sgd_entities.py; prepare them "
            "anew"
        )
    others = _checked_names(removed[split], f"{path}: {REMOVED}.{split}")
    return {kind: sorted([*names, *others[kind]]) for kind, names in bank.items()}


def _checked_names(bank: Any, where: str) -> dict[str, list[str]]:
    if not isinstance(bank, dict) or not bank:
        raise DataError(f"{where}: expected kinds with lists of names, found {bank!r:.80}; prepare it anew")
    for kind, names in bank.items():
        if not isinstance(names, list) or not all(isinstance(n, str) and n.strip() for n in names):
            raise DataError(f"{where}.{kind}: expected a list of names, found {names!r:.80}; prepare the bank anew")
    return bank


def augmented_features(features: Features) -> Features:
    """Return features with the augmented columns, for `map(..., features=)`: a first batch may have no partner."""
    for original in AUGMENTED.values():
        if original not in features:
            raise DataError(f"column {original!r} is missing (found {sorted(features)}); prepare dialog rows first")
    return Features({**features, **{name: features[original] for name, original in AUGMENTED.items()}})


def redraw(
    dataset: Dataset,
    augmenter: EntityAugmenter,
    epoch: int | None = None,
    *,
    num_proc: int | None = None,
    **map_options: Any,
) -> Dataset:
    """Add the augmented view to a dataset of dialog rows, or replace it by that of another epoch.

    Equals `dataset.map(augmenter, batched=True)`, including its cache, but works on Arrow tables, which is faster.

    Args:
        dataset: Rows with the columns `COLUMNS`.
        augmenter: Augmenter of the rows.
        epoch: Epoch instead of the augmenter's.
        num_proc: Number of processes, as in `Dataset.map`.
        map_options: Further options of `Dataset.map`, such as `desc` or `load_from_cache_file`.

    Returns:
        The dataset with `augmented_history` and `augmented_state`, in the format that it had.

    Raises:
        DataError: A column is missing, a mention is outside its utterance, or no row has a partner.

    Example:
        >>> for epoch in range(4):  # doctest: +SKIP
        ...     pairs = redraw(rows, EntityAugmenter(seed=1), epoch)
    """
    if epoch is not None:
        augmenter = replace(augmenter, epoch=epoch)
    function: Callable[[pa.Table], pa.Table] = augmenter
    shape = dataset.format
    features = augmented_features(dataset.features)
    options = {"desc": f"Augmenting ({augmenter.method})", **map_options}
    plain = dataset.with_format("arrow")
    pairs = plain.map(function, batched=True, features=features, num_proc=num_proc, **options)
    if len(pairs) and pairs.data.column("augmented_history").null_count == len(pairs):
        # Training would be plain ERM, and every figure of the pairs empty.
        found = sorted({entry["slot"] for names in dataset.with_format(None)["names"] for entry in names})
        raise DataError(f"slots: no row has a partner; renamed are {list(augmenter.slots)}, the names are in {found}")
    # columns=None means all columns, also those that are added later.
    has_all = set(shape["columns"]) == set(dataset.column_names)
    columns = None if has_all else list(dict.fromkeys([*shape["columns"], *AUGMENTED]))
    return pairs.with_format(shape["type"], columns, shape["output_all_columns"], **shape["format_kwargs"])
