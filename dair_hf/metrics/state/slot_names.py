"""Slot names: those that a convention compares, those that references hold, and the nearest one to an unknown name."""

from __future__ import annotations

import difflib
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping

from dair_hf.errors import DataError, SlotNameWarning
from dair_hf.metrics.state.conventions import MULTIWOZ_DOMAINS, MULTIWOZ_SLOTS, Convention
from dair_hf.metrics.state.normalizers import normalize_slot

_SHORT_NAMES = {"arrive": "arriveby", "leave": "leaveat"}
_SHOWN = 5  # unknown names that one message lists


@functools.lru_cache(maxsize=1 << 12)
def fold(slot: str) -> str:
    """Reduce a slot name to what all spellings of it share; the domain stays as it is.

    Example:
        >>> fold("hotel-book day"), fold("hotel-bookday"), fold("train-arriveBy"), fold("train-arrive")
        ('hotel-day', 'hotel-day', 'train-arriveby', 'train-arriveby')
    """
    domain, hyphen, name = slot.partition("-")
    name = re.sub(r"[\W_]", "", name.lower()).removeprefix("book")
    return domain + hyphen + _SHORT_NAMES.get(name, name)


_MULTIWOZ_ALL = {*MULTIWOZ_DOMAINS, "bus"}


class SlotNames:
    """The slot names of a set of references, and those of their schema that the references do not spell otherwise.

    Args:
        held: The names that the references hold.
        schema: All names of their schema; None: the slots of MultiWOZ, if the references hold its domains only.
        also: Further names that are known, in any spelling.

    Example:
        >>> names = SlotNames(["hotel-pricerange", "hotel-stars"])
        >>> "hotel-area" in names, "hotel-price range" in names, names.nearest("hotel-price range")
        (True, False, 'hotel-pricerange')
    """

    def __init__(self, held: Iterable[str], schema: Iterable[str] | None = None, also: Iterable[str] = ()) -> None:
        self.held = frozenset(held)
        self.schema = MULTIWOZ_SLOTS if schema is None else tuple(schema)
        self._has_schema = schema is not None
        self._spelt = {fold(name): name for name in sorted(self.held)}
        self._known = frozenset(map(fold, (*self.schema, *also)))

    def __contains__(self, slot: str) -> bool:
        return slot in self.held or (fold(slot) in self._known and fold(slot) not in self._spelt)

    def schema_lacks(self, slot: str) -> bool:
        """Tell whether the schema is known, as given or as MultiWOZ's, and has no such slot."""
        return slot not in self and (self._has_schema or (_domains(self.held) or _domains([slot])) <= _MULTIWOZ_ALL)

    def nearest(self, slot: str) -> str | None:
        """Return the known name that is written most like `slot`; None where none is."""
        if fold(slot) in self._spelt:
            return self._spelt[fold(slot)]
        known = {*self.held, *(name for name in self.schema if name in self)}
        domain = slot.partition("-")[0]
        if domain not in _domains(known):
            return _nearest(slot, known)
        # All names of a domain are alike at their beginning, so only the rest is compared.
        rest = {name.partition("-")[2]: name for name in known if name.partition("-")[0] == domain}
        return rest.get(str(_nearest(slot.partition("-")[2], rest)))


@functools.lru_cache(maxsize=32)
def slot_filter(convention: Convention) -> Callable[[str], str | None]:
    """Build the function slot -> the name under which it is compared; None for a slot that does not count."""
    slots = None
    if convention.slots is not None:
        slots = {normalize_slot(convention.normalizer, slot) for slot in convention.slots}

    @functools.lru_cache(maxsize=1 << 12)
    def compared(slot: str) -> str | None:
        slot = normalize_slot(convention.normalizer, slot)
        if slots is not None and slot not in slots:
            return None
        if convention.domains is not None and slot.partition("-")[0] not in convention.domains:
            return None
        return slot

    return compared


def reference_names(references: Iterable[Mapping[str, object]], convention: Convention) -> SlotNames:
    """Collect the slot names of references and check the names in a convention against them.

    Args:
        references: Gold states.
        convention: A resolved convention.

    Returns:
        The names, normalized as the convention does.

    Raises:
        DataError: `domains`, `slots` or `consistency_slots` hold a name that neither the references nor MultiWOZ have;
            the message says the nearest one. Not where the references hold no slot at all.

    Example:
        >>> reference_names([{"hotel-area": ["east"]}], Convention(domains=("hotle",)))
        Traceback (most recent call last):
        dair_hf.errors.DataError: domains: no reference holds 'hotle'; did you mean 'hotel'? They hold hotel
    """
    held: set[str] = set()
    for reference in references:
        held.update(reference)
    held = {normalize_slot(convention.normalizer, slot) for slot in held}
    schema = None
    if convention.schema_slots is not None:
        schema = [normalize_slot(convention.normalizer, slot) for slot in convention.schema_slots]
    names = SlotNames(held, schema, convention.categorical_slots if convention.match == "token_sort" else ())
    if not held:
        return names
    domains = {*_domains(held), *_domains(names.schema)}
    for domain in convention.domains or ():
        if domain not in domains and domain not in MULTIWOZ_DOMAINS:
            raise _unknown("domains", domain, _nearest(domain, domains), _domains(held))
    for field in ("consistency_slots", "slots"):
        for slot in getattr(convention, field) or ():
            if normalize_slot(convention.normalizer, slot) not in names:
                raise _unknown(field, slot, names.nearest(slot), _alike(held, [slot]))
    return names


def check_something_counts(names: SlotNames, convention: Convention) -> None:
    """Raise DataError where references hold slots and `domains` and `slots` leave out all of them."""
    compared = slot_filter(convention)
    if names.held and not any(map(compared, names.held)):
        chosen = [f"{key} {'+'.join(value)}" for key in ("domains", "slots") if (value := getattr(convention, key))]
        raise DataError(
            f"nothing is left to compare: no reference holds a slot of {' and '.join(chosen)}; they hold "
            f"{', '.join(sorted(_domains(names.held)))}"
        )


def warn_about_names(unknown: Mapping[str, int], names: SlotNames, convention: Convention) -> None:
    """Warn of predicted slots that no reference holds, and of fuzzy matching that finds no categorical slot.

    Args:
        unknown: Unknown slot -> number of turns that predict it.
        names: The names of the references.
        convention: The convention in use.
    """
    if unknown:
        shown = sorted(unknown, key=lambda slot: (-unknown[slot], slot))[:_SHOWN]
        parts = []
        for slot in shown:
            ignored = convention.extra == "ignore" or (
                convention.extra == "penalise_known" and names.schema_lacks(slot)
            )
            nearest = names.nearest(slot)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            turns = f"{unknown[slot]} turn{'s' if unknown[slot] > 1 else ''}"
            parts.append(f"{slot!r} ({turns}, {'ignored' if ignored else 'counted as wrong'}{hint})")
        if len(unknown) > _SHOWN:
            parts.append(f"{len(unknown) - _SHOWN} more")
        warnings.warn(
            f"predictions hold slots that no reference holds: {', '.join(parts)}. The references hold "
            f"{', '.join(_alike(names.held, shown)) or 'no slot'}",
            SlotNameWarning,
            stacklevel=5,
        )
    if convention.match == "token_sort" and names.held:
        if not {fold(slot) for slot in convention.categorical_slots} & {fold(slot) for slot in names.held}:
            warnings.warn(
                "none of the references' slots is in categorical_slots, so all are matched fuzzily; give those that "
                "their schema calls categorical",
                SlotNameWarning,
                stacklevel=5,
            )


def _domains(slots: Iterable[str]) -> set[str]:
    return {slot.partition("-")[0] for slot in slots}


def _alike(slots: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the slots in the domains of the others; all slots where there are none."""
    domains = _domains(others)
    return sorted(slot for slot in slots if slot.partition("-")[0] in domains) or sorted(slots)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1)), None)


def _unknown(field: str, name: str, nearest: str | None, known: Iterable[str]) -> DataError:
    hint = f"did you mean {nearest!r}? They" if nearest else "they"
    return DataError(f"{field}: no reference holds {name!r}; {hint} hold {', '.join(sorted(known))}")
