"""Reader of MultiWOZ 2.1 to 2.4 as published, from a folder, an archive or a file, and of three copies of it.

MultiWOZ 2.1, 2.3 and 2.4 have dialogues by id, states in the `metadata` of system turns, and often tokenized text.
MultiWOZ 2.2 has the format of Schema-Guided Dialogue (`readers.sgd`), to which the copies are brought.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from datasets import Dataset

from dair_hf.dialog.linking.mentions import Annotation
from dair_hf.dialog.readers.dialogues import NOT_SET, ParsedDialogue, ReadReport, build_rows, split_unset
from dair_hf.dialog.readers.files import SPLITS, files_of_split, split_of
from dair_hf.dialog.readers.sgd import DIALOGUE, DIALOGUE_FILE, Schema, parse_schema_guided, read_schema
from dair_hf.dialog.readers.shapes import check_json
from dair_hf.dialog.rows import PLACE_SLOTS, SYSTEM, USER, State, Utterance
from dair_hf.errors import DataError
from dair_hf.io.archives import Source
from dair_hf.io.records import paused_gc
from dair_hf.metrics.state.conventions import MULTIWOZ_BUS_SLOTS, MULTIWOZ_SLOTS, NAME_SLOTS
from dair_hf.metrics.state.normalizers import DONTCARE

_UNLISTED_SLOTS = ("bus-arriveby", "bus-bookpeople", "police-name", "train-bookticket")
TRACKED_SLOTS = frozenset({*MULTIWOZ_SLOTS, *MULTIWOZ_BUS_SLOTS, *_UNLISTED_SLOTS})
_SLOTS: Schema = dict.fromkeys(TRACKED_SLOTS, frozenset())
NAME_LIKE_SLOTS = frozenset({*NAME_SLOTS, *PLACE_SLOTS, "bus-departure", "bus-destination"})
_LISTS = re.compile(r"(val|test)ListFile(\.txt|\.json)?")
_NOT_DIALOGUES = re.compile(r"(.*_db|schema|checksums|dialog_acts|ontology)\.json(\.zip)?|.*ListFile.*|\..*")

# Shape of a dialogue of 2.1: the values of a domain, and what was booked there.
_VALUES = {"booked?": object, "*": (str, [str])}
_BOOKABLE = {"semi": _VALUES, "book": {**_VALUES, "booked?": [{"name?": str}]}}
_METADATA = {"hotel?": _BOOKABLE, "restaurant?": _BOOKABLE, "*": {"semi": _VALUES, "book": _VALUES}}
_DIALOGUE_21 = {"log": [{"text": str, "metadata": _METADATA, "span_info?": list}]}

# Shapes of a dialogue in TRADE's lists and in the unified format of ConvLab-3.
_DIALOGUE_TRADE = {
    "dialogue_idx": str,
    "dialogue": [{"system_transcript": str, "transcript": str, "belief_state": [{"slots": [[str]]}]}],
}
_SPAN = {"domain": str, "slot": str, "value": str, "start?": int, "end?": int}
_DIALOGUE_UNIFIED = {
    "dialogue_id": str,
    "data_split": frozenset(SPLITS),
    "turns": [
        {"speaker": str, "utterance": str, "state?": {"*": {"*": str}}, "dialogue_acts": {"non-categorical": [_SPAN]}}
    ],
}
UNIFIED_FILE = "dialogues.json"

_DONTCARE = re.compile(r"(?:i )?(?:do|does) ?n['o]?t ?care")
_SPAN_SLOTS = {
    **{(domain, "Name"): f"{domain.lower()}-name" for domain in ("Hotel", "Restaurant", "Attraction")},
    **{(domain, "Dest"): f"{domain.lower()}-destination" for domain in ("Taxi", "Train")},
    **{(domain, "Depart"): f"{domain.lower()}-departure" for domain in ("Taxi", "Train")},
    ("Booking", "Name"): "",
}
_CLITICS = frozenset({"'s", "'m", "'d", "'re", "'ll", "'ve", "n't", "'t"})
_CLOSING = re.compile(r"[.,!?;:)]+")


@paused_gc()
def read_multiwoz(path: str | os.PathLike[str] | Dataset, split: str | None = None) -> tuple[Dataset, ReadReport]:
    """Read MultiWOZ 2.1 to 2.4 into rows, one per user turn.

    Folders and zip or tar archives may contain:

    - 2.2: `SPLIT/dialogues_NNN.json` and `schema.json`;
    - the original 2.1, 2.3 or 2.4: `data.json`, `valListFile` and `testListFile` (2.3 has the lists of 2.1);
    - 2.1 by split: `val.json`, `multiwoz_test.json`, or an archive of each (`val.json.zip`);
    - TRADE's lists: `train_dials.json`, `dev_dials.json`, `test_dials.json`;
    - ConvLab-3's unified format: `dialogues.json`.

    Any of these files is also read on its own.

    Args:
        path: The folder, archive or file, or a split of `multi_woz_v22` as `datasets` loads it.
        split: "train", "dev" (or "val", "validation") or "test", by the lists or the names of files and folders: a
            single file too must show it in its name. None reads all.

    Returns:
        The rows, with `rows.FEATURES`, and counts of what was read, skipped and normalized.

    Raises:
        DataError: There is nothing to read, no name shows the split, a file has another format, a state has an unknown
            slot, or a dialogue id occurs twice. The message names file and position.

    Example:
        >>> rows, report = read_multiwoz("multiwoz21", split="test")  # doctest: +SKIP
        >>> report.turns  # doctest: +SKIP
        7372
    """
    report = ReadReport()
    if isinstance(path, Dataset):
        if split is not None:
            raise DataError(f"split={split!r}: expected None with a Dataset, which is one split already")
        rows = (_parse_list(f"row [{index}]", row, report) for index, row in enumerate(path))
        return build_rows(filter(None, rows), report, "rows of multi_woz_v22", venues=True), report
    source = Source(path)
    schema = _find_schema(source, report)
    parsed = (
        _parse_21(label, key, dialogue, report)
        if isinstance(key, str)
        else _parse_list(label, dialogue, report, schema)
        for label, key, dialogue in _dialogues(source, split)
    )
    where = f"{source.path}: split {split or 'all'!r}"
    return build_rows(filter(None, parsed), report, where, venues=True), report


def splits_in(source: Source) -> list[str]:
    """Return the splits of a source in any layout of `read_multiwoz`, in the order train, dev, test."""
    if any(_LISTS.fullmatch(name) or name == UNIFIED_FILE for name in (PurePosixPath(n).name for n in source.names)):
        return ["train", "dev", "test"]
    splits = {split_of(source, name) for name in _single_files(source)}
    return [split for split in ("train", "dev", "test") if split in splits]


def _single_files(source: Source, *suffixes: str) -> list[str]:
    """Return the files that may hold all dialogues of a split."""
    return [
        name
        for name in source.names
        if name.endswith(suffixes or (".json", ".json.zip"))
        and "__MACOSX" not in name
        and not _NOT_DIALOGUES.fullmatch(PurePosixPath(name).name)
    ]


def _find_schema(source: Source, report: ReadReport) -> Schema:
    """Return the schema in the source or in a folder above it, else the built-in slots."""
    inside = sorted((name for name in source.names if PurePosixPath(name).name == "schema.json"), key=len)
    if inside:
        return read_schema(source, inside[0])[0]
    for folder in (source.path.parent, source.path.parent.parent):
        if (folder / "schema.json").is_file():
            return read_schema(Source(folder / "schema.json"), "schema.json")[0]
    if _files_of_22(source):
        report.normalize("no schema.json: slots checked against the built-in list", str(source.path))
    return _SLOTS


def _files_of_22(source: Source) -> list[str]:
    return [name for name in source.names if DIALOGUE_FILE.fullmatch(PurePosixPath(name).name)]


def _dialogues(source: Source, split: str | None) -> Iterator[tuple[str, str | int, Any]]:
    """Yield file, key (the position in a list) and content of each dialogue."""
    names = _files_of_22(source) or _single_files(source)
    names = [name for name in names if PurePosixPath(name).name == "data.json"] or names
    lists = _lists(source, names[0]) if len(names) == 1 else {}
    wanted = SPLITS.get(split or "", split)
    is_unified = {PurePosixPath(name).name for name in names} == {UNIFIED_FILE}
    is_listed = is_unified or (wanted is not None and {"dev", "test"} <= set(lists.values()))
    for name in names if is_listed else files_of_split(source, names, split):
        inner = Source(source.path / name) if name.endswith(".zip") else source
        for file in [name] if inner is source else _single_files(inner, ".json"):
            label, dialogues = inner.label(file), inner.json(file)
            if isinstance(dialogues, list):
                for key, dialogue in enumerate(dialogues):
                    check_json(dialogue, _DIALOGUE_UNIFIED if is_unified else {}, f"{label}: dialogue [{key}]")
                    if not is_unified or wanted in (None, SPLITS[dialogue["data_split"]]):
                        yield f"{label}: dialogue [{key}]", key, dialogue
                continue
            check_json(dialogues, {}, label)
            for key, dialogue in dialogues.items():
                if not is_listed or lists.get(key.removesuffix(".json"), "train") == wanted:
                    yield label, key, dialogue


def _lists(source: Source, data: str) -> dict[str, str]:
    """Return dialogue id -> split for the dialogues in the list files."""
    split_of: dict[str, str] = {}
    for name in source.names:
        match = _LISTS.fullmatch(PurePosixPath(name).name)
        if match and PurePosixPath(name).parent == PurePosixPath(data).parent:
            ids = re.findall(r'[^\s",[\]]+', source.read(name).decode("utf-8-sig", "replace"))
            split_of.update((item.removesuffix(".json"), SPLITS[match[1]]) for item in ids)
    return split_of


def _parse_list(where: str, dialogue: Any, report: ReadReport, schema: Schema = _SLOTS) -> ParsedDialogue | None:
    """Parse one dialogue of a list, in any of the formats."""
    if "dialogue_idx" in dialogue:
        check_json(dialogue, _DIALOGUE_TRADE, where)
        dialogue = {"dialogue_id": dialogue["dialogue_idx"], "turns": list(_turns_of_trade(dialogue["dialogue"]))}
    elif "data_split" in dialogue:
        name = dialogue.get("original_id", dialogue["dialogue_id"])
        dialogue = {"dialogue_id": name, "turns": list(map(_turn_of_unified, dialogue["turns"]))}
    elif isinstance(dialogue.get("turns"), Mapping):
        turns = list(map(_turn_of_hub, _records(dialogue["turns"])))
        dialogue = {"dialogue_id": dialogue["dialogue_id"], "turns": turns}
    check_json(dialogue, DIALOGUE, where)
    return parse_schema_guided(dialogue, schema, NAME_LIKE_SLOTS, report, where)


def _turns_of_trade(turns: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        if turn["system_transcript"]:
            yield _turn(SYSTEM, _detokenize(turn["system_transcript"].split())[0])
        state = {slot: value for act in turn["belief_state"] for slot, value in act["slots"]}
        yield _turn(USER, _detokenize(turn["transcript"].split())[0], state)


def _turn_of_unified(turn: Mapping[str, Any]) -> dict[str, Any]:
    state = {
        f"{domain}-{name}": value for domain, slots in turn.get("state", {}).items() for name, value in slots.items()
    }
    spans = [
        {"slot": f"{act['domain']}-{act['slot']}", "start": act["start"], "exclusive_end": act["end"]}
        for act in turn["dialogue_acts"]["non-categorical"]
        if "end" in act
    ]
    return _turn(turn["speaker"], turn["utterance"], state if "state" in turn else None, spans)


def _turn(
    speaker: str, text: str, state: Mapping[str, str] | None = None, spans: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return a turn as 2.2 has it; its frames have the state of every domain."""
    values: dict[str, dict[str, list[str]]] = {slot.partition("-")[0]: {} for slot in TRACKED_SLOTS}
    for slot, value in ({} if state is None else state).items():
        slot = slot.replace(" ", "").lower()
        values.setdefault(slot.partition("-")[0], {})[slot] = list(_read_value(value)[0])
    frames: list[dict[str, Any]] = [{"service": span["slot"].partition("-")[0], "slots": [span]} for span in spans]
    if state is not None:
        frames += [{"service": domain, "state": {"slot_values": slots}} for domain, slots in values.items()]
    return {"speaker": speaker, "utterance": text, "frames": frames}


def _turn_of_hub(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn of `multi_woz_v22`, which swaps start and end of spans and has -1 for a span without place."""
    frames = []
    for frame in _records(turn["frames"]):
        state, spans = frame["state"]["slots_values"], _records(frame["slots"])
        values = dict(zip(state["slots_values_name"], state["slots_values_list"], strict=True))
        places = [(span["slot"], *sorted((span["start"], span["exclusive_end"]))) for span in spans]
        slots = [{"slot": slot, "start": start, "exclusive_end": end} for slot, start, end in places if start >= 0]
        frames.append({"service": frame["service"], "state": {"slot_values": values}, "slots": slots})
    return {"speaker": (USER, SYSTEM)[turn["speaker"]], "utterance": turn["utterance"], "frames": frames}


def _records(columns: Any) -> list[dict[str, Any]]:
    """Return the records of a column that `datasets` has as a struct of lists."""
    if isinstance(columns, list):
        return columns
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _parse_21(label: str, name: str, dialogue: Any, report: ReadReport) -> ParsedDialogue | None:
    """Parse one dialogue of 2.1.

    The state after user turn `2 i` is in the metadata of system turn `2 i + 1`. A user turn without an answer has no
    state and gives no row.
    """
    dialogue_id = name.removesuffix(".json")
    where = f"{label}: dialogue {dialogue_id!r}"
    check_json(dialogue, _DIALOGUE_21, where)
    log = dialogue["log"]
    utterances: list[Utterance] = []
    states: dict[int, State] = {}
    annotations: list[Annotation] = []
    booked: list[tuple[str, str]] = []
    oddities: Counter[str] = Counter()
    for index, turn in enumerate(log):
        position, metadata = f"{where}, log[{index}]", turn["metadata"]
        text, tokens = _detokenize(turn["text"].split())
        if not text:
            report.normalize("utterance without text", f"{dialogue_id}, log[{index}]")
        utterances.append(Utterance(SYSTEM if index % 2 else USER, text))
        annotations.extend(_annotations(turn.get("span_info", ()), index, tokens, report, position))
        if index % 2:
            states[index - 1] = _state_of(metadata, position, oddities)
            booked += [
                (f"{domain}-name", _detokenize(booking["name"].split())[0].lower())
                for domain in ("hotel", "restaurant")
                for booking in (metadata[domain]["book"].get("booked", ()) if domain in metadata else ())
                if "name" in booking
            ]
    if len(log) % 2:
        report.skip("last user turn without an answer, so without a state", dialogue_id)
    if not states:
        report.skip("dialogue without a state", dialogue_id)
        return None
    for oddity, count in oddities.items():
        report.normalize(oddity, dialogue_id, count)
    return ParsedDialogue(dialogue_id, where, utterances, states, NAME_LIKE_SLOTS, annotations, booked)


def _state_of(metadata: Mapping[str, Any], where: str, oddities: Counter[str]) -> State:
    state: State = {}
    for domain, parts in metadata.items():
        for part, prefix in (("semi", ""), ("book", "book")):
            for name, value in parts[part].items():
                if value == "" or name == "booked":
                    continue
                slot, raw = f"{domain}-{prefix}{name}".lower(), value if isinstance(value, str) else "|".join(value)
                if slot not in TRACKED_SLOTS and raw not in NOT_SET:
                    place = f"{where}.metadata.{domain}.{part}.{name}"
                    raise DataError(f"{place}: unknown slot {slot!r} (value {raw!r}); expected {sorted(TRACKED_SLOTS)}")
                values, odd = _read_value(raw)
                oddities.update(odd)
                if values:
                    state[slot] = list(values)
    return state


def _annotations(
    entries: Sequence[Any], index: int, tokens: Sequence[tuple[int, int]], report: ReadReport, where: str
) -> Iterator[Annotation]:
    for entry in entries:
        if not isinstance(entry, list) or tuple(map(type, entry)) != (str, str, str, int, int):
            report.skip("span without its five fields", where)
            continue
        act, name, value, first, last = entry
        slot = _SPAN_SLOTS.get((act.partition("-")[0], name))
        if not 0 <= first <= last < len(tokens):
            if slot is not None:
                report.skip("span outside the text", f"{where}: {first}:{last}")
            continue
        value = _detokenize(value.split())[0].lower()
        if not _DONTCARE.fullmatch(value):
            yield Annotation(slot, value, index, tokens[first][0], tokens[last][1])


@lru_cache(maxsize=100_000)
def _read_value(raw: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the alternatives of a value and what is odd about it.

    `a|b` are alternatives; in `a>b` the first is preferred, in `a<b` the second. Values are lower-cased and
    detokenized, every spelling of "do not care" becomes "dontcare", "not mentioned" and "none" give no alternative.
    """
    oddities = []
    plain = _detokenize(raw.split())[0]
    value = plain.lower()
    if value != raw.strip().lower():
        oddities.append("tokenized value")
    if value != plain:
        oddities.append("value with capitals")
    parts = re.split(r"(?<=\S)[|<>](?=\S)", value)
    if len(parts) > 1:
        oddities.append("alternatives in one value")
        if "<" in value:
            parts.reverse()
    parts = [part.strip() for part in parts]
    if any(part != DONTCARE and _DONTCARE.fullmatch(part) for part in parts):
        oddities.append("'do not care' in another spelling")
    values, notes = split_unset(DONTCARE if _DONTCARE.fullmatch(part) else part for part in parts)
    return tuple(values), (*oddities, *notes)


def _detokenize(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join tokenized text; return it with the span of each token.

    Clitics ("did n't", "john 's", "queens '"), closing punctuation and brackets join their neighbor. Text that was
    never tokenized is unchanged, apart from runs of white space, which become one space.
    """
    text, spans, previous = "", [], ""
    for token in tokens:
        if previous not in ("", "(") and not _joins(previous, token):
            text += " "
        spans.append((len(text), len(text) + len(token)))
        text += token
        previous = token
    return text, spans


@lru_cache(maxsize=100_000)
def _joins(previous: str, token: str) -> bool:
    if token.lower() in _CLITICS:
        return previous[-1].isalnum()
    if token == "'":
        return previous[-1] in "sS"
    return _CLOSING.fullmatch(token) is not None
