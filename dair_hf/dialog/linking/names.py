"""Named entities of one dialogue, collected from states and annotations: spellings of one entity are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dair_hf.dialog.linking.spelling import (
    PLACE,
    Keys,
    contains,
    identifies,
    is_part,
    is_type,
    kind_of,
    name_keys,
    same_entity,
)
from dair_hf.dialog.linking.vocabulary import TOWN_WORDS
from dair_hf.dialog.linking.words import words
from dair_hf.dialog.text.rows import NameEntry
from dair_hf.dialog.text.spans import excluded_value
from dair_hf.metrics.state.normalizers import DONTCARE


@dataclass(eq=False)
class Entity:
    """Named entity of a dialogue.

    Attributes:
        slot: First slot that it fills.
        kind: Hotel, restaurant, attraction or place.
        keys: Its names as compared words, in the order in which they were added.
        state_spellings: Spelling in the states -> count.
        text_spellings: Spelling in the text and its annotations -> count; 0 for parts of the name.
        surfaces: Spellings of its mentions.
    """

    slot: str
    kind: str
    keys: dict[Keys, None] = field(default_factory=dict)
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
    """Named entities of one dialogue.

    Attributes:
        entities: The entities, in the order in which they were added.
        by_keys: Compared words of each name -> the entity that they were first added to.
        other_words: Words of values that name nothing.
        other_values: Compared words of each of these values.

    Example:
        >>> names = DialogueNames()
        >>> names.add("hotel-name", "warkworth house")
        >>> names.add("taxi-departure", "the warkworth")
        >>> [entity.entry().forms for entity in names.entities]
        [['warkworth house', 'the warkworth']]
    """

    def __init__(self) -> None:
        self.entities: list[Entity] = []
        self.by_keys: dict[Keys, Entity] = {}
        self.other_words: set[str] = set()
        self.other_values: set[Keys] = set()

    def add_states(
        self,
        states: Mapping[int, Mapping[str, Sequence[str]]],
        name_slots: Collection[str],
        slot_of: Callable[[str, str], str] = lambda slot, value: slot,
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
                    self.add(slot if self.find(slot, value) else slot_of(slot, value), value)
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
        self.entities = [e for e in self.entities if e.kind == PLACE or not all(map(is_type, e.keys))]
        return {key: entity for key, entity in owner.items() if entity in self.entities}


def _can_name(keys: Keys, kind: str) -> bool:
    return bool(keys) and (kind == PLACE or not is_type(keys) or bool(TOWN_WORDS.intersection(keys)))


def _score(keys: Keys, kind: str, entity: Entity) -> float:
    scores = {other: same_entity(keys, kind, other, entity.kind) for other in entity.keys}
    longest = entity.longest
    if len(keys) > len(longest) or scores[longest] == 0:
        # "pizza hut" is a part of both "pizza hut cherry hinton" and "pizza hut fen ditton", which are two.
        return max((score for other, score in scores.items() if score > 0.5 or other == longest), default=0.0)
    return max(scores.values())


def _is_part_of(entity: Entity, other: Entity) -> bool:
    keys, longer = entity.longest, other.longest
    if entity.is_town or other.is_town:
        return entity.is_town and other.is_town and len(keys) < len(longer) and longer[: len(keys)] == keys
    if other.kind == PLACE or not is_part(keys, longer, entity.kind):
        return False
    if entity.kind in (other.kind, PLACE):
        return True
    # Of another kind, the longer name must hold the whole of the shorter one.
    return len(keys) > 1 and any(map(identifies, keys)) and contains(longer, keys)
