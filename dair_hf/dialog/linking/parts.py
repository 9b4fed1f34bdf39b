"""Parts of names in a text, and misspelled words of names, that identify one entity of the dialogue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from dair_hf.dialog.linking.names import DialogueNames, Entity, EntitySpan
from dair_hf.dialog.linking.spelling import HOTEL, Keys, core, identifies, is_common
from dair_hf.dialog.linking.vocabulary import (
    FUNCTION_WORDS,
    GENERAL_WORDS,
    NAME_HEADS,
    ORDINARY_WORDS,
    STREET_WORDS,
    TOWN_WORDS,
)
from dair_hf.dialog.linking.words import Words, similarity


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


def find_parts(
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
