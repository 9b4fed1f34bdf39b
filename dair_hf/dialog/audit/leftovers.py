"""Search for errors of a renaming, independent of the reader and the augmenter.

Both views are compared word by word, without the mentions and names of the rows. Names are the values of the states and
all words that were replaced. A word identifies a name if hardly any dialogue uses it outside of names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache, partial
from itertools import combinations
from typing import NamedTuple

from dair_hf.dialog.rows import NO_NAME, UNSPOKEN, contains_name, excluded_value, normalize_name

Words = tuple[str, ...]
History = Sequence[Mapping[str, str]]
State = Mapping[str, Sequence[str]]

_TOKEN = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
# Words of sentences and kinds of places. They identify no name even if they are rare in a small data set.
_PLAIN = frozenset(
    "a about all also am an and any are art arts as ask at b be bed book breakfast but by can center centre city do "
    "down for from go great have he hi how i if in is it just like me my near need no not of off okay on one or our "
    "out over please she so some sure thank that the their there they this to town two up us was we what when where "
    "which who will with would yes you your east north south west airport area avenue bar bistro bnb boat bridge "
    "building cafe church cinema club college court food garden gallery gallerie grand guest guesthouse hall hill "
    "home hostel hotel house inn island kitchen lane library lodge lounge market museum new night nightclub old "
    "palace park place pool pub restaurant river road room saint square st station street suite theatre theater "
    "tower university".split()
)
_KINDS = frozenset(
    "attraction cafe church cinema club college concert gallery guest guesthouse hall hotel house museum night "
    "nightclub park pool restaurant school swimming theatre theater".split()
)
_ALIKE = frozenset(
    "a and b bar bed bistro breakfast cafe gallery guest guesthouse hotel house inn lodge museum of restaurant "
    "the".split()
)
_ARTICLES = {"an": "a", "An": "A", "AN": "A"}
_STOPS = frozenset(".,;:?!")
_INDEFINITE = frozenset("a an any another some".split())
_DETERMINERS = _INDEFINITE | frozenset("no that the this what which your".split())
_BEFORE_NAMES = frozenset("at called from named near the to try visit".split())
_STREETS = frozenset(
    "avenue causeway close common court drive hill lane parade place ring road square st street terrace way".split()
)


class _Replacement(NamedTuple):
    """Words of the original text, their replacement, the word before them, and the first row that shows it."""

    old: Words
    new: Words
    before: str
    row_id: str


class _View(NamedTuple):
    """Tokens of an augmented utterance, their compared form, and whether the original has them too."""

    row_id: str
    tokens: list[str]
    keys: list[str]
    unchanged: list[bool]

    def run(self, position: int, words: set[str]) -> tuple[int, int]:
        """Return the span of unchanged tokens around `position` that are among `words`."""
        start, end = position, position + 1
        while start > 0 and self.unchanged[start - 1] and self.keys[start - 1] in words:
            start -= 1
        while end < len(self.keys) and self.unchanged[end] and self.keys[end] in words:
            end += 1
        return start, end

    def is_name(self, start: int, end: int) -> bool:
        """Return whether the context of a span allows a name: no address, no "a", and evidence if it is one word."""
        before = self.keys[start - 1] if start else ""
        after = self.keys[end] if end < len(self.keys) else ""
        if before in _INDEFINITE or _STREETS & {*self.keys[max(0, start - 2) : start], self.keys[end - 1], after}:
            return False
        if sum(key not in _BEFORE_NAMES for key in self.keys[start:end]) > 1:
            return True
        is_capitalized = self.tokens[end - 1][0].isupper()
        neighbors = [self.tokens[index] for index in (start - 1, end) if 0 <= index < len(self.tokens)]
        if is_capitalized and any(token[0].isupper() and token[1:].islower() for token in neighbors):
            return False
        return before in _BEFORE_NAMES or (is_capitalized and before[-1:].isalnum())


@dataclass
class _Dialogue:
    """Words and replacements of one dialogue."""

    words: set[str] = field(default_factory=set)
    values: dict[Words, None] = field(default_factory=dict)
    replaced: dict[tuple[Words, Words], _Replacement] = field(default_factory=dict)
    views: list[_View] = field(default_factory=list)
    # Slot and value that the states of both views have -> first row.
    unchanged_values: dict[tuple[str, str], str] = field(default_factory=dict)
    types: set[Words] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    # Check of single rows -> first row that fails it.
    faults: dict[str, str] = field(default_factory=dict)
    has_partner: bool = False


class LeftoverSearch:
    """Search for errors of a renaming; `names` are known by slot, `trained` those of the training data, if given."""

    def __init__(self, names: Mapping[str, Iterable[str]] | None = None, trained: Iterable[str] | None = None) -> None:
        self._dialogues: dict[str, _Dialogue] = {}
        # Slot -> known names, and the slots whose values were renamed.
        self._known = {slot: set(map(_name_keys, values)) for slot, values in (names or {}).items()}
        self._trained = None if trained is None else set(map(normalize_name, trained))
        self._renamed_slots: set[str] = set()
        self._towns: set[Words] = set()
        self._outside: Counter[str] | None = None

    def add(
        self,
        dialogue_id: str,
        row_id: str,
        history: History,
        state: State,
        augmented_history: History | None,
        augmented_state: State | None,
        types: Collection[str] = (),
    ) -> None:
        """Add a row; rows without partner show which words are ordinary. `types` are names of types, such as foods."""
        self._outside = None
        dialogue = self._dialogues.setdefault(dialogue_id, _Dialogue())
        dialogue.types.update(map(_keys, types))
        for turn in history:
            if turn["text"] not in dialogue.texts:
                dialogue.texts.add(turn["text"])
                dialogue.words.update(map(_key, _TOKEN.findall(turn["text"])))
        for slot, values in state.items():
            named = [value for value in values if _is_name(slot, value)]
            dialogue.values.update((_keys(value), None) for value in named)
            if slot.endswith("name"):
                self._known.setdefault(slot, set()).update(map(_name_keys, named))
            elif slot.startswith(("train", "bus")):
                self._towns.update(map(_name_keys, values))
        if augmented_history is None or augmented_state is None:
            return
        dialogue.has_partner = True
        for check, value in self._faults_of(history, state, augmented_history, augmented_state):
            dialogue.faults.setdefault(check, f"{row_id} {value!r}")
        for turn, other in zip(history, augmented_history, strict=True):
            pair = turn["text"], other["text"]
            if pair not in dialogue.pairs:
                dialogue.pairs.add(pair)
                _compare(dialogue, row_id, *pair)
        for slot, values in state.items():
            after = augmented_state.get(slot, ())
            for index, old in enumerate(values):
                if old in after:
                    if _is_name(slot, old):
                        dialogue.unchanged_values.setdefault((slot, old), row_id)
                elif after:
                    self._renamed_slots.add(slot)
                    # There are fewer values if alternatives mean the same entity.
                    key = _keys(old), _keys(after[min(index, len(after) - 1)])
                    dialogue.replaced.setdefault(key, _Replacement(*key, "", row_id))

    def _faults_of(self, history: History, state: State, other: History, new: State) -> Iterator[tuple[str, str]]:
        """Yield the checks that a single pair fails, with the value."""
        before, after = ("\n".join(normalize_name(turn["text"]) for turn in view) for view in (history, other))
        for slot, values in new.items():
            old = set(map(normalize_name, state.get(slot, ())))
            for value in values:
                name = normalize_name(value)
                if name in old or name in NO_NAME:
                    continue
                if not contains_name(after, normalize_name(excluded_value(value) or value)):
                    yield "name_missing_in_text", value
                if name in (self._trained or ()):
                    yield "leaked_names", name
        for slot, values in state.items():
            spoken = [name for name in map(normalize_name, values) if name not in UNSPOKEN]
            said = [name for name in spoken if contains_name(before, name)]
            # In the augmented text a value may be a part of a word, such as "college" in "colleges".
            if new.get(slot) == values and said and not any(name in after for name in spoken):
                yield "value_lost_from_text", said[0]

    @property
    def renamed(self) -> int:
        """Number of dialogues with a partner."""
        return sum(dialogue.has_partner for dialogue in self._dialogues.values())

    def findings(self) -> dict[str, list[str]]:
        """Return check -> row id and description of the first finding in each dialogue that has one."""
        searches: dict[str, Callable[[_Dialogue], Iterator[str]]] = {
            "known_names": partial(self._known_names, self._index()),
            "leftover_names": self._leftover_names,
            "names_kept_in_state": self._names_kept_in_state,
            "two_new_names": self._two_new_names,
            "renamed_common_words": self._renamed_common_words,
        }
        checks = ["name_missing_in_text", "value_lost_from_text"]
        checks += [] if self._trained is None else ["leaked_names"]
        dialogues = [dialogue for dialogue in self._dialogues.values() if dialogue.has_partner]
        found = {name: [d.faults[name] for d in dialogues if name in d.faults] for name in checks}
        for name, search in searches.items():
            found[name] = [first for dialogue in dialogues if (first := next(search(dialogue), None))]
        return found

    def _index(self) -> dict[str, set[Words]]:
        """Return first word -> known names of the renamed slots, without names that look like ordinary text."""
        index: dict[str, set[Words]] = {}
        for slot in self._renamed_slots & self._known.keys():
            for name in self._known[slot] - self._towns:
                if len(name) > 2 or not (_PLAIN if len(name) > 1 else _PLAIN | _KINDS).issuperset(name):
                    index.setdefault(name[0], set()).add(name)
        return index

    def _known_names(self, index: Mapping[str, set[Words]], dialogue: _Dialogue) -> Iterator[str]:
        for (slot, value), row_id in dialogue.unchanged_values.items():
            name = _name_keys(value)
            if name and name in index.get(name[0], ()):
                yield f"{row_id} {slot} = {value!r}"
        for view in dialogue.views:
            for start, key in enumerate(view.keys):
                for name in index.get(key, ()):
                    end = start + len(name)
                    if view.keys[start:end] == [*name] and all(view.unchanged[start:end]):
                        if len(name) > 2 or view.is_name(start, end) or (len(name) == 1 and self._identifies(key)):
                            yield f"{view.row_id} {' '.join(view.tokens[start:end])!r}"

    def _leftover_names(self, dialogue: _Dialogue) -> Iterator[str]:
        olds = {old for old, _ in dialogue.replaced}
        name_of = {word: old for old in sorted(olds, key=len) for word in old if self._identifies(word)}
        if not name_of:
            return
        meant = self._meant(dialogue, name_of)
        for view in dialogue.views:
            for position, key in enumerate(view.keys):
                if key in meant and view.unchanged[position]:
                    old = name_of[meant[key]]
                    start, end = view.run(position, {*old, key})
                    if view.is_name(start, end):
                        surface = " ".join(view.tokens[start:end])
                        context = " ".join(view.tokens[max(0, start - 6) : end + 6])
                        yield f"{view.row_id} {surface!r} of {' '.join(old)!r} in {context!r}"

    def _meant(self, dialogue: _Dialogue, name_of: Mapping[str, Words]) -> dict[str, str]:
        """Return word of the augmented view -> identifying word of an old name that it equals or misspells."""
        meant = {}
        for word in {word for view in dialogue.views for word in view.keys}:
            if word in name_of:
                meant[word] = word
            elif len(word) > 4 and self._counts()[word] <= 1 and self._identifies(word):
                close = next((other for other in name_of if len(other) > 4 and _similar(word, other)), None)
                if close is not None:
                    meant[word] = close
        return meant

    def _names_kept_in_state(self, dialogue: _Dialogue) -> Iterator[str]:
        olds = {replacement.old for replacement in dialogue.replaced.values()}
        for (slot, value), row_id in dialogue.unchanged_values.items():
            words = {word for word in _keys(value) if word != "not"}
            if any(map(self._identifies, words)) and any(words <= {*old} for old in olds):
                yield f"{row_id} {slot} = {value!r}"

    def _two_new_names(self, dialogue: _Dialogue) -> Iterator[str]:
        replaced = [replacement for replacement in dialogue.replaced.values() if replacement.old not in dialogue.types]
        for first, second in combinations(replaced, 2):
            if self._are_one(first, second, replaced):
                names = [" ".join(words) for words in (first.old, first.new, second.old, second.new)]
                yield f"{second.row_id} " + "{!r} -> {!r}, {!r} -> {!r}".format(*names)

    def _are_one(self, first: _Replacement, second: _Replacement, replaced: Sequence[_Replacement]) -> bool:
        """Return whether two replaced names mean one entity and their new names differ."""
        left, right = {*first.old} - {"the"}, {*second.old} - {"the"}
        news = {*first.new}, {*second.new}
        if not any(map(self._identifies, left & right)):
            return False
        if news[0] & news[1] - _PLAIN or news[0] <= news[1] or news[1] <= news[0]:
            return False
        if {"and"} & {words[end] for words in (first.old, first.new, second.old, second.new) for end in (0, -1)}:
            return False
        if left ^ right <= _ALIKE:
            return True
        short, long = sorted((left, right), key=len)
        return short < long and sum(short <= {*third.old} and long != {*third.old} for third in replaced) <= 1

    def _renamed_common_words(self, dialogue: _Dialogue) -> Iterator[str]:
        for replacement in dialogue.replaced.values():
            old, before = replacement.old, replacement.before
            if not old or len(old[0]) < 3 or old in dialogue.types:
                continue
            is_ordinary = before in _INDEFINITE and len(old) == 1 and not self._identifies(old[0])
            if is_ordinary or (before in _DETERMINERS and _KINDS.issuperset(old)):
                yield f"{replacement.row_id} {' '.join((before, *old)).strip()!r} -> {' '.join(replacement.new)!r}"

    def _counts(self) -> Counter[str]:
        """Return word -> number of dialogues that use it outside of names."""
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


def _compare(dialogue: _Dialogue, row_id: str, text: str, augmented: str) -> None:
    """Compare two utterances word by word and add what was replaced."""
    tokens = _TOKEN.findall(augmented)
    keys = [_key(token) for token in tokens]
    if text == augmented:
        dialogue.views.append(_View(row_id, tokens, keys, [True] * len(tokens)))
        return
    unchanged = [False] * len(tokens)
    before = _TOKEN.findall(text)
    # The article follows the name after it.
    for is_equal, (start, end), (first, last) in _blocks(*([_ARTICLES.get(t, t) for t in v] for v in (before, tokens))):
        if is_equal:
            unchanged[first:last] = [True] * (last - first)
            continue
        old, new = (tuple(_key(t) for t in part if t[0].isalnum()) for part in (before[start:end], tokens[first:last]))
        if old and new:
            preceding = _key(before[start - 1]) if start else ""
            dialogue.replaced.setdefault((old, new), _Replacement(old, new, preceding, row_id))
    dialogue.views.append(_View(row_id, tokens, keys, unchanged))


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


def _name_keys(name: str) -> Words:
    keys = _keys(name)
    return keys[1:] if keys[:1] == ("the",) else keys


def _is_name(slot: str, value: str) -> bool:
    # Trains and buses run between towns, whose names are in the names of houses and in many sentences.
    is_town = slot.startswith(("train", "bus"))
    return slot.endswith(("name", "departure", "destination")) and not is_town and normalize_name(value) not in NO_NAME


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[bool, tuple[int, int], tuple[int, int]]]:
    """Align two token sequences; yield whether a block is equal, and its bounds in both."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    yield True, (0, head), (0, head)
    inner = old[head : len(old) - tail], new[head : len(new) - tail]
    codes = SequenceMatcher(None, *inner, autojunk=False).get_opcodes()
    # One common word between two replacements ("gallery at twelve" and "market at noon") does not separate names.
    bridges = [
        tag == "equal" and end - start == 1 and 0 < index < len(codes) - 1 and inner[0][start] not in _STOPS
        for index, (tag, start, end, *_) in enumerate(codes)
    ]
    first = 0
    while first < len(codes):
        last = first
        while last + 2 < len(codes) and codes[last][0] != "equal" and bridges[last + 1]:
            last += 2
        yield (
            codes[first][0] == "equal",
            (head + codes[first][1], head + codes[last][2]),
            (head + codes[first][3], head + codes[last][4]),
        )
        first = last + 1
    yield True, (len(old) - tail, len(old)), (len(new) - tail, len(new))
