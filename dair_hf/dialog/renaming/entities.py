"""Augmented view of dialog rows: the same turns with renamed entities."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from datasets import Dataset, Features
from datasets.formatting.formatting import LazyRow

from dair_hf.dialog.linking.names import kind_of
from dair_hf.dialog.readers.shapes import check_json
from dair_hf.dialog.renaming.new_names import RESERVED, Renaming, rename
from dair_hf.dialog.rows import (
    PLACE_SLOTS,
    UNSPOKEN,
    contains_name,
    excluded_value,
    normalize_name,
    on_word_boundary,
    without_overlap,
)
from dair_hf.errors import DataError
from dair_hf.io.files import read_json
from dair_hf.io.records import paused_gc
from dair_hf.metrics.state.conventions import NAME_SLOTS
from dair_hf.settings import check_fields

COLUMNS = ("row_id", "dialogue_id", "history", "state", "entities", "names")
REMOVED = "removed"  # key of the removed names in a bank file, next to the splits
AUGMENTED = {"augmented_history": "history", "augmented_state": "state"}
_WORD = re.compile(r"[^\W_]+")
_ARTICLE = re.compile(r"(?<![^\W_])([Aa])[Nn]?(\s+[\"'‘“(]?)$")
# Vowels that sound like "you" or "won" ("a european", "a ukrainian", "a one-way"), and what else begins with a vowel
# sound ("an hour", "an 18th").
_YOU_OR_WON = r"eu|ewe|once|one\b|u(?:k\b|kr|ganda|rugu|cla|ni(?![mn])|s[as]?\b|ser?s?\b|sual|topi)"
_VOWEL_SOUND = re.compile(rf"(?!{_YOU_OR_WON})[aeiou]|h(?:our|ono|ones|eir)|8|1[18](?!\d\b)")

Row = Mapping[str, Any]
View = tuple[list[dict[str, str]], list[dict[str, Any]]]


class _Utterance(NamedTuple):
    """Turn with new names, the entities renamed in it, those whose new name it had before, and the words it lost."""

    turn: dict[str, str]
    renamed: frozenset[str]
    clashes: frozenset[str]
    removed: frozenset[str]


class _Dialogue(NamedTuple):
    """Renaming of a dialogue and its utterances rewritten so far, shared by its rows."""

    names: Sequence[Mapping[str, Any]]
    renaming: Renaming
    utterances: dict[tuple[Any, ...], _Utterance]


@dataclass(frozen=True)
class EntityAugmenter:
    """Function for `Dataset.map(..., batched=True)` that renames the entities of dialog rows in history and state.

    An entity gets one new name in all rows of its dialogue, for every spelling and every slot. Mentions keep their case
    pattern (lower, UPPER, Title Case) and spacing; "a" and "an" before them follow the new name. A new name is no
    spelling of an entity of the dialogue, no other new name and no category ("east", "cheap"). It depends on (method,
    seed, epoch, dialogue, entity), and not on the order of rows or on `num_proc`.

    A row has no partner (None in both columns) if nothing in it would change, if a new name already occurs in the row,
    or if the model could not know its new state: the history does not mention a name of the state, or a new name
    replaces the only mention of another value ("christ's college", if the attraction is a college).

    Methods:
    - `scramble` shuffles letters within words, and the words (training data of the paper);
    - `swap` draws a name from `bank` (test data of the paper).

    Names that cannot change ("aaa", "7", or no name left in the bank) are unchanged.

    Args:
        method: "scramble" or "swap".
        seed: Any integer.
        epoch: Any integer. Each epoch has other names.
        slots: Slots whose entities are renamed.
        bank: For `swap`: names by slot ("hotel-name") or by kind ("hotel"; "place" for departures and destinations).
        covariant_only: Pair rows only if their state changes. False also pairs rows in which only the history changes
            (a name that the system offered), with the same target in both views.

    Raises:
        DataError: The method is unknown, `swap` has no bank or another method has one, or the bank has no list of names
            for a slot.

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

    method: Literal["scramble", "swap"] = "scramble"
    seed: int = 0
    epoch: int = 0
    slots: Sequence[str] = NAME_SLOTS
    bank: Mapping[str, Sequence[str]] | None = None
    covariant_only: bool = False
    # Part of the fingerprint of a cached map: increase it when the same settings give other names.
    revision: int = field(default=5, init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.method == "swap") != (self.bank is not None):
            raise DataError(f"bank: expected one with method 'swap' only, got {self.bank!r:.60} with {self.method!r}")
        # Plain sorted values: equal settings must have equal fingerprints.
        object.__setattr__(self, "slots", tuple(sorted(set(self.slots))))
        if self.bank is not None:
            object.__setattr__(self, "bank", {slot: _bank_names(self.bank, slot) for slot in self.slots})

    def __call__(self, batch: Any) -> Any:
        """Augment a batch of rows."""
        # Columns read from the lazy batch itself would be written again by `map`.
        source = batch if isinstance(batch, pa.Table) else getattr(batch, "pa_table", batch)
        if isinstance(batch, LazyRow) or isinstance(source["row_id"], str):
            raise DataError(f"expected a batch, got row {batch['row_id']!r}; call dataset.map(augmenter, batched=True)")
        with paused_gc():
            columns = [source[c].to_pylist() if isinstance(source, pa.Table) else source[c] for c in COLUMNS]
            dialogues: dict[str, _Dialogue] = {}
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

    def _dialogue(self, row: Row, dialogues: dict[str, _Dialogue]) -> _Dialogue:
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
            dialogue = dialogues[row["dialogue_id"]] = _Dialogue(row["names"], renaming, {})
        return dialogue

    def _augment(self, row: Row, dialogues: dict[str, _Dialogue]) -> View | None:
        dialogue = self._dialogue(row, dialogues)
        if not dialogue.renaming.new_names:
            return None
        utterances = _rewrite_history(row, dialogue)
        linked = {*self.slots, *NAME_SLOTS, *PLACE_SLOTS}
        state, in_state, others = _rewrite_state(row["state"], dialogue.renaming, linked)
        in_text: set[str] = set().union(*(utterance.renamed for utterance in utterances))
        used = in_text | in_state
        if not used or not in_state <= in_text:
            return None
        if self.covariant_only and not in_state:
            return None
        if any(utterance.clashes & used for utterance in utterances):
            return None
        if any(normalize_name(dialogue.renaming.new_names[key]) in others for key in used):
            return None
        if _loses_value(row, utterances, state):
            return None
        return [utterance.turn for utterance in utterances], state


def _bank_names(bank: Mapping[str, Sequence[str]], slot: str) -> tuple[str, ...]:
    domain, _, name = slot.partition("-")
    kinds = [slot, domain, name, kind_of(slot)]
    given: Any = next((bank[kind] for kind in kinds if kind in bank), None)
    # The order of a set changes between processes.
    is_list = isinstance(given, Iterable) and not isinstance(given, (str, set, frozenset))
    names = {normalize_name(name): name.strip() for name in reversed(list(given))} if is_list else {}
    usable = tuple(names[spelling] for spelling in sorted(names) if spelling not in RESERVED)
    if not usable:
        raise DataError(f"bank: expected a list of names for slot {slot!r}, under one of {kinds}, got {given!r:.80}")
    return usable


def _rewrite_history(row: Row, dialogue: _Dialogue) -> list[_Utterance]:
    """Rewrite the texts of a row at its mentions. Utterances are cached in the dialogue."""
    history = row["history"]
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for mention in row["entities"]:
        turn, start, end = mention["turn"], mention["start"], mention["end"]
        if not (0 <= turn < len(history) and 0 <= start < end <= len(history[turn]["text"])):
            raise DataError(f"row {row['row_id']!r}: entities: expected spans in the history, got {mention}")
        spans.setdefault(turn, []).append((start, end, mention["name"]))
    rewritten = []
    for index, turn in enumerate(history):
        mentions = spans.get(index, ())
        key = (turn["speaker"], turn["text"], *mentions)
        utterance = dialogue.utterances.get(key)
        if utterance is None:
            utterance = dialogue.utterances[key] = _rewrite(turn, mentions, dialogue.renaming)
        rewritten.append(utterance)
    return rewritten


def _rewrite(turn: dict[str, str], spans: Iterable[tuple[int, int, str]], renaming: Renaming) -> _Utterance:
    text = turn["text"]
    usable = [
        (start, end, normalize_name(name))
        for start, end, name in spans
        if text[start:end].strip() and on_word_boundary(text, start, end)
    ]
    # The longest span counts even if its entity keeps its name; of equal spans one that is renamed.
    usable.sort(key=lambda span: (span[0], span[2] not in renaming.new_names, span[2]))
    pieces, position, renamed, removed = [], 0, set(), set()
    for start, end, key in without_overlap(usable):
        if key not in renaming.new_names:
            continue
        new = _replaced(text[start:end], renaming.new_names[key])
        pieces += [_fit_article(text[position:start], new), new]
        position = end
        renamed.add(key)
        removed.update(_WORD.findall(normalize_name(text[start:end])))
    if renamed:
        turn = {**turn, "text": "".join(pieces) + text[position:]}
    normalized = normalize_name(text)
    clashes = {key for key, new in renaming.new_names.items() if contains_name(normalized, normalize_name(new))}
    return _Utterance(turn, frozenset(renamed), frozenset(clashes), frozenset(removed))


def _replaced(surface: str, name: str) -> str:
    """Return the new name with the case pattern and the outer white space of the old one."""
    bare = surface.strip()
    before, _, after = surface.partition(bare)
    return f"{before}{_match_case(bare, name)}{after}"


def _match_case(surface: str, name: str) -> str:
    """Give `name` the case pattern of `surface`: lower, UPPER or Title Case (any word with an initial capital).

    The name is unchanged if `surface` has no cased letters or if the change of case would alter its letters.
    """
    if surface.islower():
        styled = name.lower()
    elif surface.isupper() and sum(character.isupper() for character in surface) > 1:
        styled = name.upper()
    elif any(word[0].isupper() for word in surface.split()):
        styled = "".join(word[:1].upper() + word[1:] for word in re.split(r"(\s+)", name.lower()))
    else:
        return name
    return styled if len(styled) == len(name) and styled.lower() == name.lower() else name


def _fit_article(text: str, name: str) -> str:
    """Return the text before a name with its last word, if that is "a" or "an", as the name needs it."""
    n = "" if _VOWEL_SOUND.match(name.lower()) is None else "N" if len(name) > 1 and name.isupper() else "n"
    return _ARTICLE.sub(rf"\g<1>{n}\g<2>", text)


def _rewrite_state(
    state: Sequence[Mapping[str, Any]], renaming: Renaming, linked: set[str]
) -> tuple[list[dict[str, Any]], set[str], set[str]]:
    """Return the renamed state, the keys of the entities renamed in it, and the other values, normalized."""
    rewritten, renamed, others = [], set(), set()
    linked = linked.union(*renaming.slots.values())
    for entry in state:
        slot = entry["slot"]
        values: list[str] = []
        replaced: set[str] = set()
        for value in entry["values"]:
            excluded = excluded_value(value)
            name = value if excluded is None else excluded
            # A value such as "indian" may be a name in one slot and a food in another: only name slots are replaced.
            key = renaming.owner(name, slot) if slot in linked else None
            if key is None or key not in renaming.new_names:
                values.append(value)
                others.add(normalize_name(name))
            elif key not in replaced:
                replaced.add(key)
                new = _replaced(name, renaming.new_names[key])
                values.append(new if excluded is None else f"not({new})")
        renamed |= replaced
        rewritten.append({"slot": slot, "values": values})
    return rewritten, renamed, others


def _loses_value(row: Row, utterances: Sequence[_Utterance], state: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the original history has an unchanged value of the state that the rewritten one lacks.

    "college" is one if it only occurs in "christ's college", which has a new name, but not if "colleges" are spoken of.
    """
    removed = frozenset[str]().union(*(utterance.removed for utterance in utterances))
    for old, new in zip(row["state"], state, strict=True):
        values = [value for value in map(normalize_name, old["values"]) if value not in UNSPOKEN]
        if old["values"] != new["values"] or removed.isdisjoint(
            word for value in values for word in _WORD.findall(value)
        ):
            continue
        before = [normalize_name(turn["text"]) for turn in row["history"]]
        after = [normalize_name(utterance.turn["text"]) for utterance in utterances]
        is_spoken = any(contains_name(text, value) for value in values for text in before)
        if is_spoken and not any(value in text for value in values for text in after):
            return True
    return False


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
    content, kinds = read_json(path), {"*": [str]}
    check_json(content, {split: kinds} | ({REMOVED: {split: kinds}} if with_removed else {}), str(path))
    names: dict[str, list[str]] = content[split]
    if not with_removed:
        return names
    return {kind: sorted([*of_kind, *content[REMOVED][split].get(kind, ())]) for kind, of_kind in names.items()}


def _augmented_features(features: Features) -> Features:
    """Return features with the augmented columns, for `map(..., features=)`: a first batch may have no partner."""
    return Features({**features, **{name: features[original] for name, original in AUGMENTED.items()}})


def redraw(dataset: Dataset, augmenter: EntityAugmenter, epoch: int | None = None, **map_options: Any) -> Dataset:
    """Add the augmented view to a dataset of dialog rows, or replace it by that of another epoch.

    Equals `dataset.map(augmenter, batched=True)`, including its cache, but works on Arrow tables, which is faster.

    Args:
        dataset: Rows with the columns `COLUMNS`.
        augmenter: Augmenter of the rows.
        epoch: Epoch instead of the augmenter's.
        map_options: Options of `Dataset.map`, such as `num_proc`, `desc` or `load_from_cache_file`.

    Returns:
        The dataset with `augmented_history` and `augmented_state`, in the format that it had.

    Raises:
        DataError: A mention is outside its utterance, or no row has a partner.

    Example:
        >>> for epoch in range(4):  # doctest: +SKIP
        ...     pairs = redraw(rows, EntityAugmenter(seed=1), epoch)
    """
    if epoch is not None:
        augmenter = replace(augmenter, epoch=epoch)
    function: Callable[[pa.Table], pa.Table] = augmenter
    shape = dataset.format
    features = _augmented_features(dataset.features)
    options = {"desc": f"Augmenting ({augmenter.method})", **map_options}
    plain = dataset.with_format("arrow")
    pairs = plain.map(function, batched=True, features=features, **options)
    if len(pairs) and pairs.data.column("augmented_history").null_count == len(pairs):
        # Training would be plain ERM, and every figure of the pairs empty.
        found = sorted({entry["slot"] for names in dataset.with_format(None)["names"] for entry in names})
        raise DataError(f"slots: no row has a partner; renamed are {list(augmenter.slots)}, the names are in {found}")
    # columns=None means all columns, also those that are added later.
    has_all = set(shape["columns"]) == set(dataset.column_names)
    columns = None if has_all else list(dict.fromkeys([*shape["columns"], *AUGMENTED]))
    return pairs.with_format(shape["type"], columns, shape["output_all_columns"], **shape["format_kwargs"])
