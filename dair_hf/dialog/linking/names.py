"""Names of hotels, restaurants, attractions and places: their comparison, and the named entities of one dialogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from dair_hf.dialog.linking.words import (
    COMMON_WORDS,
    KIND_WORDS,
    SUBJECT_WORDS,
    TOWN_WORDS,
    TYPE_WORDS,
    UNSPECIFIC_WORDS,
    similarity,
    words,
)
from dair_hf.dialog.rows import NameEntry, excluded_value
from dair_hf.metrics.state.normalizers import DONTCARE

Keys = tuple[str, ...]

HOTEL, RESTAURANT, ATTRACTION, PLACE = "hotel", "restaurant", "attraction", "place"
LONG_BB, SHORT_BB = ("bed", "and", "breakfast"), ("b", "and", "b")
MIN_SIMILARITY = 0.82
MIN_WORD_SIMILARITY = 0.6
_TAILS: dict[str, tuple[Keys, ...]] = {
    HOTEL: (LONG_BB, SHORT_BB, ("guest", "house"), ("hotel",), ("house",)),
    RESTAURANT: (("restaurant",),),
    PLACE: (LONG_BB, SHORT_BB, ("guest", "house"), ("hotel",), ("restaurant",)),
    ATTRACTION: (),
}


@lru_cache(maxsize=10_000)
def kind_of(slot: str) -> str:
    """Return the kind of name that a slot for names or places holds: hotel, restaurant, attraction, else place."""
    domain = slot.lower().partition("-")[0]
    # SGD has its attractions in the service Travel_1.
    kinds = {HOTEL: HOTEL, RESTAURANT: RESTAURANT, ATTRACTION: ATTRACTION, "travel": ATTRACTION}
    return next((kind for start, kind in kinds.items() if domain.startswith(start)), PLACE)


@lru_cache(maxsize=100_000)
def name_keys(spelling: str) -> Keys:
    """Return the words by which a name is compared: without a leading "the", with "b & b" written out."""
    keys = tuple(words(spelling).keys)
    if len(keys) > 1 and keys[0] == "the":
        keys = keys[1:]
    for index in range(1, len(keys) - 2):
        if keys[index : index + 3] == SHORT_BB:
            return keys[:index] + LONG_BB + keys[index + 3 :]
    return keys


@lru_cache(maxsize=100_000)
def core(keys: Keys, kind: str) -> Keys:
    """Remove the words that only describe the kind of house ("acorn" of "acorn guest house")."""
    if kind in (RESTAURANT, PLACE) and len(keys) > 1 and keys[0] == "restaurant":
        keys = keys[1:]
    for tail in _TAILS[kind]:
        if len(keys) > len(tail) and keys[-len(tail) :] == tail:
            return keys[: -len(tail)]
    return keys


def contains(longer: Keys, keys: Keys) -> bool:
    """Return whether `keys` are consecutive words of `longer`."""
    return any(longer[start : start + len(keys)] == keys for start in range(len(longer) - len(keys) + 1))


def is_common(keys: Keys, kind: str) -> bool:
    """Return whether a name consists of common words alone, so that it looks like ordinary text."""
    return all(key in COMMON_WORDS and not (kind == PLACE and key == "cambridge") for key in keys)


def identifies(key: str) -> bool:
    """Return whether one word of a name ("lovell", not "lodge") is rare enough to identify it."""
    return len(key) > 2 and not key.isdigit() and key not in UNSPECIFIC_WORDS


def _is_type(keys: Keys) -> bool:
    """Return whether words describe a kind of entity, or a town, and name no entity."""
    return all(key in TYPE_WORDS or key in TOWN_WORDS for key in keys) or (len(keys) == 1 and keys[0] in SUBJECT_WORDS)


def _is_part(keys: Keys, longer: Keys, kind: str) -> bool:
    """Return whether a longer name holds all words of a name, except words for the kind of house."""
    if any(map(identifies, keys)):
        return all(key in longer or (key in KIND_WORDS and not identifies(key)) for key in keys)
    return kind != PLACE and not _is_type(keys) and contains(longer, keys)


@lru_cache(maxsize=200_000)
def name_similarity(left: Keys, right: Keys) -> float:
    """Return the similarity of two names in [0, 1], or 0 if a word has no counterpart."""
    whole = similarity("".join(left), "".join(right))
    if whole < MIN_SIMILARITY:
        return 0.0
    if len(left) != len(right):
        return whole if whole >= 0.92 else 0.0
    pairs = zip(left, right, strict=True)
    matches = all(similarity(word, other) >= MIN_WORD_SIMILARITY for word, other in pairs)
    return whole if matches or sorted(left) == sorted(right) else 0.0


@lru_cache(maxsize=200_000)
def _same_entity(left: Keys, left_kind: str, right: Keys, right_kind: str) -> float:
    """Return the confidence in [0, 1] that two names mean the same entity."""
    if left == right or "".join(left) == "".join(right) or sorted(left) == sorted(right):
        return 1.0
    left_core, right_core = core(left, left_kind), core(right, right_kind)
    if not is_common(left_core, left_kind) and (left_core == right_core or left_core == right or left == right_core):
        return 0.99
    if PLACE not in (left_kind, right_kind) and left_kind != right_kind:
        return 0.0
    if score := name_similarity(left_core, right_core):
        return score if len("".join(left_core)) >= 5 and len("".join(right_core)) >= 5 else 0.0
    if left_kind == right_kind == PLACE:
        return 0.0
    short, long = sorted((left, right), key=len)
    if len(short) == len(long):
        return 0.0
    # A short form: the first word of the name unless that is common, or several of its words.
    if len(short) == 1:
        short_kind = left_kind if short == left else right_kind
        is_short_form = short_kind != PLACE and not is_common(short, HOTEL) and long[0] == short[0]
    elif is_common(short, HOTEL):
        is_short_form = long[: len(short)] == short
    else:
        is_short_form = contains(long, short)
    return 0.5 if is_short_form else 0.0


@dataclass(eq=False)
class Entity:
    """Named entity of a dialogue, with the first slot that it fills."""

    slot: str
    kind: str
    # Its names as compared words, in the order in which they were added.
    keys: dict[Keys, None] = field(default_factory=dict)
    # Spelling -> count, in the states, and in the text and its annotations: 0 for parts of the name.
    state_spellings: Counter[str] = field(default_factory=Counter)
    text_spellings: Counter[str] = field(default_factory=Counter)
    surfaces: set[str] = field(default_factory=set)

    @property
    def longest(self) -> Keys:
        """Name with the most words."""
        return max(self.keys, key=len)

    @property
    def is_town(self) -> bool:
        """True for places of trains and buses, which are no parts of the names of houses."""
        return self.kind == PLACE and self.slot.startswith(("train", "bus"))

    @property
    def name(self) -> str:
        """Most frequent spelling of the states, else of the text, in lower case; empty if there is none."""
        counts: Counter[str] = Counter()
        for spelling, count in (self.state_spellings or self.text_spellings).items():
            counts[spelling.lower()] += count
        return max(counts, key=counts.__getitem__, default="")

    @property
    def is_respelled(self) -> bool:
        """True if the text spells the name in another way than the states."""
        in_state = {name_keys(spelling) for spelling in self.state_spellings}
        return bool(in_state) and not in_state.issuperset(map(name_keys, self.surfaces))

    def absorb(self, other: Entity) -> None:
        """Add the names of another entity that is the same."""
        self.keys |= other.keys
        self.state_spellings.update(other.state_spellings)
        self.text_spellings.update(other.text_spellings)

    def entry(self) -> NameEntry:
        """Return the entity as an entry of the row's names."""
        forms = dict.fromkeys([self.name, *self.state_spellings, *self.text_spellings])
        return NameEntry(self.slot, self.name, list(forms))


# Start, end and entity of a mention in an utterance.
EntitySpan = tuple[int, int, Entity]


class DialogueNames:
    """Named entities of one dialogue; spellings of one entity are joined."""

    def __init__(self) -> None:
        self.entities: list[Entity] = []
        self.by_keys: dict[Keys, Entity] = {}  # words of a name -> the entity that has it first
        # Words of the values that name nothing, and these values as a whole.
        self.other_words: set[str] = set()
        self.other_values: set[Keys] = set()

    def add_states(
        self,
        states: Mapping[int, Mapping[str, Sequence[str]]],
        name_slots: Collection[str],
        slot_of: Callable[[str, str], str] | None = None,
    ) -> None:
        """Add all values of the states; `slot_of` gives the name slot of a place that no other slot names."""
        values = [
            (slot, value)
            for index in sorted(states)
            for slot, alternatives in states[index].items()
            for value in alternatives
        ]
        # Names first, so that a place that is one of them refers to it.
        for is_place in (False, True):
            for slot, value in values:
                is_name = slot in name_slots and value != DONTCARE and excluded_value(value) is None
                if is_name and (kind_of(slot) == PLACE) is is_place:
                    self.add(slot if slot_of is None or self.find(slot, value) else slot_of(slot, value), value)
        for value in {value for slot, value in values if slot not in name_slots}:
            self.other_words.update(words(value).keys)
            self.other_values.add(name_keys(value))

    def add(self, slot: str, spelling: str, in_state: bool = True) -> None:
        """Add a name that fills a slot of the state or, with `in_state=False`, of an annotation."""
        entity = self.find_or_add(slot, spelling)
        if entity is not None:
            (entity.state_spellings if in_state else entity.text_spellings)[spelling] += 1

    def find(self, slot: str, spelling: str) -> Entity | None:
        """Return the entity that a value of a slot names, None if it names nothing or no known entity."""
        keys, kind = name_keys(spelling), kind_of(slot)
        if not _can_name(keys, kind):
            return None
        entity = self.by_keys.get(keys)
        if entity is None or (entity.kind != kind and PLACE not in (entity.kind, kind)):
            entity = self._closest(keys, kind)
        return entity

    def find_or_add(self, slot: str, spelling: str) -> Entity | None:
        """Return the entity that a value of a slot names, with the name added; None if it names nothing."""
        entity = self.find(slot, spelling)
        if entity is None:
            if not _can_name(name_keys(spelling), kind_of(slot)):
                return None
            entity = Entity(slot, kind_of(slot))
            self.entities.append(entity)
        self.add_name(entity, spelling)
        return entity

    def add_name(self, entity: Entity, spelling: str) -> None:
        """Add a name to an entity."""
        keys = name_keys(spelling)
        entity.keys.setdefault(keys)
        self.by_keys.setdefault(keys, entity)

    def _closest(self, keys: Keys, kind: str) -> Entity | None:
        scored = [(_score(keys, kind, entity), entity) for entity in self.entities]
        best = max((score for score, _ in scored), default=0.0)
        winners = [entity for score, entity in scored if score == best]
        # A short form of several names ("pizza hut") identifies none of them.
        return winners[0] if best >= 0.99 or (best > 0 and len(winners) == 1) else None

    def merge_partial_names(self) -> dict[int, Entity]:
        """Join each name that is a part of exactly one other with it, and drop names that describe only a kind."""
        owner = {id(entity): entity for entity in self.entities}
        for entity in list(self.entities):
            owners = [other for other in self.entities if other is not entity and _is_part_of(entity, other)]
            if len(owners) == 1:
                owners[0].absorb(entity)
                self.entities.remove(entity)
                owner = {key: owners[0] if value is entity else value for key, value in owner.items()}
        self.entities = [e for e in self.entities if e.kind == PLACE or not all(map(_is_type, e.keys))]
        return {key: entity for key, entity in owner.items() if entity in self.entities}


def _can_name(keys: Keys, kind: str) -> bool:
    return bool(keys) and (kind == PLACE or not _is_type(keys) or bool(TOWN_WORDS.intersection(keys)))


def _score(keys: Keys, kind: str, entity: Entity) -> float:
    scores = {other: _same_entity(keys, kind, other, entity.kind) for other in entity.keys}
    longest = entity.longest
    if len(keys) > len(longest) or scores[longest] == 0:
        # "pizza hut" is a part of both "pizza hut cherry hinton" and "pizza hut fen ditton", which are two.
        return max((score for other, score in scores.items() if score > 0.5 or other == longest), default=0.0)
    return max(scores.values())


def _is_part_of(entity: Entity, other: Entity) -> bool:
    keys, longer = entity.longest, other.longest
    if entity.is_town or other.is_town:
        return entity.is_town and other.is_town and len(keys) < len(longer) and longer[: len(keys)] == keys
    if other.kind == PLACE or not _is_part(keys, longer, entity.kind):
        return False
    if entity.kind in (other.kind, PLACE):
        return True
    # Of another kind, the longer name must hold the whole of the shorter one.
    return len(keys) > 1 and any(map(identifies, keys)) and contains(longer, keys)
