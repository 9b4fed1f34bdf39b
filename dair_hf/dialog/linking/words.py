"""Words of a text, normalized for comparison, and the lists that distinguish names from ordinary English."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

_LETTERS = r"[^\W_](?:[^\W_]|[\u0300-\u036f])*"
_WORD = re.compile(rf"{_LETTERS}(?:['’`]{_LETTERS})*|&")
_APOSTROPHES = str.maketrans("", "", "'’`")
_SAME_WORD = {"&": ("and",), "st": ("saint",), "center": ("centre",), "guesthouse": ("guest", "house")}
_SAME_WORD |= {"guesthouses": ("guest", "house"), "bnb": ("b", "and", "b"), "theater": ("theatre",)}


class Words(NamedTuple):
    """Words of a text: word i is `text[starts[i]:ends[i]]` and is compared by `keys[i]`."""

    keys: list[str]
    starts: list[int]
    ends: list[int]


@lru_cache(maxsize=100_000)
def _word_keys(word: str) -> tuple[str, ...]:
    """Normalize a word for comparison: folded case, no apostrophes, accents or final "s", one spelling for variants."""
    if not word.isascii():
        word = "".join(part for part in unicodedata.normalize("NFKD", word) if not unicodedata.combining(part))
    plain = word.casefold().translate(_APOSTROPHES)
    keys = _SAME_WORD.get(plain, (plain,))
    return tuple(key[:-1] if len(key) > 3 and key.endswith("s") else key for key in keys)


def words(text: str) -> Words:
    """Find the words of a text; one that is compared as two ("guesthouse") is listed twice, at the same position."""
    result = Words([], [], [])
    for match in _WORD.finditer(text):
        start, end = match.span()
        for key in _word_keys(match[0]):
            result.keys.append(key)
            result.starts.append(start)
            result.ends.append(end)
    return result


@lru_cache(maxsize=100_000)
def similarity(left: str, right: str) -> float:
    """Return the similarity of two strings in [0, 1]: twice their longest common subsequence over their total length.

    Equals `fuzz.ratio` / 100 of rapidfuzz, which is optional, so that rows do not depend on what is installed. The
    subsequence is computed bit-parallel (Hyyrö 2004) in Python integers.
    """
    if not left or not right:
        return float(left == right)
    positions: dict[str, int] = {}
    for index, character in enumerate(left):
        positions[character] = positions.get(character, 0) | 1 << index
    mask = (1 << len(left)) - 1
    open_bits = mask
    for character in right:
        matched = open_bits & positions.get(character, 0)
        open_bits = ((open_bits + matched) | (open_bits - matched)) & mask
    common = len(left) - open_bits.bit_count()
    return 2 * common / (len(left) + len(right))


def _keys(words: str) -> frozenset[str]:
    return frozenset(key for word in words.split() for key in _word_keys(word))


# Frequent in sentences about travel, food and sights.
GENERAL_WORDS = _keys(
    "able about above absolutely accept acceptable accommodate accommodation according account activities activity "
    "actually add added additional address admission affordable afraid after afternoon again ago ahead airline "
    "album alcohol all allow allowed almost alone along alot already alright also alternative always am amazing "
    "amenities among amount an and another answer any anymore anyone anything anytime anyway anywhere apartment "
    "apologies apologize appeal appealing appear appointment appreciate appreciated approximately are area around "
    "arrange arrival arrive arriving art as ask asked asking assist assistance assisting at attend attending "
    "attraction availability available average away awesome back bad balance based bath bathroom be beautiful "
    "because bedroom been before begin beginning begun being believe best better between bill bit book booked "
    "booking bored both bought bring budget bunch bus buses business but buy buying by bye cab calendar call called "
    "calling cambridge came can car care case cast catch category center centre certain certainly chance change "
    "changed charge cheap cheaper check checked checking choice choose choosing city clarify class clear close "
    "closer closest code come coming commute compact complete completed concert condition confirm confirmation "
    "confirmed confirming consider considered contact contacting continue convenient cool correct correctly "
    "cosmetic cost costing costly could couldnt couple course cover craving criteria cuisine current currently "
    "customer date day decide definitely degree dentist depart departing departure depend description desired desk "
    "destination detail device did different dine dining dinner direct directed director do doctor doe doesnt doing "
    "dollar done dont double down driver drop dropping due duration during each earlier earliest early eat eating "
    "economy eight either eleven else empty end ending enjoy enough ensure enter entertainment entrance entries "
    "entry error especially establishment etc even evening everything exact exactly example excellent excited "
    "expect expected expensive extra fahrenheit failed fall family famous fan fancy fantastic far fare fast "
    "favorite fee feel few film final find finding fine first fit fitting five flexible flight fly flying following "
    "food for forecast forget forgot form forward found four fourth frame free friday friend friendly from full fun "
    "fund furnished further future game general genre get getting give given glad go god goes going gonna good "
    "goodbye got great group guess guest guesthouse guests had hair happen happening happy has have having he head "
    "headed heading hear heard hearing heaven held hello help helped helpful helping her here hesitate high higher "
    "highly him his hold hope hoping hotel hour house how however humid humidity hundred hungry idea ideal if imax "
    "in include included including indeed inexpensive info information instead intend interest interested "
    "interesting intermediate internet into is isnt issue it its journey just keep kid kind know known label "
    "landmark last later latest laundry layover least leave leaving length let letting level like liked liking line "
    "liquor list listed listen listening listing little live local locate located location lodging long look "
    "looking lot love lovely luck luxury made make making many match matches matching matter may maybe me meal mean "
    "meant medium meet meeting mention might mile min mind minute moderate moderately moment monday money month "
    "monthly mood more morning most move movie moving much museum must my myself name named narrow near nearby "
    "necessary need needed needing never new next nice night nine no non none nope not note nothing now number of "
    "off offer offering office oh ok okay on once one online only onward open opening opinion option or order "
    "origin other our ours out outbound over overnight park parking part particular particularly party passenger "
    "pay payable people per percent perfect perfectly performing perhap person pet phone pick picked picking pickup "
    "place placed plan plane planned planning play played playing pleasant please pleasure pm point popular "
    "possibilities possible possibly post postal postcode practitioner prefer preferable preferably preference "
    "preferred preserve pretty price priced pricerange pricey pricing probably problem proceed property provide "
    "provided pull purchase purchased purchasing put question quite rain range rate rated rather rating reach "
    "reached reaching ready real really reasonably recommend recommendation recommended redeye reference refund "
    "refundable regarding regular related released remember rent rental renting request requested require required "
    "requirement reservation reserve reserved reserving rest restaurant result return returning revealed review "
    "ride riding right room round route run running safe said salon same saturday saving say says schedule "
    "scheduled scheduling search searched searching seat seating second see seeing seem select selection send "
    "sending serve served service serving set several shall share shared sharing she short shorter shortly should "
    "show showing shown showtime side since sir site situated six size sized skip slot small so some someone "
    "someplace something sometime somewhere song soon sorry sort sound speaker special specific specifically "
    "specification specify speed spend spot star start started starting station stay staying still street stuff "
    "style stylist subtitle success successful successfully such suggest suggestion suit suitable sunday super "
    "suppose supposed sure surprise system table take taken taking talking taste taxi telephone television tell "
    "temperature ten terrific than thank thankful that the theater their them then there these they thing think "
    "thinking third this those though thought three through thursday ticket till time timing title titled to today "
    "together told tomorrow tonight too top total touch tourist town train transfer transferred transportation "
    "travel traveling travelling trip trouble try trying tuesday twelve two type unable unavailable under "
    "understand unfortunately unfurnished unisex unsuccessful until up upcoming updated us use using usually "
    "vacation vehicle venue verify very via view viewing visit visiting wait waiting wanna want wanted wanting was "
    "wasnt watch watching way we weather wednesday week weekend welcome well went were what whatever when where "
    "whether which whichever while who whom why wife wifi will willing wind windy wish with within without "
    "wonderful wondering wont work worries worry would wrong yeah year yes yet you your yourself zero"
)

# Frequent inside names, where they describe the house or the dish.
_DESCRIPTIVE = _keys(
    "african airport american aquarium arab architecture arena artwork asian "
    "australian autumn avenue baby bakery bank bar barbecue bay beach bed beef beer big bistro black blue boat "
    "botanic botanical boulevard boy bread breakfast brewery bridge bright british brown brunch buffet building "
    "burger cafe cake caribbean castle cathedral central chicken child children chinese chips chop church cinema "
    "classical club coffee college common company concerthall contemporary cookhouse corner corporation country "
    "county court courtyard cuban culture curry dance dessert diner drive east eastern eatery english estate "
    "ethiopian european event exchange exhibition extended farm field filipino fire fish folk forest fort "
    "fountain french fresh fried funky fusion galleria gallerie gallery garden gastropub gate german girl golden "
    "gourmet grand greek green grey grill grille ground halal hall harbor harbour hedge hill historic historical "
    "history holiday holy home hostel ice indian inn international irish island italian jamaican japanese "
    "juice kebab king kitchen korean lady lake land lane learner lebanese library life limited lodge lord lower "
    "lucky lunch malaysian mall man manor market mediterranean memorial men mexican middle mill missing mister "
    "modern monument moon moroccan motel mountain multiple music national natural nature nightclub noodle north "
    "northern old orange original outdoor oven palace parade pasta persian pie pink pitch pizza pizzeria playground "
    "plaza polish pool port portuguese prince princess print pub public queen quiet ramen red residence resort rice "
    "rich river riverside road rooms royal russian saint salad sanctuary sandwich sauce school schools science "
    "scottish sea seafood shop shopping shore silver singaporean sky south southern spanish spice spicy sport "
    "sports spring square stadium standard statue steak steakhouse stop suite suites summer sun sushi swedish sweet "
    "swimming swimmingpool swiss taco takeaway tandoori tapas tavern tea technology temple terrace thai theatre "
    "theme tower trail traveller tree turkish tuscan ugly union university upper valley vegan vegetarian vietnamese "
    "viewpoint village walk wandering water waterfall west western white wildlife wine winter woman women wonder "
    "world yard yellow young zoo"
)

# Towns and quarters, which occur in names and in sentences ("pizza hut cherry hinton", "the train to cambridge").
TOWN_WORDS = _keys("cambridge cherry hinton fen ditton huntingdon hedges milton london")
# None of these words identifies an entity on its own, even as a part of a name.
ORDINARY_WORDS = GENERAL_WORDS | _DESCRIPTIVE | TOWN_WORDS

# A name made of these words alone ("the place", "ask", "college") is only a mention if the annotation says so.
COMMON_WORDS = _keys(
    "a an and ask at bar bed bb breakfast bridge by cafe cam cambridge center centre church cinema city club college "
    "dontcare evening for free garden gallery galleria good guest guesthouse hall hotel hotels house in inn is it "
    "lodge luck museum night nightclub north not of on one park place pool price restaurant school south east west "
    "station street swimming swimmingpool taxi the theatre to town train airport two university visit with yes no"
)
# These words alone describe a kind of place ("preferably a college") and name none.
TYPE_WORDS = _keys(
    "a an any boat church cinema club college colleges concert concerthall entertainment gallery guest guesthouse hall "
    "hotel hotspot house museum night nightclub park pool restaurant sports swimming swimmingpool the theatre"
)
SUBJECT_WORDS = _keys("archaeology archeology architecture art arts history music science technology")
STREET_WORDS = _keys(
    "street road place lane avenue way close square hill parade rd terrace drive ring common court causeway"
)
JOINING_WORDS = _keys("and or on for in with to is called")
# Interchangeable kinds of house: "the cafe jello museum" is the cafe jello gallery. Not hall and college.
KIND_WORDS = _keys(
    "and b bar bed bistro breakfast cafe cinema club gallery guest hotel house inn lodge museum nightclub restaurant "
    "the theatre"
)
# A part of a name that ends in one of these is a name after "the": "the fun house" of "funky fun house".
NAME_HEADS = _keys("church college gallery garden hall house inn kitchen lodge museum park pool school theatre")
FUNCTION_WORDS = _keys("a an and at by for from in is of on or the to with")
UNSPECIFIC_WORDS = ORDINARY_WORDS | STREET_WORDS | SUBJECT_WORDS
