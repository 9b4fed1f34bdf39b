"""Mentions of a dialogue's names in its text: annotated, spelled out, in part, or misspelled."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from dair_hf.dialog.linking.names import (
    HOTEL,
    LONG_BB,
    PLACE,
    RESTAURANT,
    SHORT_BB,
    DialogueNames,
    Entity,
    EntitySpan,
    Keys,
    contains,
    core,
    identifies,
    is_common,
    kind_of,
    name_keys,
    name_similarity,
)
from dair_hf.dialog.linking.words import (
    FUNCTION_WORDS,
    GENERAL_WORDS,
    JOINING_WORDS,
    NAME_HEADS,
    ORDINARY_WORDS,
    STREET_WORDS,
    TOWN_WORDS,
    Words,
    similarity,
    words,
)
from dair_hf.dialog.rows import Mention, without_overlap


class Annotation(NamedTuple):
    """Annotated span: `text[start:end]` of utterance `turn` fills `slot` with `value`.

    The slot is empty if the kind of name is unknown, and None if the span is no name (an address, a dish). In such a
    span only whole names are searched for, such as that of a hotel in its address, but no ordinary word ("indian").
    """

    slot: str | None
    value: str
    turn: int
    start: int
    end: int


class LinkedNames(NamedTuple):
    """Mentions in the order of the text, without overlap, and the named entities, mentioned or not."""

    mentions: list[Mention]
    entities: list[Entity]


def link_names(texts: Sequence[str], names: DialogueNames, annotations: Iterable[Annotation]) -> LinkedNames:
    """Find the names of a dialogue in its text.

    A name that is also a value of another slot ("indian", the food) is only found where an annotation names it.
    """
    tokens = [words(text) for text in texts]
    annotations = list(annotations)
    spans = _annotated(texts, names, annotations)
    excluded: list[list[tuple[int, int]]] = [[] for _ in texts]
    for annotation in annotations:
        if annotation.slot is None:
            excluded[annotation.turn].append((annotation.start, annotation.end))

    def add(found: Iterable[Iterable[EntitySpan]]) -> list[list[EntitySpan]]:
        return [without_overlap([*known, *more]) for known, more in zip(spans, found, strict=True)]

    index = name_index(names)
    spans = add(_spelled_out(line, index, other) for line, other in zip(tokens, excluded, strict=True))
    spans = add(_find_parts(texts, tokens, names, excluded))
    mentioned = {id(entity) for line in spans for *_, entity in line}
    missing = [entity for entity in names.entities if entity.kind != PLACE and id(entity) not in mentioned]
    if missing:
        loose = (_loosely(line, missing, names.other_values) for line in tokens)
        spans = add(
            [span for span in line if not _is_inside(span, other)] for line, other in zip(loose, excluded, strict=True)
        )
    trimmed = [
        (entity, turn, *_trimmed(texts[turn], tokens[turn], start, end, entity))
        for turn, line in enumerate(spans)
        for start, end, entity in line
    ]
    entities = [entity for entity in names.entities if entity.state_spellings or entity.text_spellings]
    name_of = {id(entity): entity.name for entity in entities}
    return LinkedNames([Mention(entity.slot, name_of[id(entity)], *span) for entity, *span in trimmed], entities)


def _is_inside(span: EntitySpan, excluded: Iterable[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in excluded)


def _annotated(texts: Sequence[str], names: DialogueNames, annotations: Iterable[Annotation]) -> list[list[EntitySpan]]:
    spans: list[list[EntitySpan]] = [[] for _ in texts]
    of_names = [annotation for annotation in annotations if annotation.slot is not None]
    for annotation in sorted(of_names, key=lambda a: (kind_of(a.slot or "") == PLACE, a.turn, a.start)):
        span = _of_annotation(annotation, texts[annotation.turn], names)
        if span is not None:
            spans[annotation.turn].append(span)
    owner = names.merge_partial_names()
    return [[(start, end, owner[id(e)]) for start, end, e in line if id(e) in owner] for line in spans]


def _of_annotation(annotation: Annotation, text: str, names: DialogueNames) -> EntitySpan | None:
    slot, kind = annotation.slot or "", kind_of(annotation.slot or "")
    start, end = _whole_words(text, annotation)
    surface = text[start:end]
    keys = name_keys(surface)
    if not keys or _joins_names(surface, keys, kind, names):
        return None
    if is_common(keys, kind) and words(text[:start]).keys[-1:] in (["a"], ["an"], ["any"]):
        return None
    if slot and not is_common(keys, kind):
        entity = names.find_or_add(slot, surface)
    elif entity := names.find(slot, surface):
        names.add_name(entity, surface)
    return None if entity is None else (start, end, entity)


def _whole_words(text: str, annotation: Annotation) -> tuple[int, int]:
    """Return the span of the annotated value, without marks at its ends and extended to whole words."""
    start, end = annotation.start, annotation.end
    while start < end and not text[start].isalnum():
        start += 1
    while end > start and not text[end - 1].isalnum():
        end -= 1
    inside, value = words(text[start:end]), words(annotation.value).keys
    for index in range(len(inside.keys) - len(value) + 1 if value else 0):
        if inside.keys[index : index + len(value)] == value:
            start, end = start + inside.starts[index], start + inside.ends[index + len(value) - 1]
            break
    if start > 0 and text[start - 1].isalnum():
        start = max((other for other in words(text).starts if other <= start), default=start)
    if end < len(text) and text[end].isalnum():
        end = min((other for other in words(text).ends if other >= end), default=end)
    return start, end


def _joins_names(surface: str, keys: Keys, kind: str, names: DialogueNames) -> bool:
    """Return whether a span holds more than one name, so that its names must be searched for one by one."""
    if keys in names.by_keys or not (JOINING_WORDS.intersection(keys) or set(surface) & set('",;')):
        return False
    return any(
        entity.kind == kind and not is_common(known, kind) and contains(keys, known)
        for known, entity in names.by_keys.items()
    )


def name_index(names: DialogueNames) -> dict[str, list[tuple[Keys, Entity, bool]]]:
    """Return, by first word, the forms to search for, longest first, with entity and whether the form is shortened."""
    index: dict[str, list[tuple[Keys, Entity, bool]]] = {}
    for entity in names.entities:
        forms: dict[Keys, bool] = {}
        for keys in entity.keys:
            if entity.kind == RESTAURANT and is_common(keys, entity.kind) and keys[-1:] != ("restaurant",):
                forms[(*keys, "restaurant")] = False
            for form in (keys, core(keys, entity.kind)):
                if (is_common(form, entity.kind) and len(form) < 3) or (form != keys and len("".join(form)) < 4):
                    continue
                forms.setdefault(form, form not in entity.keys)
                for start in range(1, len(form) - 2):
                    if form[start : start + 3] == LONG_BB:
                        forms.setdefault(form[:start] + SHORT_BB + form[start + 3 :], False)
        for form, is_shortened in forms.items():
            if form in names.other_values:
                continue
            index.setdefault(form[0], []).append((form, entity, is_shortened))
    for entries in index.values():
        entries.sort(key=lambda entry: -len(entry[0]))
    return index


def _spelled_out(
    line: Words, index: dict[str, list[tuple[Keys, Entity, bool]]], excluded: Sequence[tuple[int, int]]
) -> Iterator[EntitySpan]:
    """Find names as a whole; a single ordinary word is none in an excluded span."""
    keys = line.keys
    for first, key in enumerate(keys):
        for form, entity, is_shortened in index.get(key, ()):
            last = first + len(form)
            is_street = is_shortened and last < len(keys) and keys[last] in STREET_WORDS
            if tuple(keys[first:last]) == form and not is_street:
                span = line.starts[first], line.ends[last - 1], entity
                if len(form) > 1 or identifies(form[0]) or not _is_inside(span, excluded):
                    yield span
                    break


def _loosely(line: Words, entities: Iterable[Entity], other_values: Collection[Keys]) -> Iterator[EntitySpan]:
    """Find misspelled and shortened names, except those that are values of other slots."""
    for entity in entities:
        for full in entity.keys:
            short = core(full, entity.kind)
            if full in other_values or short in other_values:
                continue
            if len("".join(short)) < 5 or (len(short) == 1 and is_common(short, entity.kind)):
                continue
            for size in range(max(1, len(short) - 1), len(full) + 2):
                for first in range(len(line.keys) - size + 1):
                    window = tuple(line.keys[first : first + size])
                    if window in other_values or (window[0][0] != short[0][0] and window[-1][-1] != full[-1][-1]):
                        continue
                    if (
                        window in (full, short)
                        or _is_shortened(window, short, entity.kind)
                        or _is_misspelled(core(window, entity.kind), short)
                    ):
                        yield line.starts[first], line.ends[first + size - 1], entity


def _is_shortened(window: Keys, name: Keys, kind: str) -> bool:
    if len(window) >= len(name) or is_common(window, HOTEL):
        return False
    if len(window) == 1:
        return kind != RESTAURANT and window[0] == name[0] and len(window[0]) > 5
    return contains(name, window)


def _is_misspelled(window: Keys, name: Keys) -> bool:
    return not is_common(name, HOTEL) and not is_common(window, HOTEL) and name_similarity(window, name) > 0


def _trimmed(text: str, line: Words, start: int, end: int, entity: Entity) -> tuple[int, int]:
    """Match the article of a mention to its name, drop a possessive 's, and count the spelling."""
    name = entity.name
    has_article = text[start:end].lower().startswith("the ")
    if name.startswith("the ") and not has_article and text[max(0, start - 4) : start].lower() == "the ":
        if start == 4 or not text[start - 5].isalnum():
            start -= 4
    elif has_article and not name.startswith("the "):
        start = next(other for other in line.starts if other >= start + 4)
    if text[start:end].lower().endswith(("'s", "’s")) and not name.endswith("s"):
        end -= 2
    surface = text[start:end]
    entity.surfaces.add(surface)
    # A part of a name ("lovell") is one of its forms but never becomes the name, however often it occurs.
    entity.text_spellings[surface] += name_keys(surface) in entity.keys
    return start, end


@dataclass
class _Parts:
    """Parts of the names of a dialogue."""

    owners: dict[str, list[Entity]] = field(default_factory=dict)
    word_pairs: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    phrases: dict[str, list[tuple[Keys, Entity]]] = field(default_factory=dict)

    def targets(self) -> set[str]:
        """Return the words that a misspelled word of the text can mean."""
        in_phrases = (key for parts in self.phrases.values() for part, _ in parts for key in part)
        return {*self.owners, *in_phrases}


def _find_parts(
    texts: Sequence[str],
    tokens: Sequence[Words],
    names: DialogueNames,
    excluded: Sequence[Sequence[tuple[int, int]]],
) -> list[list[EntitySpan]]:
    """Find parts of names in the utterances of a dialogue."""
    parts = _Parts(phrases=_phrases(names))
    for entity in names.entities:
        parts.word_pairs[id(entity)] = {pair for keys in entity.keys for pair in combinations(keys, 2)}
        for key in dict.fromkeys(key for keys in entity.keys for key in keys):
            if (identifies(key) or (entity.is_town and key in TOWN_WORDS)) and key not in names.other_words:
                parts.owners.setdefault(key, []).append(entity)
    targets = parts.targets()
    corrected: dict[str, str] = {}
    spans_by_turn: list[list[EntitySpan]] = []
    for text, line, spans in zip(texts, tokens, excluded, strict=True):
        for key in line.keys:
            if key not in corrected:
                corrected[key] = _closest_word(key, targets, names.other_words)
        keys = [corrected[key] for key in line.keys]
        for start, end in spans:
            for position in range(bisect_right(line.ends, start), bisect_left(line.starts, end)):
                keys[position] = ""
        spans_by_turn.append(
            [
                (line.starts[first], line.ends[last - 1], entity)
                for first, last, entity in (*_runs(text, keys, line, parts), *_phrases_in(text, keys, line, parts))
                if STREET_WORDS.isdisjoint((*line.keys[first - 1 : first], *line.keys[last : last + 1]))
            ]
        )
    return spans_by_turn


def _closest_word(key: str, targets: Collection[str], other_words: Collection[str]) -> str:
    """Return the word of a name that `key` misspells, else `key`."""
    if key in targets or len(key) < 5 or not key.isalpha() or key in ORDINARY_WORDS or key in other_words:
        return key
    score, other = max(((similarity(key, other), other) for other in targets if len(other) >= 5), default=(0.0, key))
    return other if score >= (0.85 if other[0] == key[0] else 0.88) else key


def _phrases(names: DialogueNames) -> dict[str, list[tuple[Keys, Entity]]]:
    entities_of: dict[Keys, dict[int, Entity]] = {}
    for entity in names.entities:
        for full in entity.keys:
            # "county folk" is the head of "cambridge and county folk museum".
            heads = {0, next((i for i, key in enumerate(full) if key not in TOWN_WORDS | FUNCTION_WORDS), 0)}
            for first, last in combinations(range(len(full) + 1), 2):
                part = full[first:last]
                if len(part) < 2 or any(map(identifies, part)):
                    continue
                if is_common(part, HOTEL) and part != core(full, entity.kind):
                    continue
                if {part[0], part[-1]} & FUNCTION_WORDS or names.other_words.intersection(part) - NAME_HEADS:
                    continue
                if first in heads or part[-1] in NAME_HEADS or (last == len(full) and len(part) > 2):
                    entities_of.setdefault(part, {})[id(entity)] = entity
    phrases: dict[str, list[tuple[Keys, Entity]]] = {}
    for part, entities in entities_of.items():
        if len(entities) == 1:
            phrases.setdefault(part[0], []).append((part, next(iter(entities.values()))))
    return phrases


def _runs(text: str, keys: Sequence[str], line: Words, parts: _Parts) -> Iterator[tuple[int, int, Entity]]:
    """Yield runs of words of one name around a word that identifies it."""

    def is_joined(left: int) -> bool:
        return not set(text[line.ends[left] : line.starts[left + 1]]) & set('.,;:?!()"')

    done = 0
    for position, key in enumerate(keys):
        owners = parts.owners.get(key, ())
        if position < done or len(owners) != 1:
            continue
        pairs = parts.word_pairs[id(owners[0])]
        first, last = position, position + 1
        while first > done and is_joined(first - 1) and _are_in_order(keys[first - 1], keys[first], pairs):
            first -= 1
        while last < len(keys) and is_joined(last - 1) and _are_in_order(keys[last - 1], keys[last], pairs):
            last += 1
        while keys[first] in FUNCTION_WORDS:
            first += 1
        while keys[last - 1] in FUNCTION_WORDS:
            last -= 1
        done = last
        yield first, last, owners[0]


def _are_in_order(left: str, right: str, pairs: Collection[tuple[str, str]]) -> bool:
    """Return whether a name has the words in this order; one may be misspelled ("lang hong" of "lan hong")."""
    if (left, right) in pairs:
        return True
    return (identifies(left) or identifies(right)) and any(
        (left == first and _may_misspell(right, second)) or (right == second and _may_misspell(left, first))
        for first, second in pairs
    )


def _may_misspell(key: str, other: str) -> bool:
    return identifies(key) and identifies(other) and similarity(key, other) > 0.6


def _phrases_in(text: str, keys: Sequence[str], line: Words, parts: _Parts) -> Iterator[tuple[int, int, Entity]]:
    """Yield the phrases of a text that capitals, an article or their own words mark as names."""
    for first, key in enumerate(keys):
        for part, entity in parts.phrases.get(key, ()):
            last = first + len(part)
            if tuple(keys[first:last]) != part:
                continue
            before = keys[first - 1] if first else ""
            has_capitals = all(text[start].isupper() for start in line.starts[first:last])
            is_address = before in ("in", "at", "on") and keys[max(0, first - 2)] != "interested"
            is_specific = len(part) > 2 or before == "the" or GENERAL_WORDS.isdisjoint(part)
            is_plain = is_common(part, HOTEL) or TOWN_WORDS.issuperset(part)
            if (has_capitals and not is_address) or (is_specific and before not in ("a", "an") and not is_plain):
                yield first, last, entity
