"""Known names: venues of MultiWOZ, which dialogues use where no state has them as a name, and food types of WOZ 2.0."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from dair_hf.dialog.linking.mentions import LinkedNames, name_index
from dair_hf.dialog.linking.names import MIN_SIMILARITY, PLACE, DialogueNames, Entity, Keys, kind_of
from dair_hf.dialog.linking.words import ORDINARY_WORDS, Words, similarity, words
from dair_hf.dialog.rows import NO_NAME, Mention, normalize_name

# Slot -> names: the data bases, and the Doubletree, which dialogues book although these lack it.
VENUES = {
    "hotel-name": (
        "a and b guest house|acorn guest house|alexander bed and breakfast|allenbell|alpha-milton guest house|"
        "arbury lodge guesthouse|archway house|ashley hotel|autumn house|avalon|aylesbray lodge guest house|"
        "bridge guest house|carolina bed and breakfast|city centre north b and b|cityroomz|el shaddai|"
        "express by holiday inn cambridge|doubletree by hilton cambridge|"
        "finches bed and breakfast|gonville hotel|hamilton lodge|hobsons house|"
        "home from home|huntingdon marriott hotel|kirkwood house|leverton house|limehouse|lovell lodge|"
        "rosa's bed and breakfast|the cambridge belfry|the lensfield hotel|university arms hotel|warkworth house|"
        "worth house"
    ).split("|"),
    "restaurant-name": (
        "ali baba|anatolia|ask restaurant|backstreet bistro|bangkok city|bedouin|bloomsbury restaurant|caffe uno|"
        "cambridge lodge restaurant|charlie chan|chiquito restaurant bar|city stop restaurant|clowns cafe|cocum|cote|"
        "cotto|curry garden|curry king|curry prince|curry queen|da vinci pizzeria|darrys cookhouse and wine shop|"
        "de luca cucina and bar|dojo noodle bar|don pasquale pizzeria|efes restaurant|eraina|fitzbillies restaurant|"
        "frankie and bennys|galleria|golden house|golden wok|gourmet burger kitchen|graffiti|"
        "grafton hotel restaurant|hakka|hk fusion|hotel du vin and bistro|india house|j restaurant|"
        "jinling noodle bar|kohinoor|kymmoy|la margherita|la mimosa|la raza|la tasca|lan hong house|little seoul|"
        "loch fyne|mahal of cambridge|maharajah tandoori restaurant|meghna|meze bar|michaelhouse cafe|"
        "midsummer house restaurant|nandos|nandos city centre|panahar|peking restaurant|pipasha restaurant|"
        "pizza express|pizza express fen ditton|pizza hut cherry hinton|pizza hut city centre|pizza hut fen ditton|"
        "prezzo|rajmahal|restaurant alimentum|restaurant one seven|restaurant two two|rice boat|rice house|"
        "riverside brasserie|royal spice|royal standard|saffron brasserie|saigon city|saint johns chop house|"
        "sala thong|sesame restaurant and bar|shanghai family restaurant|shiraz restaurant|sitar tandoori|"
        "stazione restaurant and coffee bar|taj tandoori|tandoori palace|tang chinese|thanh binh|"
        "the cambridge chop house|the copper kettle|the cow pizza kitchen and bar|the gandhi|the gardenia|"
        "the golden curry|the good luck chinese food takeaway|the hotpot|the lucky star|the missing sock|the nirala|"
        "the oak bistro|the river bar steakhouse and grill|the slug and lettuce|the varsity restaurant|"
        "travellers rest|ugly duckling|wagamama|yippee noodle bar|yu garden|zizzi cambridge"
    ).split("|"),
    "attraction-name": (
        "abbey pool and astroturf pitch|adc theatre|all saints church|ballare|broughton house gallery|byard art|"
        "cafe jello gallery|camboats|cambridge and county folk museum|cambridge arts theatre|cambridge artworks|"
        "cambridge book and print gallery|cambridge contemporary art|cambridge museum of technology|"
        "cambridge university botanic gardens|castle galleries|cherry hinton hall and grounds|"
        "cherry hinton water play|christ's college|churchill college|cineworld cinema|clare college|clare hall|"
        "club salsa|corpus christi|downing college|emmanuel college|funky fun house|gallery at twelve a high street|"
        "gonville and caius college|great saint mary's church|holy trinity church|hughes hall|jesus college|"
        "jesus green outdoor pool|kambar|kettle's yard|king's college|kings hedges learner pool|"
        "little saint mary's church|lynne strover gallery|magdalene college|milton country park|mumford theatre|"
        "museum of archaelogy and anthropology|museum of classical archaeology|nusha|old schools|parkside pools|"
        "pembroke college|people's portraits exhibition at girton college|primavera|queens' college|regency gallery|"
        "riverboat georgina|ruskin gallery|saint barnabas press gallery|saint catharine's college|"
        "saint john's college|scott polar museum|scudamores punting co|"
        "sheep's green and lammas land park fen causeway|sidney sussex college|soul tree nightclub|tenpin|"
        "the cambridge corn exchange|the cambridge punter|the cherry hinton village centre|the fez club|"
        "the fitzwilliam museum|the junction|the man on the moon|the place|trinity college|vue cinema|"
        "wandlebury country park|whale of a time|whipple museum of the history of science|williams art and antiques"
    ).split("|"),
}
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


@lru_cache(maxsize=1)
def _venues() -> tuple[DialogueNames, dict[str, list[tuple[Keys, Entity, bool]]]]:
    """Return the venues as the names of one dialogue that speaks of all of them, and their index by first word."""
    names = DialogueNames()
    for slot, venues in VENUES.items():
        for venue in venues:
            names.add(slot, venue, in_state=False)
    return names, name_index(names)


@lru_cache(maxsize=10_000)
def venue_slot(slot: str, value: str) -> str:
    """Return the name slot of a venue that a place slot holds, else the slot."""
    venue = _venues()[0].find(slot, value) if kind_of(slot) == PLACE else None
    return slot if venue is None else venue.slot


def venues_in(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield slot and spelling of the venues that texts name in full."""
    _, index = _venues()
    for text in texts:
        line = words(text)
        for first, key in enumerate(line.keys):
            for form, entity, is_shortened in index.get(key, ()):
                last = first + len(form)
                if not is_shortened and tuple(line.keys[first:last]) == form:
                    yield entity.slot, text[line.starts[first] : line.ends[last - 1]]
                    break


class _Form(NamedTuple):
    keys: Keys
    food: str | None  # None: the name of a house


def link_foods(texts: Sequence[str], in_states: Iterable[str], slot: str) -> LinkedNames:
    """Find all food types of a dialogue: those of its states and any other of `FOODS`, the longest that fits a text."""
    entities: dict[str, Entity] = {}
    for value in in_states:
        if normalize_name(value) not in NO_NAME:
            food = _food_type(value)
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


def _food_type(value: str) -> str:
    """Return the food type that a value means, or the value itself in lower case if it is none of `FOODS`."""
    keys = tuple(words(value).keys)
    forms = _food_index(frozenset()).get(keys[0], ()) if keys else ()
    return next((form.food for form in forms if form.keys == keys and form.food), normalize_name(value))


def _add_mention(entity: Entity, surface: str, food: str) -> None:
    entity.surfaces.add(surface)
    entity.text_spellings[food] += 1
    # Another spelling is one of its forms but never becomes the name, however often it occurs.
    entity.text_spellings[normalize_name(surface)] += 0


def _foods_in(text: str, line: Words, chosen: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and food type of the mentions in a text; `chosen` are the food types of the states."""
    index, keys, first = _food_index(chosen), line.keys, 0
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
def _food_index(chosen: frozenset[str]) -> Mapping[str, list[_Form]]:
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
