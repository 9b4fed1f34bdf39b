"""Generated data: dialogues in the format of MultiWOZ, and pairs of requests for a restaurant.

A dialogue is about one or two of hotel, restaurant and attraction and may end with a taxi between them. Names are drawn
from a given bank, so that the same dialogues can be generated with known and with unseen names.

If places have an area, a name tells the area before the model has read what the user asked for: a shortcut, as in real
data, where each hotel is in one place. `pair_with_misleading_names` shows which model takes it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset, Features, Value

from dair_hf.data.view_columns import VIEW_PREFIXES, view_prefix
from dair_hf.dialog.demo.names import (
    ACCEPT,
    AREAS,
    CHANGE,
    CHOOSE,
    DAYS,
    DOMAINS,
    DONE,
    PEOPLE,
    PRICES,
    RECOMMEND,
    RECOMMEND_TWO,
    REQUEST,
    SEARCH,
    TAXI,
    VALUES,
    NameBank,
    make_names,
)
from dair_hf.dialog.rows import SYSTEM, USER, Mention, NameEntry, RowBuilder, Utterance
from dair_hf.errors import DataError

# After this many user turns nothing is changed and no taxi is called.
_MAX_TURNS_BEFORE_END = 3
# Two that the system recommends, and one to which the user changes.
_PLACES_IN_A_VISIT = 3
MIN_NAMES = 4

# "[name]" is a restaurant.
_REQUESTS = (
    "a table at [name] , please",
    "book [name] for {people} people",
    "i want to eat at [name] on {day}",
    "is there a table for {people} at [name] ?",
    "[name] on {day} for {people} , please",
    "something {price} , please",
    "a {price} place for {people} people",
)
_REQUEST_VALUES = {"people": PEOPLE, "day": DAYS, "price": PRICES}
_KNOWN_NAMES, _OTHER_NAMES = 8, 16
# Given, as the type of a column cannot be inferred from rows without partners.
_REQUEST_FEATURES = Features(
    {"row_id": Value("string")}
    | {prefix + text: Value("string") for prefix in VIEW_PREFIXES for text in ("source", "target")}
)


class _Place(NamedTuple):
    slot: str
    name: str


class _Areas(NamedTuple):
    """Rule by which the name of a place follows the annotated area; the settings are those of `generate_dialogs`."""

    of_names: Mapping[str, str]
    misleading: bool
    errors: float

    def suit(self, name: str, annotated: str | None) -> bool:
        """Return whether a place may follow the request for an area."""
        return annotated is None or (self.of_names[name] == annotated) != self.misleading


class _Dialogue:
    """Dialogue under construction."""

    def __init__(self, rng: random.Random, names: NameBank, areas: _Areas | None) -> None:
        self.rng = rng
        # With areas names have a generator of their own: how many are drawn until one suits must not change the rest.
        self.choices = rng if areas is None else random.Random(f"names/{rng.random()}")
        self.bank = names
        self.areas = areas
        self.utterances: list[Utterance] = []
        self.mentions: list[Mention] = []
        self.places: list[_Place] = []
        self.state: dict[str, str] = {}
        self.states: dict[int, dict[str, list[str]]] = {}

    def draw_place(self, domain: str) -> _Place:
        """Draw a place of this domain that is not yet in the dialogue."""
        slot = f"{domain}-name"
        used = {place.name for place in self.places}
        area = self.state.get(f"{domain}-area")
        while True:
            # One draw per attempt, so that banks of equal size give dialogues that differ only in names.
            name = self.choices.choice(self.bank[slot])
            if name not in used and (self.areas is None or self.areas.suit(name, area)):
                self.places.append(_Place(slot, name))
                return self.places[-1]

    def say(self, speaker: str, template: str, **places: _Place) -> None:
        """Add an utterance. Each "{slot}" is drawn and added to the state, each "[role]" becomes a mention."""
        text: list[str] = []
        length = 0
        for word in template.split():
            if word.startswith("[") and word.endswith("]"):
                place = places[word[1:-1]]
                word = place.name
                self.mentions.append(Mention(*place, len(self.utterances), length, length + len(word)))
            elif word.startswith("{") and word.endswith("}"):
                slot = word[1:-1]
                word = self.rng.choice(VALUES[slot])
                self.state[slot] = self._annotated(slot, word)
            text.append(word)
            length += len(word) + 1
        self.utterances.append(Utterance(speaker, " ".join(text)))

    def _annotated(self, slot: str, value: str) -> str:
        """Return the annotated value of a slot: for some areas another one than the user names."""
        if self.areas is None or not slot.endswith("-area") or self.rng.random() >= self.areas.errors:
            return value
        return self.rng.choice([area for area in AREAS if area != value])

    def user(self, template: str, **places: _Place) -> None:
        self.say(USER, template, **places)
        self.states[len(self.utterances) - 1] = {slot: [value] for slot, value in self.state.items()}

    def system(self, template: str, **places: _Place) -> None:
        self.say(SYSTEM, template, **places)

    def visit(self, domain: str) -> None:
        """Add turns in which the user names a place or the system recommends one; the user may then change it."""
        rng = self.rng
        if rng.random() < 0.4:
            self.name_place(rng.choice(REQUEST[domain]), domain)
        else:
            searches: tuple[str, ...] = SEARCH[domain]
            if self.areas is not None:
                searches = tuple(text for text in searches if f"{{{domain}-area}}" in text)
            self.user(rng.choice(searches))
            place = self.draw_place(domain)
            if rng.random() < 0.3:
                self.system(rng.choice(RECOMMEND_TWO), name=place, other=self.draw_place(domain))
                self.state[place.slot] = place.name
                self.user(rng.choice(CHOOSE), name=place)
            else:
                self.system(rng.choice(RECOMMEND), name=place)
                self.state[place.slot] = place.name
                self.user(rng.choice(ACCEPT[domain]))
        if len(self.states) < _MAX_TURNS_BEFORE_END and rng.random() < 0.2:
            self.system(rng.choice(DONE))
            self.name_place(rng.choice(CHANGE[domain]), domain)

    def name_place(self, template: str, domain: str) -> None:
        """Add a turn in which the user names a place."""
        place = self.draw_place(domain)
        self.state[place.slot] = place.name
        self.user(template, name=place)

    def ride(self, domains: Sequence[str]) -> None:
        """Add a taxi between the places, which the user calls "the hotel" and so on."""
        departure, destination = self.rng.sample(list(domains), 2) if len(domains) > 1 else (domains[0], domains[0])
        usable = TAXI if len(domains) > 1 else tuple(t for t in TAXI if "{departure}" not in t)
        template = self.rng.choice(usable)
        for role, domain in (("departure", departure), ("destination", destination)):
            if "{" + role + "}" in template:
                self.state[f"taxi-{role}"] = self.state[f"{domain}-name"]
                template = template.replace("{" + role + "}", domain)
        self.user(template)


def _check_bank(names: NameBank, domains: Sequence[str], areas: _Areas | None) -> None:
    """Refuse banks with so few names that the draw of another one would not end."""
    for slot in (f"{domain}-name" for domain in domains):
        bank = names.get(slot, ())
        if len(set(bank)) < MIN_NAMES or len(set(bank)) != len(bank) or not all(name.strip() for name in bank):
            raise DataError(f"names: {slot}: expected {MIN_NAMES} or more different names, got {len(bank)}")
        counts = Counter(areas.of_names.get(name) for name in bank) if areas is not None else None
        if counts is not None and min(counts[area] for area in AREAS) < _PLACES_IN_A_VISIT:
            raise DataError(
                f"names: {slot}: expected {_PLACES_IN_A_VISIT} or more names of each area, got {dict(counts)}; give at "
                f"least {_PLACES_IN_A_VISIT * len(AREAS)} names, and areas_of(names) as areas"
            )


def generate_dialogs(
    n_dialogs: int,
    *,
    names: NameBank,
    seed: int = 0,
    prefix: str = "DEMO",
    domains: Sequence[str] = DOMAINS,
    areas: Mapping[str, str] | None = None,
    misleading: bool = False,
    annotation_errors: float = 0.0,
) -> Dataset:
    """Generate dialogues as rows (`dair_hf.dialog.rows.FEATURES`), one per user turn.

    With the same seed, banks of equal size give dialogues that differ only in names, and so do `misleading` and not.

    Args:
        n_dialogs: Number of dialogues, of one to five rows each.
        names: Name slot -> names to draw from, at least four per slot.
        seed: Random seed.
        prefix: Prefix of the dialogue ids.
        domains: What the dialogues are about: some of "hotel", "restaurant" and "attraction".
        areas: Name -> area in which the place lies (`areas_of`). Users then search by area, and a place lies in the
            area that is annotated. None: users search by anything, and names have nothing to do with areas.
        misleading: The place lies in another area than the annotated one.
        annotation_errors: Share of the requests for an area whose annotation is another area than the user names, in
            [0, 1]. The place follows the annotation. With errors a name tells the annotated area better than the text.

    Returns:
        The rows, dialogue by dialogue.

    Raises:
        DataError: A domain is unknown, a slot or an area has too few names, or `misleading` or `annotation_errors` are
            given without areas.

    Example:
        >>> from dair_hf.dialog.demo.names import make_names
        >>> rows = generate_dialogs(2, names=make_names("train"), seed=1)
        >>> rows[0]["row_id"], rows[0]["history"][0]["speaker"]
        ('DEMO00000/0', 'user')
    """
    if areas is None and (misleading or annotation_errors):
        raise DataError("areas: expected those of the names (areas_of) with misleading or annotation_errors, got none")
    how = None if areas is None else _Areas(areas, misleading, annotation_errors)
    _check_bank(names, domains, how)
    rng = random.Random(f"dialogs/{seed}")
    builder = RowBuilder()
    for index in range(n_dialogs):
        dialogue = _Dialogue(rng, names, how)
        visited = rng.sample(tuple(domains), min(rng.choice((1, 1, 1, 2)), len(domains)))
        for position, domain in enumerate(visited):
            if position:
                dialogue.system(rng.choice(DONE))
            dialogue.visit(domain)
        if len(dialogue.states) < _MAX_TURNS_BEFORE_END and rng.random() < 0.4:
            dialogue.system(rng.choice(DONE))
            dialogue.ride(visited)
        builder.add_dialogue(
            f"{prefix}{index:05d}",
            dialogue.utterances,
            dialogue.states,
            dialogue.mentions,
            [NameEntry(place.slot, place.name, [place.name]) for place in dict.fromkeys(dialogue.places)],
        )
    return builder.build()


def pair_with_misleading_names(rows: Dataset, misleading: Dataset) -> Dataset:
    """Add the same dialogues with misleading names as second partners (`augmented_2_history`, `augmented_2_state`).

    Turns in which no name could mislead have none: those whose state lacks the area, or the name, of a place.
    """
    partners: dict[str, list[Any]] = {"history": [], "state": []}
    for row, twin in zip(rows, misleading, strict=True):
        state = {entry["slot"] for entry in row["state"]}
        misleads = any({f"{domain}-area", f"{domain}-name"} <= state for domain in DOMAINS)
        for name, values in partners.items():
            values.append(twin[name] if misleads else None)
    if not any(partners["state"]):
        raise DataError(f"expected turns with area and name of a place, got none of {len(rows)}; generate more")
    for name, values in partners.items():
        rows = rows.add_column(view_prefix(2) + name, values, feature=rows.features[name])
    return rows


def example_pairs(n_rows: int = 400, *, seed: int = 0) -> Dataset:
    """Generate requests for a restaurant with their slots as target texts: small data to try the library with.

    The originals name one of 8 restaurants. A partner is the same request for one of 16 other restaurants. Requests
    without a name have no partner. A model of a few thousand parameters learns all 24 names in seconds from the pairs,
    and only 8 from the originals.

    Args:
        n_rows: Number of rows.
        seed: Random seed; the names are the same for every seed.

    Returns:
        Rows with `row_id`, `source`, `target`, `augmented_source` and `augmented_target`.

    Example:
        >>> row = example_pairs(2)[0]
        >>> row["source"], row["target"]
        ('a table at sedus nuflop , please', 'name = sedus nuflop')
        >>> row["augmented_source"], row["augmented_target"]
        ('a table at bitho , please', 'name = bitho')
    """
    rng = random.Random(f"requests/{seed}")
    banks = (make_names("train", names_per_slot=_KNOWN_NAMES), make_names("test", names_per_slot=_OTHER_NAMES))
    rows = []
    for number in range(n_rows):
        request = rng.choice(_REQUESTS)
        values = {slot: rng.choice(choices) for slot, choices in _REQUEST_VALUES.items() if f"{{{slot}}}" in request}
        row: dict[str, str | None] = {"row_id": f"{seed}/{number}"}
        for prefix, bank in zip(VIEW_PREFIXES, banks, strict=True):
            name = rng.choice(bank["restaurant-name"])
            asked = {"name": name, **values} if "[name]" in request else values
            exists = not prefix or "[name]" in request
            source = request.replace("[name]", name).format(**values)
            row[f"{prefix}source"] = source if exists else None
            row[f"{prefix}target"] = " ; ".join(f"{slot} = {v}" for slot, v in asked.items()) if exists else None
        rows.append(row)
    return Dataset.from_list(rows, features=_REQUEST_FEATURES)
