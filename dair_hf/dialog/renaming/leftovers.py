"""Independent search for what a renaming missed.

It reads both views as plain words and takes nothing from the reader or the augmenter: neither mentions nor the names
and forms of a row. Names are the values of the states, and whatever a word-by-word comparison of the views shows as
replaced. A word identifies a name if dialogues that are not about this name hardly use it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

Words = tuple[str, ...]
History = Sequence[Mapping[str, str]]
State = Mapping[str, Sequence[str]]

_TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
# Words that make sentences or say what kind of place it is: no evidence, however rare they are in a small data set.
_PLAIN = frozenset(
    "a about all also am an and any are art arts as at b be bed book breakfast but by can center centre city do "
    "down for from go great have he hi how i if in is it just like me my near need no not of off okay on one or "
    "our out over please she so some sure thank that the their there they this to town two up us was we what when "
    "where which who will with would yes you your east north south west airport area avenue bar bistro bnb boat "
    "bridge building cafe church cinema club college court food garden gallery grand guest guesthouse hall hill "
    "home hostel hotel house inn island kitchen lane library lodge lounge market museum new night nightclub old "
    "palace park place pool pub restaurant river road room saint square st station street suite theatre theater "
    "tower university".split()
)
_KINDS = frozenset(
    "attraction cafe church cinema club college concert gallery guest guesthouse hall hotel house museum night "
    "nightclub park pool restaurant swimming theatre theater".split()
)
_ALIKE = frozenset(
    "a and b bar bed bistro breakfast cafe gallery guest guesthouse hotel house inn lodge museum of restaurant "
    "the".split()
)
_STOPS = frozenset(".,;:?!")
_INDEFINITE = frozenset("a an any another some".split())
_DETERMINERS = _INDEFINITE | frozenset("no that the this what which your".split())
_BEFORE_NAMES = frozenset("at called from named near the to try visit".split())
_STREETS = frozenset(
    "avenue causeway close common court drive hill lane parade place ring road square st street terrace way".split()
)
_NO_NAME = frozenset(("", "none", "not mentioned", "dontcare", "do n't care", "don't care"))


class Missed(NamedTuple):
    """One place that a renaming missed: the row that shows it first, and what stands there."""

    dialogue_id: str
    row_id: str
    what: str


class _Replacement(NamedTuple):
    old: Words
    new: Words
    before: str
    row_id: str


class _View(NamedTuple):
    """An utterance of an augmented view: its tokens, what they are compared by, and which stand in the original too."""

    row_id: str
    tokens: list[str]
    keys: list[str]
    stays: list[bool]

    def run(self, place: int, words: set[str]) -> tuple[int, int]:
        """The tokens around one that are words of the same name."""
        start, end = place, place + 1
        while start > 0 and self.stays[start - 1] and self.keys[start - 1] in words:
            start -= 1
        while end < len(self.keys) and self.stays[end] and self.keys[end] in words:
            end += 1
        return start, end

    def is_name(self, start: int, end: int) -> bool:
        """Whether what stands around a run lets it be a name: no address, no "a", and for one word a sign of a name."""
        before = self.keys[start - 1] if start else ""
        after = self.keys[end] if end < len(self.keys) else ""
        if before in _INDEFINITE or _STREETS & {*self.keys[max(0, start - 2) : start], self.keys[end - 1], after}:
            return False
        words = [key for key in self.keys[start:end] if key not in _BEFORE_NAMES]
        if len(words) > 1:
            return True
        capital = self.tokens[end - 1][0].isupper()
        neighbours = [self.tokens[place] for place in (start - 1, end) if 0 <= place < len(self.tokens)]
        if capital and any(token[0].isupper() and token[1:].islower() for token in neighbours):
            return False
        return before in _BEFORE_NAMES or (capital and before[-1:].isalnum())


@dataclass
class _Dialogue:
    """The plain words of one dialogue."""

    words: set[str] = field(default_factory=set)
    values: dict[Words, None] = field(default_factory=dict)
    replaced: dict[tuple[Words, Words], _Replacement] = field(default_factory=dict)
    views: list[_View] = field(default_factory=list)
    kept_values: dict[tuple[str, str], str] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    has_partner: bool = False


class LeftoverSearch:
    """Collects pairs, then says what the renaming missed in each dialogue.

    Example:
        >>> search = LeftoverSearch()
        >>> texts = ["Fenwick Inn is fine. Is the Fenwick far?", "Oak is fine. Is the Fenwick far?"]
        >>> views = [[{"speaker": "user", "text": text}] for text in texts]
        >>> search.add("d", "d/0", views[0], {"hotel-name": ["fenwick inn"]}, views[1], {"hotel-name": ["oak"]})
        >>> [missed.what for missed in search.leftovers()]
        ["'Fenwick' of 'fenwick inn' in 'Oak is fine . Is the Fenwick far ?'"]
    """

    def __init__(self) -> None:
        self._dialogues: dict[str, _Dialogue] = {}
        self._outside: Counter[str] | None = None

    def add(
        self,
        dialogue_id: str,
        row_id: str,
        history: History,
        state: State,
        augmented_history: History | None,
        augmented_state: State | None,
    ) -> None:
        """Take one row; without a partner it only counts for how ordinary its words are."""
        self._outside = None
        dialogue = self._dialogues.setdefault(dialogue_id, _Dialogue())
        for turn in history:
            if turn["text"] not in dialogue.texts:
                dialogue.texts.add(turn["text"])
                dialogue.words.update(map(_key, _TOKEN.findall(turn["text"])))
        for slot, values in state.items():
            if _holds_names(slot) and not _is_journey(slot):
                for value in values:
                    if value.lower() not in _NO_NAME:
                        dialogue.values[_keys(value)] = None
        if augmented_history is None or augmented_state is None:
            return
        dialogue.has_partner = True
        for turn, other in zip(history, augmented_history, strict=True):
            pair = turn["text"], other["text"]
            if pair not in dialogue.pairs:
                dialogue.pairs.add(pair)
                self._compare(dialogue, row_id, *pair)
        for slot, values in state.items():
            now = augmented_state.get(slot, ())
            for index, old in enumerate(values):
                if old in now:
                    if _holds_names(slot) and not _is_journey(slot) and old.lower() not in _NO_NAME:
                        dialogue.kept_values.setdefault((slot, old), row_id)
                elif now:
                    # Alternatives that meant the same entity became one.
                    key = _keys(old), _keys(now[min(index, len(now) - 1)])
                    dialogue.replaced.setdefault(key, _Replacement(*key, "", row_id))

    @property
    def renamed(self) -> int:
        """Dialogues with a partner."""
        return sum(dialogue.has_partner for dialogue in self._dialogues.values())

    def leftovers(self) -> list[Missed]:
        """The first old name, or part of one that identifies it, in each augmented dialogue that still holds one."""
        found = []
        for name, dialogue in self._dialogues.items():
            if dialogue.has_partner and (missed := next(self._left_in(name, dialogue), None)):
                found.append(missed)
        return found

    def kept_in_state(self) -> list[Missed]:
        """The first value of a state in each dialogue that kept the name, or a part of it, of a renamed entity."""
        found = []
        for name, dialogue in self._dialogues.items():
            olds = {replaced.old for replaced in dialogue.replaced.values()}
            for (slot, value), row_id in dialogue.kept_values.items():
                words = {word for word in _keys(value) if word != "not"}
                if any(map(self._identifies, words)) and any(words <= {*old} for old in olds):
                    found.append(Missed(name, row_id, f"{slot} = {value!r}"))
                    break
        return found

    def two_new_names(self) -> list[Missed]:
        """The first entity in each dialogue that got two new names."""
        found = []
        for name, dialogue in self._dialogues.items():
            replaced = list(dialogue.replaced.values())
            for index, one in enumerate(replaced):
                other = next((other for other in replaced[index + 1 :] if self._are_one(one, other, replaced)), None)
                if other is not None:
                    shown = [" ".join(words) for words in (one.old, one.new, other.old, other.new)]
                    found.append(Missed(name, other.row_id, "{!r} -> {!r}, {!r} -> {!r}".format(*shown)))
                    break
        return found

    def without_a_name(self) -> list[Missed]:
        """The first renamed words in each dialogue that name nothing ("a college")."""
        found = []
        for name, dialogue in self._dialogues.items():
            for one in dialogue.replaced.values():
                ordinary = one.before in _INDEFINITE and len(one.old) == 1 and not self._identifies(one.old[0])
                if len(one.old[0]) < 3:
                    continue
                if ordinary or (one.before in _DETERMINERS and _KINDS.issuperset(one.old)):
                    shown = " ".join((one.before, *one.old)).strip()
                    found.append(Missed(name, one.row_id, f"{shown!r} -> {' '.join(one.new)!r}"))
                    break
        return found

    @staticmethod
    def _compare(dialogue: _Dialogue, row_id: str, text: str, augmented: str) -> None:
        tokens = _TOKEN.findall(augmented)
        keys = [_key(token) for token in tokens]
        if text == augmented:
            dialogue.views.append(_View(row_id, tokens, keys, [True] * len(tokens)))
            return
        stays = [False] * len(tokens)
        before = _TOKEN.findall(text)
        for same, (start, end), (first, last) in _blocks(before, tokens):
            if same:
                stays[first:last] = [True] * (last - first)
                continue
            old, new = (
                tuple(_key(t) for t in part if t[0].isalnum()) for part in (before[start:end], tokens[first:last])
            )
            if old and new:
                preceding = _key(before[start - 1]) if start else ""
                dialogue.replaced.setdefault((old, new), _Replacement(old, new, preceding, row_id))
        dialogue.views.append(_View(row_id, tokens, keys, stays))

    def _counts(self) -> Counter[str]:
        """Word -> dialogues that use it without having it in a name."""
        if self._outside is None:
            self._outside = Counter()
            for dialogue in self._dialogues.values():
                names = {word for words in (*dialogue.values, *(old for old, _ in dialogue.replaced)) for word in words}
                self._outside.update(dialogue.words - names)
        return self._outside

    def _identifies(self, word: str) -> bool:
        if len(word) < 3 or not word.isalpha() or word in _PLAIN:
            return False
        return self._counts()[word] <= max(1, len(self._dialogues) / 250)

    def _are_one(self, one: _Replacement, other: _Replacement, replaced: Sequence[_Replacement]) -> bool:
        left, right = {*one.old} - {"the"}, {*other.old} - {"the"}
        news = {*one.new}, {*other.new}
        if (
            not any(map(self._identifies, left & right))
            or news[0] & news[1] - _PLAIN
            or news[0] <= news[1]
            or news[1] <= news[0]
        ):
            return False
        if {"and"} & {words[end] for words in (one.old, one.new, other.old, other.new) for end in (0, -1)}:
            return False
        if left ^ right <= _ALIKE:
            return True
        short, long = sorted((left, right), key=len)
        return short < long and sum(short <= {*third.old} and long != {*third.old} for third in replaced) <= 1

    def _left_in(self, name: str, dialogue: _Dialogue) -> Iterator[Missed]:
        olds = {old for old, _ in dialogue.replaced}
        of_word = {word: old for old in sorted(olds, key=len) for word in old if self._identifies(word)}
        if not of_word:
            return
        meant = self._meant(dialogue, of_word)
        for view in dialogue.views:
            for place, key in enumerate(view.keys):
                if key in meant and view.stays[place]:
                    old = of_word[meant[key]]
                    start, end = view.run(place, {*old, key})
                    if view.is_name(start, end):
                        shown = " ".join(view.tokens[start:end])
                        around = " ".join(view.tokens[max(0, start - 6) : end + 6])
                        yield Missed(name, view.row_id, f"{shown!r} of {' '.join(old)!r} in {around!r}")

    def _meant(self, dialogue: _Dialogue, of_word: Mapping[str, Words]) -> dict[str, str]:
        """Word of the augmented view -> the identifying word of an old name that it is or misspells."""
        meant = {}
        for word in {word for view in dialogue.views for word in view.keys}:
            if word in of_word:
                meant[word] = word
            elif len(word) > 4 and self._counts()[word] <= 1 and self._identifies(word):
                close = next((other for other in of_word if len(other) > 4 and _similar(word, other)), None)
                if close is not None:
                    meant[word] = close
        return meant


def _similar(word: str, other: str) -> bool:
    if abs(len(word) - len(other)) > 2:
        return False
    matcher = SequenceMatcher(None, word, other, autojunk=False)
    return matcher.quick_ratio() >= 0.85 and matcher.ratio() >= 0.85


@lru_cache(maxsize=100_000)
def _key(word: str) -> str:
    word = word.casefold().replace("’", "'").removesuffix("'s").replace("'", "")
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _keys(text: str) -> Words:
    return tuple(_key(token) for token in _TOKEN.findall(text) if token[0].isalnum())


def _holds_names(slot: str) -> bool:
    return slot.endswith(("name", "departure", "destination"))


def _is_journey(slot: str) -> bool:
    """Whether a slot holds a town: houses have the towns' names in theirs, and sentences are full of them."""
    return slot.startswith(("train", "bus"))


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[bool, tuple[int, int], tuple[int, int]]]:
    """Whether the same, and the bounds in both, of each stretch of tokens; equal ends are taken off first."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    yield True, (0, head), (0, head)
    inner = old[head : len(old) - tail], new[head : len(new) - tail]
    codes = SequenceMatcher(None, *inner, autojunk=False).get_opcodes()
    # One word in common between two replacements ("gallery at twelve" and "market at noon") is no border of names.
    bridges = [
        tag == "equal" and end - start == 1 and 0 < place < len(codes) - 1 and inner[0][start] not in _STOPS
        for place, (tag, start, end, *_) in enumerate(codes)
    ]
    place = 0
    while place < len(codes):
        last = place
        while last + 2 < len(codes) and codes[last][0] != "equal" and bridges[last + 1]:
            last += 2
        yield (
            codes[place][0] == "equal",
            (head + codes[place][1], head + codes[last][2]),
            (head + codes[place][3], head + codes[last][4]),
        )
        place = last + 1
    yield True, (len(old) - tail, len(old)), (len(new) - tail, len(new))
