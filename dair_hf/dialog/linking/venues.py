"""Venues of MultiWOZ: the names of its data bases, which dialogues also use where no state has them as a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from dair_hf.dialog.linking.mentions import name_index
from dair_hf.dialog.linking.names import DialogueNames
from dair_hf.dialog.linking.spelling import PLACE, kind_of
from dair_hf.dialog.linking.words import words

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


@lru_cache(maxsize=1)
def venue_names() -> DialogueNames:
    """Return the venues as the names of one dialogue that speaks of all of them."""
    names = DialogueNames()
    for slot, venues in VENUES.items():
        for venue in venues:
            names.add(slot, venue, in_state=False)
    return names


@lru_cache(maxsize=10_000)
def venue_slot(slot: str, value: str) -> str:
    """Return the name slot of a venue that a place slot holds, else the slot."""
    venue = venue_names().find(slot, value) if kind_of(slot) == PLACE else None
    return slot if venue is None else venue.slot


def venues_in(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield slot and spelling of the venues that texts name in full."""
    index = _index()
    for text in texts:
        line = words(text)
        for first, key in enumerate(line.keys):
            for form, entity, is_shortened in index.get(key, ()):
                last = first + len(form)
                if not is_shortened and tuple(line.keys[first:last]) == form:
                    yield entity.slot, text[line.starts[first] : line.ends[last - 1]]
                    break


_index = lru_cache(maxsize=1)(lambda: name_index(venue_names()))
