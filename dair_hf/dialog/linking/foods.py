"""Mentions of food types ("modern european") in a dialogue: those of its states, and all others that it speaks of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from dair_hf.dialog.linking.mentions import LinkedNames
from dair_hf.dialog.linking.names import Entity
from dair_hf.dialog.linking.spelling import MIN_SIMILARITY, Keys
from dair_hf.dialog.linking.vocabulary import ORDINARY_WORDS
from dair_hf.dialog.linking.words import Words, similarity, words
from dair_hf.dialog.text.rows import Mention
from dair_hf.dialog.text.spans import NO_NAME, normalize_name

FOOD = "food"
# Food types of the ontology of DSTC2 and WOZ 2.0.
FOODS = (
    "afghan", "african", "afternoon tea", "asian oriental", "australasian", "australian", "austrian", "barbeque",
    "basque", "belgian", "bistro", "brazilian", "british", "canapes", "cantonese", "caribbean", "catalan", "chinese",
    "christmas", "corsica", "creative", "crossover", "cuban", "danish", "eastern european", "english", "eritrean",
    "european", "french", "fusion", "gastropub", "german", "greek", "halal", "hungarian", "indian", "indonesian",
    "international", "irish", "italian", "jamaican", "japanese", "korean", "kosher", "latin american", "lebanese",
    "light bites", "malaysian", "mediterranean", "mexican", "middle eastern", "modern american", "modern eclectic",
    "modern european", "modern global", "molecular gastronomy", "moroccan", "new zealand", "north african",
    "north american", "north indian", "northern european", "panasian", "persian", "polish", "polynesian", "portuguese",
    "romanian", "russian", "scandinavian", "scottish", "seafood", "singaporean", "south african", "south indian",
    "spanish", "sri lankan", "steakhouse", "swedish", "swiss", "thai", "the americas", "traditional", "turkish",
    "tuscan", "unusual", "vegetarian", "venetian", "vietnamese", "welsh", "world",
)  # fmt: skip
# Other spelling, or short form -> food type.
SPELLINGS = {
    "american": "north american",
    "asian": "asian oriental",
    "oriental": "asian oriental",
    "aussie": "australian",
    "barbecue": "barbeque",
    "bbq": "barbeque",
    "corsican": "corsica",
    "gastro pub": "gastropub",
    "pan asian": "panasian",
    "sea food": "seafood",
    "steak house": "steakhouse",
    "vietmanese": "vietnamese",
}
# Ordinary adjectives and nouns, which are a food type before one of `FOOD_NOUNS`, or if a state of the dialogue has
# it ("the most creative place in town", but not "an unusual name").
ORDINARY_FOODS = frozenset("bistro christmas creative crossover english traditional unusual world".split())
FOOD_NOUNS = frozenset(key for noun in "food restaurant cuisine dish dishes".split() for key in words(noun).keys)
# Names of restaurants in Cambridge that contain a food type.
HOUSES = (
    "backstreet bistro", "good luck chinese food takeaway", "hk fusion", "hotel du vin and bistro", "oak bistro",
    "river bar steakhouse and grill",
)  # fmt: skip
MIN_LETTERS = 6  # of a word that is compared with misspellings


class _Form(NamedTuple):
    keys: Keys
    food: str | None  # None: the name of a house


def link_foods(texts: Sequence[str], in_states: Iterable[str], slot: str) -> LinkedNames:
    """Find all food types of a dialogue: those of its states and any other of `FOODS`.

    The longest food type counts: "modern european" is not "european". Spellings of `SPELLINGS` and misspelled words
    are mentions too. Names of restaurants (`HOUSES`) are not.
    """
    entities: dict[str, Entity] = {}
    for value in in_states:
        if normalize_name(value) not in NO_NAME:
            food = food_type(value)
            entities.setdefault(food, Entity(slot, FOOD)).state_spellings[value] += 1
    chosen = frozenset(entities)
    spans = [
        (turn, start, end, food)
        for turn, text in enumerate(texts)
        for start, end, food in _foods_in(text, words(text), chosen)
    ]
    for turn, start, end, food in spans:
        _add_mention(entities.setdefault(food, Entity(slot, FOOD)), texts[turn][start:end], food)
    name_of = {food: entity.name for food, entity in entities.items()}
    return LinkedNames(
        [Mention(slot, name_of[food], turn, start, end) for turn, start, end, food in spans], list(entities.values())
    )


def food_type(value: str) -> str:
    """Return the food type that a value means, or the value itself in lower case if it is none of `FOODS`."""
    keys = tuple(words(value).keys)
    known = next((form for form in _index(frozenset()).get(keys[0] if keys else "", ()) if form.keys == keys), None)
    return known.food if known is not None and known.food is not None else normalize_name(value)


def _add_mention(entity: Entity, surface: str, food: str) -> None:
    entity.surfaces.add(surface)
    entity.text_spellings[food] += 1
    # Another spelling is one of its forms but never becomes the name, however often it occurs.
    entity.text_spellings[normalize_name(surface)] += 0


def _foods_in(text: str, line: Words, chosen: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and food type of the mentions in a text; `chosen` are the food types of the states."""
    index, keys, first = _index(chosen), line.keys, 0
    while first < len(keys):
        form = next((form for form in index.get(keys[first], ()) if _is_at(form.keys, first, text, line)), None)
        if form is None and (food := _misspelled(keys[first])) is not None:
            form = _Form((keys[first],), food)
        last = first + (1 if form is None else len(form.keys))
        if form is not None and form.food is not None and _is_food(form, keys[last : last + 1], chosen):
            yield line.starts[first], line.ends[last - 1], form.food
        first = last


def _is_at(form: Keys, first: int, text: str, line: Words) -> bool:
    last = first + len(form) - 1
    between = (text[line.ends[i] : line.starts[i + 1]] for i in range(first, min(last, len(line.keys) - 1)))
    return tuple(line.keys[first : last + 1]) == form and all(gap.strip(" -/") == "" for gap in between)


def _is_food(form: _Form, following: Sequence[str], chosen: Collection[str]) -> bool:
    return form.food in chosen or form.food not in ORDINARY_FOODS or not FOOD_NOUNS.isdisjoint(following)


@lru_cache(maxsize=4096)
def _index(chosen: frozenset[str]) -> Mapping[str, list[_Form]]:
    """Return, by first word, the forms to search for, longest first."""
    spellings: dict[str, str | None] = {food: food for food in (*FOODS, *sorted(chosen))}
    spellings |= SPELLINGS
    spellings |= dict.fromkeys(HOUSES)
    index: dict[str, list[_Form]] = {}
    for spelling, food in spellings.items():
        if keys := tuple(words(spelling).keys):
            index.setdefault(keys[0], []).append(_Form(keys, food))
    for forms in index.values():
        forms.sort(key=lambda form: -len(form.keys))
    return index


@lru_cache(maxsize=100_000)
def _misspelled(key: str) -> str | None:
    """Return the food type of one word that `key` misspells."""
    if len(key) < MIN_LETTERS or key in ORDINARY_WORDS:
        return None
    alike = {
        food: similarity(key, food)
        for food in FOODS
        if len(food) >= MIN_LETTERS and " " not in food and food not in ORDINARY_FOODS
        if abs(len(key) - len(food)) <= 2 and (key[0] == food[0] or key[-1] == food[-1])
    }
    best = max(alike, key=alike.__getitem__, default=None)
    return best if best is not None and alike[best] >= MIN_SIMILARITY else None
