"""Slot names that a convention compares or that references have, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping

from dair_hf.errors import DataError, SlotNameWarning
from dair_hf.metrics.state.conventions import (
    MULTIWOZ_BUS_SLOTS,
    MULTIWOZ_DOMAINS,
    MULTIWOZ_SLOTS,
    Convention,
)
from dair_hf.metrics.state.normalizers import normalize_slot

_FULL_NAMES = {"arrive": "arriveby", "leave": "leaveat"}
_MULTIWOZ_ALL_DOMAINS = {*MULTIWOZ_DOMAINS, "bus"}
_MAX_SHOWN = 5  # unknown slots that a warning lists


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
        self._spellings = {fold(name): name for name in sorted(self.in_references)}
        self._known = frozenset(map(fold, (*self.schema, *known)))

    def __contains__(self, slot: str) -> bool:
        return slot in self.in_references or (fold(slot) in self._known and fold(slot) not in self._spellings)

    def schema_lacks(self, slot: str) -> bool:
        """Return whether the schema, as given or that of MultiWOZ, is known and does not have the slot."""
        if slot in self:
            return False
        return self._has_schema or (_domains(self.in_references) or {domain_of(slot)}) <= _MULTIWOZ_ALL_DOMAINS

    def nearest(self, slot: str) -> str | None:
        """Return the known slot with the most similar spelling; None if no spelling is similar."""
        if fold(slot) in self._spellings:
            return self._spellings[fold(slot)]
        known = {*self.in_references, *(name for name in self.schema if name in self)}
        domain = domain_of(slot)
        if domain not in _domains(known):
            return _nearest(slot, known)
        # A common domain would make all its slots look similar.
        in_domain = {name.partition("-")[2]: name for name in known if domain_of(name) == domain}
        return in_domain.get(str(_nearest(slot.partition("-")[2], in_domain)))


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
    """Return the slot names of references, and check the names in the convention against them.

    Args:
        references: Gold states.
        convention: The convention, which also says how names are normalized.

    Raises:
        DataError: `domains`, `slots` or `consistency_slots` have a name that neither the references nor MultiWOZ have.
            Not if the references have no slot at all.

    Example:
        >>> reference_names([{"hotel-area": ["east"]}], Convention(domains=("hotle",)))
        Traceback (most recent call last):
        dair_hf.errors.DataError: domains: no reference has 'hotle'; did you mean 'hotel'? References have: hotel
    """
    normalize = functools.partial(normalize_slot, convention.normalizer)
    in_references = {normalize(slot) for slot in {slot for reference in references for slot in reference}}
    schema = None if convention.schema_slots is None else map(normalize, convention.schema_slots)
    # The evaluator of SGD reads the schema of MultiWOZ 2.2.
    of_schema = (*convention.categorical_slots, *MULTIWOZ_BUS_SLOTS) if convention.match == "token_sort" else ()
    names = SlotNames(in_references, schema, known=of_schema)
    if not in_references:
        return names
    domains = _domains([*in_references, *names.schema])
    for domain in convention.domains or ():
        if domain not in domains and domain not in MULTIWOZ_DOMAINS:
            raise _unknown_name("domains", domain, _nearest(domain, domains), _domains(in_references))
    for field in ("consistency_slots", "slots"):
        for slot in getattr(convention, field) or ():
            if normalize(slot) not in names:
                raise _unknown_name(field, slot, names.nearest(slot), _of_same_domains(in_references, [slot]))
    return names


def require_compared_slots(names: SlotNames, convention: Convention) -> None:
    """Raise DataError if references have slots, but `domains` and `slots` exclude all of them."""
    compared_name = slot_filter(convention)
    if names.in_references and not any(map(compared_name, names.in_references)):
        chosen = [f"{key} {'+'.join(value)}" for key in ("domains", "slots") if (value := getattr(convention, key))]
        raise DataError(
            f"nothing to compare: no reference has a slot of {' and '.join(chosen)}; the domains of the references "
            f"are {', '.join(sorted(_domains(names.in_references)))}"
        )


def warn_about_names(unknown: Mapping[str, int], names: SlotNames, convention: Convention) -> None:
    """Warn of unknown slots (slot -> number of turns), and of fuzzy matching without categorical slots."""
    if unknown:
        shown = sorted(unknown, key=lambda slot: (-unknown[slot], slot))[:_MAX_SHOWN]
        parts = []
        for slot in shown:
            is_ignored = convention.extra == "ignore" or (
                convention.extra == "penalise_known" and names.schema_lacks(slot)
            )
            turns = f"{unknown[slot]} turn{'s' if unknown[slot] > 1 else ''}"
            nearest = names.nearest(slot)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            parts.append(f"{slot!r} ({turns}, {'ignored' if is_ignored else 'counted as wrong'}{hint})")
        if len(unknown) > _MAX_SHOWN:
            parts.append(f"{len(unknown) - _MAX_SHOWN} more")
        known = ", ".join(_of_same_domains(names.in_references, shown)) or "no slots"
        _warn(f"predictions have slots that no reference has: {', '.join(parts)}. References have: {known}")
    if convention.match == "token_sort" and names.in_references:
        if {fold(slot) for slot in convention.categorical_slots}.isdisjoint(map(fold, names.in_references)):
            _warn(
                "no slot of the references is in categorical_slots, so all are matched fuzzily; set it to the slots "
                "that the schema of the data calls categorical"
            )


def _warn(message: str) -> None:
    warnings.warn(message, SlotNameWarning, stacklevel=6)


def _domains(slots: Iterable[str]) -> set[str]:
    return {domain_of(slot) for slot in slots}


def _of_same_domains(slots: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the slots that share a domain with the others, or all slots if none does."""
    domains = _domains(others)
    return sorted(slot for slot in slots if domain_of(slot) in domains) or sorted(slots)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1)), None)


def _unknown_name(field: str, name: str, nearest: str | None, known: Iterable[str]) -> DataError:
    hint = f"did you mean {nearest!r}? " if nearest else ""
    return DataError(f"{field}: no reference has {name!r}; {hint}References have: {', '.join(sorted(known))}")
