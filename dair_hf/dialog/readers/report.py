"""What every reader needs: a report of what it found, and quiet from the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dair_hf.errors import DataError

EXAMPLES_KEPT = 5


@dataclass
class ReadReport:
    """What a reader found; the counts of several sources add up with `+`.

    Attributes:
        dialogues: Dialogues read.
        turns: User turns read, one row each.
        states: Turns whose state is not empty.
        names: Entries of `names`, summed over the dialogues.
        names_in_text: Those of them mentioned at least once in the text.
        mentions: Mentions in the text.
        skipped: What was left out: reason -> count.
        normalised: What was read in another form than it stood there: oddity -> count.
        examples: Reason or oddity -> the first ids it was met at.
    """

    dialogues: int = 0
    turns: int = 0
    states: int = 0
    names: int = 0
    names_in_text: int = 0
    mentions: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    normalised: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, where: str, count: int = 1) -> None:
        """Count something that was left out, at `where`."""
        self.skipped[reason] = self.skipped.get(reason, 0) + count
        self._example(reason, where)

    def normalise(self, oddity: str, where: str, count: int = 1) -> None:
        """Count something that was read in another form than it stood there, at `where`."""
        self.normalised[oddity] = self.normalised.get(oddity, 0) + count
        self._example(oddity, where)

    def _example(self, key: str, where: str) -> None:
        kept = self.examples.setdefault(key, [])
        if len(kept) < EXAMPLES_KEPT and where not in kept:
            kept.append(where)

    def __add__(self, other: ReadReport) -> ReadReport:
        def added(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
            return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}

        return ReadReport(
            dialogues=self.dialogues + other.dialogues,
            turns=self.turns + other.turns,
            states=self.states + other.states,
            names=self.names + other.names,
            names_in_text=self.names_in_text + other.names_in_text,
            mentions=self.mentions + other.mentions,
            skipped=added(self.skipped, other.skipped),
            normalised=added(self.normalised, other.normalised),
            examples={
                key: list(dict.fromkeys([*self.examples.get(key, []), *other.examples.get(key, [])]))[:EXAMPLES_KEPT]
                for key in {**self.examples, **other.examples}
            },
        )


def summary_table(reports: Mapping[str, ReadReport]) -> str:
    """Reports side by side as plain text, then what was skipped and normalised, each with an example.

    Args:
        reports: Heading of the column, for instance the split -> report.

    Example:
        >>> print(summary_table({"dev": ReadReport(dialogues=2, turns=9)}))
                           dev
        dialogues            2
        user turns           9
        states not empty     0
        names                0
        names in the text    0
        mentions             0
    """
    total = sum(reports.values(), ReadReport())
    lines = [
        ("dialogues", [report.dialogues for report in reports.values()], ""),
        ("user turns", [report.turns for report in reports.values()], ""),
        ("states not empty", [report.states for report in reports.values()], ""),
        ("names", [report.names for report in reports.values()], ""),
        ("names in the text", [report.names_in_text for report in reports.values()], ""),
        ("mentions", [report.mentions for report in reports.values()], ""),
    ]
    for title, found in (("skipped", total.skipped), ("normalised", total.normalised)):
        for reason in sorted(found):
            counts = [getattr(report, title).get(reason, 0) for report in reports.values()]
            lines.append((f"{title}: {reason}", counts, f"  e.g. {total.examples[reason][0]}"))
    width = max(len(label) for label, _, _ in lines)
    columns = [max(len(name), *(len(str(counts[i])) for _, counts, _ in lines)) for i, name in enumerate(reports)]
    header = " " * width + "".join(f"  {name:>{size}}" for name, size in zip(reports, columns, strict=True))
    body = [
        f"{label:<{width}}" + "".join(f"  {n:>{size}}" for n, size in zip(counts, columns, strict=True)) + example
        for label, counts, example in lines
    ]
    return "\n".join([header, *body])


def member(value: Any, key: str, kind: type[Any], where: str, source: str) -> Any:
    """Return a member of a parsed JSON object that must be there.

    Args:
        value: The object.
        key: Its key.
        kind: `str`, `int`, `list` or `dict`.
        where: File and position, for the message.
        source: The data set, for the message.

    Raises:
        DataError: `value` is no object, has no such key, or something of another kind stands there.

    Example:
        >>> member({"log": None}, "log", list, "data.json: dialogue 'A'", "MultiWOZ 2.1")
        Traceback (most recent call last):
        ...
        dair_hf.errors.DataError: data.json: dialogue 'A': 'log' is NoneType, expected list (found None)
    """
    if not isinstance(value, dict) or key not in value:
        raise DataError(f"{where}: {key!r} is missing (found {value!r:.60}); is this a file of {source}?")
    found = value[key]
    if type(found) is kind and (kind is not str or found.isascii()):
        return found  # almost every call ends here
    if not isinstance(found, kind) or isinstance(found, bool):
        raise DataError(f"{where}: {key!r} is {type(found).__name__}, expected {kind.__name__} (found {found!r:.60})")
    if kind is str:
        check_text(str(found), f"{where}: {key!r}")
    return found


def optional_list(value: Mapping[str, Any], key: str, where: str, source: str) -> list[Any]:
    """Return a member as `member` does, an empty list where the key is absent."""
    return member(value, key, list, where, source) if key in value else []


def objects(value: Mapping[str, Any], key: str, where: str, source: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object of a list that may be absent, and its position.

    Raises:
        DataError: It is no list, or something in it no object.
    """
    for index, item in enumerate(optional_list(value, key, where, source)):
        position = f"{where}, {key}[{index}]"
        if not isinstance(item, dict):
            raise DataError(f"{position}: expected an object, found {item!r:.60}")
        yield item, position


def strings(value: Any, where: str) -> list[str]:
    """Return a parsed JSON value that must be a list of strings.

    Raises:
        DataError: It is something else.
    """
    for item in value if isinstance(value, list) else (None,):
        if not isinstance(item, str):
            raise DataError(f"{where}: expected a list of strings, found {value!r:.60}")
        check_text(item, where)
    return value


def check_text(text: str, where: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell and UTF-8 cannot hold.

    Raises:
        DataError: The text holds one.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: character {error.start} of {text!r:.60} is half of a surrogate pair; repair the file"
            ) from error


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking the parsed files, which hold no cycles, again and again.

    It takes half of the time that reading takes otherwise. Also a decorator.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
