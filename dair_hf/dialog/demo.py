"""Generated dialogues in the format of MultiWOZ, for demos and tests without downloads.

A dialogue is about one or two of hotel, restaurant and attraction and may end with a taxi between them. Names are drawn
from a given bank, so that the same dialogues can be generated with known and with unseen names. Names are made of
syllables; each word belongs to exactly one of the three name splits.

If places have an area, a name tells the area before the model has read what the user asked for: a shortcut, as in real
data, where each hotel is in one place. `pair_with_misleading_names` shows which model takes it.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset

from dair_hf.data.view_columns import VIEW_PREFIXES, view_prefix
from dair_hf.dialog.text.rows import SYSTEM, USER, Mention, NameEntry, RowBuilder, Utterance
from dair_hf.errors import DataError
from dair_hf.metrics.state.conventions import NAME_SLOTS

NameBank = Mapping[str, Sequence[str]]
NAMES_PER_SLOT = 24
DOMAINS = ("hotel", "restaurant", "attraction")
NAME_SPLITS = ("train", "validation", "test")

_ONSETS = tuple("b br c ch d dr f fl g gr h j k l m n p pl qu r s sh st t th tr v w y z".split())
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "x")
# After this many user turns nothing is changed and no taxi is called.
_MAX_TURNS_BEFORE_END = 3
_WORDS_IN_A_NAME = (1, 1, 2, 2, 3)
# Two that the system recommends, and one to which the user changes.
_PLACES_IN_A_VISIT = 3

_AREAS = ("north", "south", "east", "west", "centre")
_PRICES = ("cheap", "moderate", "expensive")
_STARS = ("2", "3", "4", "5")
_FOODS = ("indian", "italian", "chinese", "thai", "french", "british")
_TYPES = ("museum", "park", "college", "theatre", "cinema", "church")
_PEOPLE = ("1", "2", "3", "4", "5", "6", "7", "8")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIMES = ("09:15", "10:30", "11:45", "12:00", "13:15", "15:30", "17:45", "18:00", "19:15", "20:30")

_VALUES = {
    "hotel-area": _AREAS,
    "hotel-pricerange": _PRICES,
    "hotel-stars": _STARS,
    "hotel-bookpeople": _PEOPLE,
    "hotel-bookday": _DAYS,
    "restaurant-area": _AREAS,
    "restaurant-pricerange": _PRICES,
    "restaurant-food": _FOODS,
    "restaurant-bookpeople": _PEOPLE,
    "restaurant-booktime": _TIMES,
    "attraction-area": _AREAS,
    "attraction-type": _TYPES,
    "taxi-leaveat": _TIMES,
}

# Descriptions by the user. "{hotel-area}" is replaced by a value of the slot.
_SEARCH = {
    "hotel": (
        "i need a {hotel-pricerange} hotel in the {hotel-area} .",
        "find me a hotel with {hotel-stars} stars in the {hotel-area} .",
        "is there a {hotel-pricerange} hotel with {hotel-stars} stars ?",
    ),
    "restaurant": (
        "i want {restaurant-food} food in the {restaurant-area} .",
        "is there a {restaurant-pricerange} restaurant in the {restaurant-area} ?",
        "find me a {restaurant-pricerange} restaurant with {restaurant-food} food .",
    ),
    "attraction": (
        "i would like to see a {attraction-type} .",
        "is there a {attraction-type} in the {attraction-area} ?",
        "what can i visit in the {attraction-area} ?",
    ),
}
# "[name]" is replaced by a place, "[other]" by a second one of the same kind.
_RECOMMEND = ("how about [name] ?", "i recommend [name] .", "[name] would suit you .", "there is [name] .")
_RECOMMEND_TWO = ("there are [name] and [other] .", "i can offer [other] or [name] .")
_ACCEPT = {
    "hotel": (
        "great , book it for {hotel-bookpeople} people .",
        "yes , book it from {hotel-bookday} .",
        "i take that , for {hotel-bookpeople} people from {hotel-bookday} .",
    ),
    "restaurant": (
        "great , a table for {restaurant-bookpeople} people .",
        "yes , book it at {restaurant-booktime} .",
        "i take that , for {restaurant-bookpeople} people at {restaurant-booktime} .",
    ),
    "attraction": ("that sounds good .", "yes , i want to see that .", "great , thanks ."),
}
_CHOOSE = ("i like [name] .", "then i choose [name] .", "let it be [name] .")
_REQUEST = {
    "hotel": (
        "i want to stay at [name] .",
        "can you book the hotel [name] for {hotel-bookpeople} people ?",
        "please reserve [name] from {hotel-bookday} .",
    ),
    "restaurant": (
        "i want to eat at [name] .",
        "book a table at [name] for {restaurant-bookpeople} people .",
        "can you reserve [name] at {restaurant-booktime} ?",
    ),
    "attraction": ("i want to visit [name] .", "tell me about [name] ."),
}
_CHANGE = {
    "hotel": ("i would rather stay at [name] .", "please change the hotel to [name] ."),
    "restaurant": ("i would rather eat at [name] .", "please change the restaurant to [name] ."),
    "attraction": ("i would rather visit [name] .", "please change that to [name] ."),
}
_DONE = ("done . anything else ?", "it is booked .", "all set . what else ?")
_TAXI = (
    "i need a taxi to the {destination} .",
    "get me a taxi from the {departure} to the {destination} .",
    "a taxi should take me from the {departure} at {taxi-leaveat} .",
    "i need a taxi to the {destination} at {taxi-leaveat} .",
)

# Requests of `example_pairs`; "[name]" is a restaurant.
_REQUESTS = (
    "a table at [name] , please",
    "book [name] for {people} people",
    "i want to eat at [name] on {day}",
    "is there a table for {people} at [name] ?",
    "[name] on {day} for {people} , please",
    "something {price} , please",
    "a {price} place for {people} people",
)
_REQUEST_VALUES = {"people": _PEOPLE, "day": _DAYS, "price": _PRICES}
_KNOWN_NAMES, _OTHER_NAMES = 8, 16


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


def _text_words() -> set[str]:
    """Return all words of the dialogues outside of names."""
    texts: list[str] = [*_RECOMMEND, *_RECOMMEND_TWO, *_CHOOSE, *_DONE, *_TAXI]
    for templates in (_SEARCH, _ACCEPT, _REQUEST, _CHANGE, _VALUES):
        for group in templates.values():
            texts.extend(group)
    return {word for text in texts for word in text.split()} | {"hotel", "restaurant", "attraction"}


def _word_split(word: str) -> str:
    """Return the name split of a word; each split has a fixed third of all words."""
    return NAME_SPLITS[zlib.crc32(word.encode()) % len(NAME_SPLITS)]


def _draw_word(rng: random.Random, split: str, taken: set[str]) -> str:
    while True:
        syllables = rng.choice((2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_CODAS)
        if 4 <= len(word) <= 7 and word not in taken and _word_split(word) == split:
            taken.add(word)
            return word


def make_names(split: str, seed: int = 0, names_per_slot: int = NAMES_PER_SLOT) -> dict[str, list[str]]:
    """Draw a bank of names. No word is in two names or in two splits.

    Args:
        split: "train", "validation" or "test". Banks of different splits share no word, with any seeds.
        seed: Random seed.
        names_per_slot: Number of names for each of hotel, restaurant and attraction.

    Returns:
        Name slot -> names of one to three lower-case words.

    Raises:
        DataError: The split is unknown.

    Example:
        >>> sorted(make_names("train", seed=0, names_per_slot=2))
        ['attraction-name', 'hotel-name', 'restaurant-name']
    """
    if split not in NAME_SPLITS:
        raise DataError(f"unknown name split {split!r}; choose one of {', '.join(NAME_SPLITS)}")
    rng = random.Random(f"names/{split}/{seed}")
    taken = _text_words()
    return {
        slot: [
            " ".join(_draw_word(rng, split, taken) for _ in range(rng.choice(_WORDS_IN_A_NAME)))
            for _ in range(names_per_slot)
        ]
        for slot in NAME_SLOTS
    }


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

    Raises:
        DataError: `n_rows` is not positive.

    Example:
        >>> row = example_pairs(2)[0]
        >>> row["source"], row["target"]
        ('a table at sedus nuflop , please', 'name = sedus nuflop')
        >>> row["augmented_source"], row["augmented_target"]
        ('a table at bitho , please', 'name = bitho')
    """
    if n_rows < 1:
        raise DataError(f"n_rows: expected at least 1, found {n_rows}; ask for some rows")
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
    return Dataset.from_list(rows)


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
                word = self.rng.choice(_VALUES[slot])
                self.state[slot] = self._annotated(slot, word)
            text.append(word)
            length += len(word) + 1
        self.utterances.append(Utterance(speaker, " ".join(text)))

    def _annotated(self, slot: str, value: str) -> str:
        """Return the annotated value of a slot: for some areas another one than the user names."""
        if self.areas is None or not slot.endswith("-area") or self.rng.random() >= self.areas.errors:
            return value
        return self.rng.choice([area for area in _AREAS if area != value])

    def user(self, template: str, **places: _Place) -> None:
        self.say(USER, template, **places)
        self.states[len(self.utterances) - 1] = {slot: [value] for slot, value in self.state.items()}

    def system(self, template: str, **places: _Place) -> None:
        self.say(SYSTEM, template, **places)

    def visit(self, domain: str) -> None:
        """Add turns in which the user names a place or the system recommends one; the user may then change it."""
        rng = self.rng
        if rng.random() < 0.4:
            self.name_place(rng.choice(_REQUEST[domain]), domain)
        else:
            searches: tuple[str, ...] = _SEARCH[domain]
            if self.areas is not None:
                searches = tuple(text for text in searches if f"{{{domain}-area}}" in text)
            self.user(rng.choice(searches))
            place = self.draw_place(domain)
            if rng.random() < 0.3:
                self.system(rng.choice(_RECOMMEND_TWO), name=place, other=self.draw_place(domain))
                self.state[place.slot] = place.name
                self.user(rng.choice(_CHOOSE), name=place)
            else:
                self.system(rng.choice(_RECOMMEND), name=place)
                self.state[place.slot] = place.name
                self.user(rng.choice(_ACCEPT[domain]))
        if len(self.states) < _MAX_TURNS_BEFORE_END and rng.random() < 0.2:
            self.system(rng.choice(_DONE))
            self.name_place(rng.choice(_CHANGE[domain]), domain)

    def name_place(self, template: str, domain: str) -> None:
        """Add a turn in which the user names a place."""
        place = self.draw_place(domain)
        self.state[place.slot] = place.name
        self.user(template, name=place)

    def ride(self, domains: Sequence[str]) -> None:
        """Add a taxi between the places, which the user calls "the hotel" and so on."""
        departure, destination = self.rng.sample(list(domains), 2) if len(domains) > 1 else (domains[0], domains[0])
        usable = _TAXI if len(domains) > 1 else tuple(t for t in _TAXI if "{departure}" not in t)
        template = self.rng.choice(usable)
        for role, domain in (("departure", departure), ("destination", destination)):
            if "{" + role + "}" in template:
                self.state[f"taxi-{role}"] = self.state[f"{domain}-name"]
                template = template.replace("{" + role + "}", domain)
        self.user(template)


def _check_bank(names: NameBank, domains: Sequence[str], areas: _Areas | None) -> None:
    if not domains or not set(domains) <= set(DOMAINS):
        raise DataError(f"domains: {list(domains)}; give one or more of {', '.join(DOMAINS)}")
    for slot in (f"{domain}-name" for domain in domains):
        bank = names.get(slot, ())
        if len(set(bank)) < 4 or len(set(bank)) != len(bank) or not all(name.strip() for name in bank):
            raise DataError(
                f"names: {slot}: a dialogue needs at least 4 different, non-empty names, "
                f"found {len(bank)} ({len(set(bank))} different); give a larger bank"
            )
        if areas is None:
            continue
        if missing := [name for name in bank if areas.of_names.get(name) not in _AREAS]:
            raise DataError(f"areas: {missing[0]!r} has no area; give each name one of {', '.join(_AREAS)}")
        counts = Counter(areas.of_names[name] for name in bank)
        if min(counts[area] for area in _AREAS) < _PLACES_IN_A_VISIT:
            raise DataError(
                f"names: {slot}: each area needs at least {_PLACES_IN_A_VISIT} names, found {dict(counts)}; give at "
                f"least {_PLACES_IN_A_VISIT * len(_AREAS)} names, and areas_of(names) as areas"
            )


def areas_of(names: NameBank) -> dict[str, str]:
    """Give each name an area of the town; each area gets as many names of a slot as another, or one more.

    Example:
        >>> sorted(areas_of({"hotel-name": ["jona", "tibul", "wacho"]}).items())
        [('jona', 'north'), ('tibul', 'south'), ('wacho', 'east')]
    """
    return {name: _AREAS[number % len(_AREAS)] for bank in names.values() for number, name in enumerate(bank)}


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
    """Generate dialogues as rows (`dair_hf.dialog.text.rows.FEATURES`), one per user turn.

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
        DataError: `n_dialogs` is not positive, a domain is unknown, a slot has too few names or a name no area, or
            `misleading` or `annotation_errors` are given without areas, or out of range.

    Example:
        >>> rows = generate_dialogs(2, names=make_names("train"), seed=1)
        >>> rows[0]["row_id"], rows[0]["history"][0]["speaker"]
        ('DEMO00000/0', 'user')
    """
    if n_dialogs < 1:
        raise DataError(f"n_dialogs: expected at least 1, found {n_dialogs}; ask for some dialogues")
    if not 0.0 <= annotation_errors <= 1.0:
        raise DataError(f"annotation_errors={annotation_errors} must be in [0, 1]: 0.3 is three areas of ten")
    if areas is None and (misleading or annotation_errors):
        raise DataError("misleading and annotation_errors need areas; give areas_of(names)")
    how = None if areas is None else _Areas(areas, misleading, annotation_errors)
    _check_bank(names, domains, how)
    rng = random.Random(f"dialogs/{seed}")
    builder = RowBuilder()
    for index in range(n_dialogs):
        dialogue = _Dialogue(rng, names, how)
        visited = rng.sample(tuple(domains), min(rng.choice((1, 1, 1, 2)), len(domains)))
        for position, domain in enumerate(visited):
            if position:
                dialogue.system(rng.choice(_DONE))
            dialogue.visit(domain)
        if len(dialogue.states) < _MAX_TURNS_BEFORE_END and rng.random() < 0.4:
            dialogue.system(rng.choice(_DONE))
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

    Args:
        rows: Dialogues whose places lie in the annotated area.
        misleading: The same dialogues, generated with `misleading=True`.

    Returns:
        The rows with two more columns.

    Example:
        >>> names = make_names("train")
        >>> rows, misleading = (
        ...     generate_dialogs(9, names=names, areas=areas_of(names), misleading=it) for it in (False, True)
        ... )
        >>> pairs = pair_with_misleading_names(rows, misleading)
        >>> sum(state is not None for state in pairs["augmented_2_state"]), len(pairs)
        (0, 0)
    """
    partners: dict[str, list[Any]] = {"history": [], "state": []}
    for row, twin in zip(rows, misleading, strict=True):
        state = {entry["slot"] for entry in row["state"]}
        misleads = any({f"{domain}-area", f"{domain}-name"} <= state for domain in DOMAINS)
        for name, values in partners.items():
            values.append(twin[name] if misleads else None)
    for name, values in partners.items():
        rows = rows.add_column(view_prefix(2) + name, values, feature=rows.features[name])
    return rows
