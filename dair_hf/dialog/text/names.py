"""The names of a dialogue, and where in its text they stand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from dair_hf.dialog.readers.report import ReadReport
from dair_hf.dialog.text.common_words import GENERAL_WORDS, ORDINARY_WORDS, TOWN_WORDS
from dair_hf.dialog.text.rows import Mention, NameEntry
from dair_hf.dialog.text.spelling import (
    FUNCTION_WORDS,
    HOTEL,
    LONG_BB,
    MORE_WORDS,
    NAME_HEADS,
    PLACE,
    RESTAURANT,
    SHORT_BB,
    STREET_WORDS,
    Keys,
    alike,
    core,
    identifies,
    is_common,
    is_part,
    is_type,
    kind_of,
    name_keys,
    same_entity,
)
from dair_hf.dialog.text.words import Words, similarity, words

SPELLED_OTHERWISE = "name spelled differently in text and state"


class Span(NamedTuple):
    """An annotated place: `text[start:end]` of utterance `turn` fills `slot`, the annotation says with `value`.

    The slot is empty where the annotation does not say what kind of name it is, and None where it is no name at all
    (an address, a dish): no part of a name is looked for there.
    """

    slot: str | None
    value: str
    turn: int
    start: int
    end: int


@dataclass(eq=False)
class Entity:
    """One name-like entity of a dialogue, as it is collected."""

    slot: str
    kind: str
    keys: dict[Keys, None] = field(default_factory=dict)
    state_spellings: Counter[str] = field(default_factory=Counter)
    text_spellings: Counter[str] = field(default_factory=Counter)

    @property
    def longest(self) -> Keys:
        """The fullest spelling."""
        return max(self.keys, key=len)

    @property
    def is_town(self) -> bool:
        """Whether it is a place between which trains or buses run: no part of a house's name."""
        return self.kind == PLACE and self.slot.startswith(("train", "bus"))

    def absorb(self, other: Entity) -> None:
        """Take over the spellings of another entity that turned out to be this one."""
        self.keys |= other.keys
        self.state_spellings.update(other.state_spellings)
        self.text_spellings.update(other.text_spellings)

    @property
    def name(self) -> str:
        """The spelling most frequent in the states, else in the text, lower-cased; empty before the first is known."""
        spellings = self.state_spellings or self.text_spellings
        counts: Counter[str] = Counter()
        for spelling, count in spellings.items():
            counts[spelling.lower()] += count
        return max(counts, key=counts.__getitem__, default="")

    def entry(self) -> NameEntry:
        """The entity as the row names it."""
        forms = dict.fromkeys([self.name, *self.state_spellings, *self.text_spellings])
        return NameEntry(self.slot, self.name, list(forms))


class NameLinker:
    """Collects the names of one dialogue and finds them in its text.

    Example:
        >>> linker = NameLinker()
        >>> linker.add("hotel-name", "warkworth house")
        >>> texts = ["is the Wartworth free?", "The Warkworth House is."]
        >>> mentions, names = linker.link(texts, [Span("hotel-name", "wartworth", 0, 7, 16)])
        >>> [texts[mention.turn][mention.start:mention.end] for mention in mentions], names[0].name
        (['Wartworth', 'Warkworth House'], 'warkworth house')
    """

    def __init__(self) -> None:
        self._entities: list[Entity] = []
        self._by_keys: dict[Keys, Entity] = {}
        self._other_words: set[str] = set()

    def add_other(self, value: str) -> None:
        """Add the value of a slot that holds no names: its words ("chinese") stand for no name."""
        self._other_words.update(words(value).keys)

    def add(self, slot: str, spelling: str, in_state: bool = True) -> None:
        """Add a name that fills `slot`: of a state or, with `in_state` false, from an annotation of the text."""
        entity = self._entity(slot, spelling)
        if entity is not None:
            (entity.state_spellings if in_state else entity.text_spellings)[spelling] += 1

    def _entity(self, slot: str, spelling: str, create: bool = True) -> Entity | None:
        keys = name_keys(spelling)
        kind = kind_of(slot)
        if not keys or (kind != PLACE and is_type(keys) and not TOWN_WORDS.intersection(keys)):
            return None
        found = self._by_keys.get(keys)
        if found is None or (found.kind != kind and PLACE not in (found.kind, kind)):
            found = self._closest(keys, kind)
        if found is None:
            if not create:
                return None
            found = Entity(slot, kind)
            self._entities.append(found)
        found.keys.setdefault(keys)
        self._by_keys.setdefault(keys, found)
        return found

    def _closest(self, keys: Keys, kind: str) -> Entity | None:
        scored = [(self._likeness(keys, kind, entity), entity) for entity in self._entities]
        best = max((score for score, _ in scored), default=0.0)
        winners = [entity for score, entity in scored if score == best]
        # A short form of several names ("pizza hut") says none of them.
        return winners[0] if best >= 0.99 or (best > 0 and len(winners) == 1) else None

    @staticmethod
    def _likeness(keys: Keys, kind: str, entity: Entity) -> float:
        scores = {other: same_entity(keys, kind, other, entity.kind) for other in entity.keys}
        longest = entity.longest
        if len(keys) > len(longest) or scores[longest] == 0:
            # "pizza hut" is a part of both "pizza hut cherry hinton" and "pizza hut fen ditton", which are two.
            return max((score for other, score in scores.items() if score > 0.5 or other == longest), default=0.0)
        return max(scores.values())

    def link(
        self, texts: Sequence[str], spans: Iterable[Span], report: ReadReport | None = None, where: str = ""
    ) -> tuple[list[Mention], list[NameEntry]]:
        """Find the names in the text.

        Args:
            texts: The utterances.
            spans: Annotated places; those of names are trimmed to whole words here.
            report: Where to count what was found.
            where: The dialogue, for the report.

        Returns:
            The mentions, in order and without overlap, and the entries of all names, mentioned or not.
        """
        found: list[tuple[int, int, int, Entity]] = []
        others: dict[int, list[tuple[int, int]]] = {}
        places: list[tuple[bool, int, int, str, Span]] = []
        for span in spans:
            if span.slot is None:
                others.setdefault(span.turn, []).append((span.start, span.end))
            else:
                places.append((kind_of(span.slot) == PLACE, span.turn, span.start, span.slot, span))
        for *_, slot, span in sorted(places, key=lambda place: place[:3]):
            if (place := self._of_span(slot, span, texts[span.turn])) is not None:
                found.append(place)
        found = self._merged(found)
        tokens = [words(text) for text in texts]
        found.extend(self._search(tokens, self._index()))
        kept = _without_overlap(found)
        kept = _without_overlap([*kept, *self._search_parts(texts, tokens, others)])
        mentioned = {id(entity) for *_, entity in kept}
        missing = [entity for entity in self._entities if entity.kind != PLACE and id(entity) not in mentioned]
        if missing:
            kept = _without_overlap([*kept, *self._search_loosely(tokens, missing)])
        mentions = [self._mention(texts, tokens, *place) for place in kept]
        named = [entity for entity in self._entities if entity.state_spellings or entity.text_spellings]
        names = {id(entity): entity.name for entity in named}
        if report is not None:
            _count(texts, mentions, kept, named, report, where)
        rows = [
            Mention(mention.slot, names[id(entity)], *mention[2:])
            for mention, (*_, entity) in zip(mentions, kept, strict=True)
        ]
        return rows, [entity.entry() for entity in named]

    def _of_span(self, slot: str, span: Span, text: str) -> tuple[int, int, int, Entity] | None:
        start, end = span.start, span.end
        while start < end and not text[start].isalnum():
            start += 1
        while end > start and not text[end - 1].isalnum():
            end -= 1
        inside = words(text[start:end])
        value = words(span.value).keys
        for index in range(len(inside.keys) - len(value) + 1 if value else 0):
            if inside.keys[index : index + len(value)] == value:
                start, end = start + inside.starts[index], start + inside.ends[index + len(value) - 1]
                break
        if start > 0 and text[start - 1].isalnum():
            start = max((other for other in words(text).starts if other <= start), default=start)
        if end < len(text) and text[end].isalnum():
            end = min((other for other in words(text).ends if other >= end), default=end)
        surface = text[start:end]
        keys = name_keys(surface)
        if not keys:
            return None
        if self._holds_more_than_a_name(surface, keys, kind_of(slot)):
            return None
        if is_common(keys, kind_of(slot)) and words(text[:start]).keys[-1:] in (["a"], ["an"], ["any"]):
            return None
        create = bool(slot) and not is_common(keys, kind_of(slot))
        entity = self._entity(slot, surface, create=create)
        return None if entity is None else (span.turn, start, end, entity)

    def _merged(self, found: Iterable[tuple[int, int, int, Entity]]) -> list[tuple[int, int, int, Entity]]:
        """Join names of which one is a part of one other only, and drop what names nothing; the places that remain."""
        now: dict[int, Entity] = {}
        for entity in list(self._entities):
            owners = [other for other in self._entities if other is not entity and _names_part_of(entity, other)]
            if len(owners) == 1:
                owners[0].absorb(entity)
                now[id(entity)] = owners[0]
                self._entities.remove(entity)
        self._entities = [
            entity for entity in self._entities if entity.kind == PLACE or not all(map(is_type, entity.keys))
        ]
        named = {id(entity) for entity in self._entities}
        merged = []
        for turn, start, end, entity in found:
            while id(entity) in now:
                entity = now[id(entity)]
            if id(entity) in named:
                merged.append((turn, start, end, entity))
        return merged

    def _holds_more_than_a_name(self, surface: str, keys: Keys, kind: str) -> bool:
        """Whether an annotated place spans several names or more than one; the search finds the known ones in it."""
        if keys in self._by_keys or not (MORE_WORDS.intersection(keys) or set(surface) & set('",;')):
            return False
        return any(
            len(known) < len(keys)
            and entity.kind == kind
            and not is_common(known, kind)
            and any(keys[head : head + len(known)] == known for head in range(len(keys) - len(known) + 1))
            for known, entity in self._by_keys.items()
        )

    def _index(self) -> dict[str, list[tuple[Keys, Entity, bool]]]:
        index: dict[str, list[tuple[Keys, Entity, bool]]] = {}
        for entity in self._entities:
            forms: dict[Keys, bool] = {}
            for keys in entity.keys:
                short = core(keys, entity.kind)
                if entity.kind == RESTAURANT and is_common(keys, entity.kind) and keys[-1:] != ("restaurant",):
                    forms[(*keys, "restaurant")] = False
                for form in (keys, short):
                    if (is_common(form, entity.kind) and len(form) < 4) or (form != keys and len("".join(form)) < 4):
                        continue
                    forms.setdefault(form, form not in entity.keys)
                    for place in range(1, len(form) - 2):
                        if form[place : place + 3] == LONG_BB:
                            forms.setdefault(form[:place] + SHORT_BB + form[place + 3 :], False)
            for form, shortened in forms.items():
                index.setdefault(form[0], []).append((form, entity, shortened))
        for entries in index.values():
            entries.sort(key=lambda entry: -len(entry[0]))
        return index

    @staticmethod
    def _search(
        tokens: Sequence[Words], index: dict[str, list[tuple[Keys, Entity, bool]]]
    ) -> list[tuple[int, int, int, Entity]]:
        found = []
        for turn, (utterance, starts, ends) in enumerate(tokens):
            for place, key in enumerate(utterance):
                if key not in index:
                    continue
                for form, entity, shortened in index[key]:
                    last = place + len(form)
                    if tuple(utterance[place:last]) != form:
                        continue
                    if shortened and last < len(utterance) and utterance[last] in STREET_WORDS:
                        continue
                    found.append((turn, starts[place], ends[last - 1], entity))
                    break
        return found

    def _search_parts(
        self, texts: Sequence[str], tokens: Sequence[Words], others: Mapping[int, Sequence[tuple[int, int]]]
    ) -> list[tuple[int, int, int, Entity]]:
        """Parts of names, and misspelled ones, that say which entity of the dialogue is meant."""
        owners: dict[str, list[Entity]] = {}
        sequences: dict[int, set[tuple[str, str]]] = {}
        for entity in self._entities:
            sequences[id(entity)] = {pair for keys in entity.keys for pair in combinations(keys, 2)}
            for key in dict.fromkeys(key for keys in entity.keys for key in keys):
                if (identifies(key) or (entity.is_town and key in TOWN_WORDS)) and key not in self._other_words:
                    owners.setdefault(key, []).append(entity)
        phrases = self._phrases()
        targets = set(owners)
        targets.update(key for parts in phrases.values() for part, _ in parts for key in part)
        spelled: dict[str, str] = {}
        found = []
        for turn, (keys, starts, ends) in enumerate(tokens):
            for key in keys:
                if key not in spelled:
                    spelled[key] = self._closest_word(key, targets)
            meant = [spelled[key] for key in keys]
            for start, end in others.get(turn, ()):
                for place in range(bisect_right(ends, start), bisect_left(starts, end)):
                    meant[place] = ""
            for first, last, entity in (
                *_windows(texts[turn], meant, starts, ends, owners, sequences),
                *_phrases_in(texts[turn], meant, starts, phrases),
            ):
                if STREET_WORDS.intersection((*keys[first - 1 : first], *keys[last : last + 1])):
                    continue
                found.append((turn, starts[first], ends[last - 1], entity))
        return found

    def _closest_word(self, key: str, targets: Collection[str]) -> str:
        """The word of a name that a word of the text misspells, else the word itself."""
        if key in targets or len(key) < 5 or not key.isalpha() or key in ORDINARY_WORDS or key in self._other_words:
            return key
        score, other = max(
            ((similarity(key, other), other) for other in targets if len(other) >= 5), default=(0.0, key)
        )
        return other if score >= (0.85 if other[0] == key[0] else 0.88) else key

    def _phrases(self) -> dict[str, list[tuple[Keys, Entity]]]:
        """First word -> names, and parts of names, that identify them as a whole, though none of their words does."""
        found: dict[Keys, dict[int, Entity]] = {}
        for entity in self._entities:
            for full in entity.keys:
                # "county folk" is the head of "cambridge and county folk museum".
                heads = {0, next((i for i, key in enumerate(full) if key not in TOWN_WORDS | FUNCTION_WORDS), 0)}
                for first, last in combinations(range(len(full) + 1), 2):
                    part = full[first:last]
                    if len(part) < 2 or any(map(identifies, part)):
                        continue
                    if is_common(part, HOTEL) and part != core(full, entity.kind):
                        continue
                    if {part[0], part[-1]} & FUNCTION_WORDS or self._other_words.intersection(part) - NAME_HEADS:
                        continue
                    if first in heads or part[-1] in NAME_HEADS or (last == len(full) and len(part) > 2):
                        found.setdefault(part, {})[id(entity)] = entity
        index: dict[str, list[tuple[Keys, Entity]]] = {}
        for part, named in found.items():
            if len(named) == 1:
                index.setdefault(part[0], []).append((part, next(iter(named.values()))))
        return index

    @staticmethod
    def _search_loosely(tokens: Sequence[Words], entities: Sequence[Entity]) -> list[tuple[int, int, int, Entity]]:
        """Misspelled and shortened names, for the entities that no other search finds anywhere."""
        found = []
        for entity in entities:
            for full in list(entity.keys):
                short = core(full, entity.kind)
                if len("".join(short)) < 5 or (len(short) == 1 and is_common(short, entity.kind)):
                    continue
                for turn, (utterance, starts, ends) in enumerate(tokens):
                    for size in range(max(1, len(short) - 1), len(full) + 2):
                        for place in range(len(utterance) - size + 1):
                            window = tuple(utterance[place : place + size])
                            if window[0][0] != short[0][0] and window[-1][-1] != full[-1][-1]:
                                continue
                            if (
                                window in (full, short)
                                or _shortened(window, short, entity.kind)
                                or _misspelled(core(window, entity.kind), short)
                            ):
                                found.append((turn, starts[place], ends[place + size - 1], entity))
        return found

    @staticmethod
    def _mention(
        texts: Sequence[str], tokens: Sequence[Words], turn: int, start: int, end: int, entity: Entity
    ) -> Mention:
        text, name = texts[turn], entity.name
        has_article = text[start:end].lower().startswith("the ")
        if name.startswith("the ") and not has_article and text[max(0, start - 4) : start].lower() == "the ":
            if start == 4 or not text[start - 5].isalnum():
                start -= 4
        elif has_article and not name.startswith("the "):
            start += 4
            start = next(other for other in tokens[turn].starts if other >= start)
        if text[start:end].lower().endswith(("'s", "’s")) and not name.endswith("s"):
            end -= 2
        surface = text[start:end]
        # A part of the name ("lovell") is one of its forms, but does not make a name of it, however often it is said.
        entity.text_spellings[surface] += name_keys(surface) in entity.keys
        return Mention(entity.slot, name, turn, start, end)


def _count(
    texts: Sequence[str],
    mentions: Sequence[Mention],
    kept: Sequence[tuple[int, int, int, Entity]],
    named: Sequence[Entity],
    report: ReadReport,
    where: str,
) -> None:
    names = [entity for entity in named if entity.kind != PLACE]
    surfaces: dict[int, set[Keys]] = {}
    for mention, (*_, entity) in zip(mentions, kept, strict=True):
        surfaces.setdefault(id(entity), set()).add(name_keys(texts[mention.turn][mention.start : mention.end]))
    report.names += len(names)
    report.names_in_text += sum(id(entity) in surfaces for entity in names)
    report.mentions += len(mentions)
    for entity in names:
        in_state = {name_keys(spelling) for spelling in entity.state_spellings}
        if in_state and surfaces.get(id(entity), set()) - in_state:
            report.normalise(SPELLED_OTHERWISE, f"{where}: {entity.name}")


def _windows(
    text: str,
    keys: Sequence[str],
    starts: Sequence[int],
    ends: Sequence[int],
    owners: Mapping[str, Sequence[Entity]],
    sequences: Mapping[int, set[tuple[str, str]]],
) -> Iterator[tuple[int, int, Entity]]:
    """Runs of words of one name around a word that identifies it."""

    def joined(left: int) -> bool:
        return not set(text[ends[left] : starts[left + 1]]) & set('.,;:?!()"')

    done = 0
    for place, key in enumerate(keys):
        named = owners.get(key, ())
        if place < done or len(named) != 1:
            continue
        entity = named[0]
        pairs = sequences[id(entity)]
        first, last = place, place + 1
        while first > done and joined(first - 1) and _follow(keys[first - 1], keys[first], pairs):
            first -= 1
        while last < len(keys) and joined(last - 1) and _follow(keys[last - 1], keys[last], pairs):
            last += 1
        while keys[first] in FUNCTION_WORDS:
            first += 1
        while keys[last - 1] in FUNCTION_WORDS:
            last -= 1
        done = last
        yield first, last, entity


def _follow(left: str, right: str, pairs: Collection[tuple[str, str]]) -> bool:
    """Whether two words stand in a name in this order; one of them may be misspelled ("lang hong" of "lan hong")."""
    if (left, right) in pairs:
        return True
    return (identifies(left) or identifies(right)) and any(
        (left == one and _like(right, other)) or (right == other and _like(left, one)) for one, other in pairs
    )


def _like(key: str, other: str) -> bool:
    return identifies(key) and identifies(other) and similarity(key, other) > 0.6


def _phrases_in(
    text: str, keys: Sequence[str], starts: Sequence[int], phrases: Mapping[str, Sequence[tuple[Keys, Entity]]]
) -> Iterator[tuple[int, int, Entity]]:
    """Parts of names in the text; those of two words only where something else says that they are a name."""
    for place, key in enumerate(keys):
        for part, entity in phrases.get(key, ()):
            last = place + len(part)
            if tuple(keys[place:last]) != part:
                continue
            before = keys[place - 1] if place else ""
            has_capitals = all(text[start].isupper() for start in starts[place:last])
            is_address = before in ("in", "at", "on") and keys[max(0, place - 2)] != "interested"
            says_much = len(part) > 2 or before == "the" or GENERAL_WORDS.isdisjoint(part)
            if (has_capitals and not is_address) or (says_much and before not in ("a", "an") and not _is_plain(part)):
                yield place, last, entity


def _is_plain(part: Keys) -> bool:
    """Whether a part of a name is made of words that are in many names, or of a town's name."""
    return is_common(part, HOTEL) or TOWN_WORDS.issuperset(part)


def _names_part_of(entity: Entity, other: Entity) -> bool:
    """Whether the fullest name of an entity says a part of another's, so that both are one if no third one holds it."""
    keys, longer = entity.longest, other.longest
    if entity.is_town or other.is_town:
        return entity.is_town and other.is_town and len(keys) < len(longer) and longer[: len(keys)] == keys
    if other.kind == PLACE or not is_part(keys, longer, entity.kind):
        return False
    return entity.kind in (other.kind, PLACE) or _contains(longer, keys)


def _contains(longer: Keys, keys: Keys) -> bool:
    """Whether a name holds all of another that identifies its entity, whatever kind each is said to be."""
    heads = range(len(longer) - len(keys) + 1)
    return len(keys) > 1 and any(map(identifies, keys)) and any(longer[h : h + len(keys)] == keys for h in heads)


def _shortened(window: Keys, target: Keys, kind: str) -> bool:
    """Whether a window says part of the name: two words of it or more, or its first word if that is a rare one."""
    if len(window) >= len(target) or is_common(window, HOTEL):
        return False
    if len(window) == 1:
        return kind != RESTAURANT and window[0] == target[0] and len(window[0]) > 5
    return any(target[index : index + len(window)] == window for index in range(len(target) - len(window) + 1))


def _misspelled(window: Keys, target: Keys) -> bool:
    return not is_common(target, HOTEL) and not is_common(window, HOTEL) and alike(window, target) > 0


def _without_overlap(found: Iterable[tuple[int, int, int, Entity]]) -> list[tuple[int, int, int, Entity]]:
    """The longest of what overlaps; of equals the first."""
    kept: list[tuple[int, int, int, Entity]] = []
    taken: dict[int, list[tuple[int, int]]] = {}
    for place in sorted(found, key=lambda place: place[1] - place[2]):
        turn, start, end, _ = place
        others = taken.setdefault(turn, [])
        if all(end <= other_start or start >= other_end for other_start, other_end in others):
            others.append((start, end))
            kept.append(place)
    return sorted(kept, key=lambda place: place[:3])
