"""The names of a dialogue, and where in its text they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dair_hf.dialog.reading import ReadReport
from dair_hf.dialog.rows import Mention, NameEntry
from dair_hf.dialog.spelling import (
    HOTEL,
    LONG_BB,
    MORE_WORDS,
    PLACE,
    RESTAURANT,
    SHORT_BB,
    STREET_WORDS,
    Keys,
    alike,
    core,
    is_common,
    kind_of,
    name_keys,
    same_entity,
)
from dair_hf.dialog.text import Words, words

SPELLED_OTHERWISE = "name spelled differently in text and state"


class Span(NamedTuple):
    """An annotated place: `text[start:end]` of utterance `turn` fills `slot`, the annotation says with `value`."""

    slot: str
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

    def add(self, slot: str, spelling: str, in_state: bool = True) -> None:
        """Add a name that fills `slot`: of a state or, with `in_state` false, from an annotation of the text."""
        entity = self._entity(slot, spelling)
        if entity is not None:
            (entity.state_spellings if in_state else entity.text_spellings)[spelling] += 1

    def _entity(self, slot: str, spelling: str, create: bool = True) -> Entity | None:
        keys = name_keys(spelling)
        if not keys:
            return None
        kind = kind_of(slot)
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
        scored = [
            (max(same_entity(keys, kind, other, entity.kind) for other in entity.keys), entity)
            for entity in self._entities
        ]
        best = max((score for score, _ in scored), default=0.0)
        winners = [entity for score, entity in scored if score == best]
        # A short form of several names ("pizza hut") says none of them.
        return winners[0] if best >= 0.99 or (best > 0 and len(winners) == 1) else None

    def link(
        self, texts: Sequence[str], spans: Iterable[Span], report: ReadReport | None = None, where: str = ""
    ) -> tuple[list[Mention], list[NameEntry]]:
        """Find the names in the text.

        Args:
            texts: The utterances.
            spans: Annotated places of names; trimmed to whole words here.
            report: Where to count what was found.
            where: The dialogue, for the report.

        Returns:
            The mentions, in order and without overlap, and the entries of all names, mentioned or not.
        """
        found: list[tuple[int, int, int, Entity]] = []
        for span in sorted(spans, key=lambda span: (kind_of(span.slot) == PLACE, span.turn, span.start)):
            if (place := self._of_span(span, texts[span.turn])) is not None:
                found.append(place)
        tokens = [words(text) for text in texts]
        found.extend(self._search(tokens, self._index()))
        kept = _without_overlap(found)
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

    def _of_span(self, span: Span, text: str) -> tuple[int, int, int, Entity] | None:
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
        if self._holds_more_than_a_name(surface, keys, kind_of(span.slot)):
            return None
        create = bool(span.slot) and not is_common(keys, kind_of(span.slot))
        entity = self._entity(span.slot, surface, create=create)
        return None if entity is None else (span.turn, start, end, entity)

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
                for form in (keys, short):
                    if is_common(form, entity.kind) or (form != keys and len("".join(form)) < 4):
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

    @staticmethod
    def _search_loosely(tokens: Sequence[Words], entities: Sequence[Entity]) -> list[tuple[int, int, int, Entity]]:
        """Misspelled and shortened names, for the entities that exact search did not find anywhere."""
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
        entity.text_spellings[text[start:end]] += 1
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
