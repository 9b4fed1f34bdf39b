"""Slot names: which ones a convention compares, and which ones references and their schema have."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping

from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import (
    MULTIWOZ_BUS_SLOTS,
    MULTIWOZ_DOMAINS,
    MULTIWOZ_SLOTS,
    Convention,
)
from dair_hf.metrics.state.normalizers import normalize_slot

_FULL_NAMES = {"arrive": "arriveby", "leave": "leaveat"}
_MULTIWOZ_ALL_DOMAINS = {*MULTIWOZ_DOMAINS, "bus"}


def domain_of(slot: str) -> str:
    """Return the domain of a slot: the part before the first hyphen."""
    return slot.partition("-")[0]


@functools.lru_cache(maxsize=1 << 12)
def fold(slot: str) -> str:
    """Return the same text for all spellings of a slot; the domain is not changed.

    Example:
        >>> fold("hotel-book day"), fold("hotel-bookday"), fold("train-arriveBy"), fold("train-arrive")
        ('hotel-day', 'hotel-day', 'train-arriveby', 'train-arriveby')
    """
    domain, hyphen, name = slot.partition("-")
    name = re.sub(r"[\W_]", "", name.lower()).removeprefix("book")
    return domain + hyphen + _FULL_NAMES.get(name, name)


class SlotNames:
    """Slot names of the references, and of their schema unless the references spell them differently."""

    def __init__(
        self, in_references: Iterable[str], schema: Iterable[str] | None = None, known: Iterable[str] = ()
    ) -> None:
        self.in_references = frozenset(in_references)
        self.schema = MULTIWOZ_SLOTS if schema is None else tuple(schema)
        self._has_schema = schema is not None
        self._spellings = frozenset(map(fold, self.in_references))
        self._known = frozenset(map(fold, (*self.schema, *known)))

    def __contains__(self, slot: str) -> bool:
        return slot in self.in_references or (fold(slot) in self._known and fold(slot) not in self._spellings)

    def schema_lacks(self, slot: str) -> bool:
        """Return whether a schema (the given one or MultiWOZ's) is known and does not have the slot."""
        if slot in self:
            return False
        domains = {domain_of(name) for name in self.in_references or [slot]}
        return self._has_schema or domains <= _MULTIWOZ_ALL_DOMAINS


@functools.lru_cache(maxsize=32)
def slot_filter(convention: Convention) -> Callable[[str], str | None]:
    """Return a function from a slot to its normalized name, or to None if the convention does not compare it."""
    slots = None
    if convention.slots is not None:
        slots = {normalize_slot(convention.normalizer, slot) for slot in convention.slots}

    @functools.lru_cache(maxsize=1 << 12)
    def compared_name(slot: str) -> str | None:
        slot = normalize_slot(convention.normalizer, slot)
        if slots is not None and slot not in slots:
            return None
        if convention.domains is not None and domain_of(slot) not in convention.domains:
            return None
        return slot

    return compared_name


def reference_names(references: Iterable[Mapping[str, object]], convention: Convention) -> SlotNames:
    """Return the slot names of references, and refuse a convention that names slots that they do not have."""
    normalize = functools.partial(normalize_slot, convention.normalizer)
    in_references = {normalize(slot) for slot in {slot for reference in references for slot in reference}}
    schema = None if convention.schema_slots is None else map(normalize, convention.schema_slots)
    # The evaluator of SGD reads the schema of MultiWOZ 2.2.
    of_schema = (*convention.categorical_slots, *MULTIWOZ_BUS_SLOTS) if convention.match == "token_sort" else ()
    names = SlotNames(in_references, schema, known=of_schema)
    domains = {*map(domain_of, (*in_references, *names.schema)), *MULTIWOZ_DOMAINS}
    unknown = [domain for domain in convention.domains or () if domain not in domains]
    unknown += [
        slot
        for slot in (*(convention.slots or ()), *(convention.consistency_slots or ()))
        if normalize(slot) not in names
    ]
    if unknown and in_references:  # a misspelt name would leave out what it means
        raise DataError(f"domains or slots: no reference has {unknown[0]!r}, only {', '.join(sorted(in_references))}")
    return names
