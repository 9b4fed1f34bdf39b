"""English words that do not identify an entity on their own, even where they are part of a name."""

from __future__ import annotations

from dair_hf.dialog.text import word_keys


def _keys(words: str) -> frozenset[str]:
    return frozenset(key for word in words.split() for key in word_keys(word))


# Frequent in what users and systems say about travel, food and sights.
_GENERAL = _keys(
    "able about absolutely acceptable accommodate accommodation according activity actually add additional address "
    "admission afraid after afternoon again ahead all almost alone along alot already alright also always am "
    "amazing amenities amount an and another answer any anymore anyone anything anytime anyway anywhere apologies "
    "apologize appeal appealing appear appreciate appreciated approximately are area around arrange arrival arrive "
    "arriving art as ask asked asking assist assistance assisting at attraction availability available awesome back "
    "bad be beautiful because been before begin beginning being believe best better between bill bit book booked "
    "booking bored both bring budget bunch business but buy by bye cab call called calling cambridge can car care "
    "case catch category center centre certain certainly change changed charge cheap cheaper check checked checking "
    "choice choose choosing city clarify clear close closer closest code come coming commute complete completed "
    "concert confirm confirmation confirmed consider considered contact contacting cool correct cost could couple "
    "course cover craving criteria cuisine currently customer date day decide definitely depart departing departure "
    "depend description desired desk destination detail did different dine dining dinner do doe doing done double "
    "down driver due duration during each earlier earliest early eat eight either eleven else end enjoy enough "
    "enter entertainment entrance entries entry error establishment etc even evening everything exact exactly "
    "example excellent excited expect expensive extra fall family famous fancy fantastic far fare fast favorite fee "
    "feel few find finding fine first fit fitting five flexible food for forget forgot forward found four fourth "
    "frame free friday friend from full fun further future general get getting give given glad go god goes going "
    "good goodbye got great group guess guest guesthouse guests had happen happy has have having he head headed "
    "heading hear heard hearing heaven held hello help helped helpful helping her here hesitate high highly his "
    "hold hope hoping hotel hour house how however hundred hungry idea if in include included including indeed info "
    "information instead interest interested interesting internet into is issue it its journey just keep kind know "
    "known last later latest least leave leaving length let letting like list listed listing little local locate "
    "located location lodging long look looking lot love lovely luck made make making many match matches matching "
    "matter may maybe me meal mean meant meet meeting mention might min mind minute moderate moderately moment "
    "monday money mood more morning most movie much museum must my myself name named narrow near nearby necessary "
    "need needed needing never new next nice night nine no none nope not note nothing now number of off offer "
    "offering oh ok okay on once one only open opening option or order other our ours out over park parking part "
    "particular particularly party passenger pay payable people per perfect perfectly perhap person phone pick "
    "picked picking place plan planning play pleasant please pleasure pm point popular possibilities possible "
    "possibly post postal postcode prefer preferable preferably preference preferred pretty price priced pricerange "
    "pricing probably problem provide provided pull purchase question quite range rate rated rather rating reach "
    "reached ready real really recommend recommendation recommended reference regarding related remember request "
    "requested require requirement reservation reserve reserved rest restaurant result review ride right room route "
    "run running safe said same saturday say says schedule scheduled search searching seat second see seeing seem "
    "select selection send serve served service serving set several shall she short shorter shortly should show "
    "showing side since sir site six size slot so some someone someplace something sometime somewhere soon sorry "
    "sort sound special specific specifically specification specify spend spot star start starting station stay "
    "staying still street style success successful successfully such suggest suggestion suit suitable sunday super "
    "suppose sure surprise system table take taken taking talking taste taxi telephone tell ten terrific than thank "
    "that the theater their them then there these they thing think thinking third this those though thought three "
    "through thursday ticket time to today together told tomorrow tonight too top total touch tourist town train "
    "transportation travel traveling travelling trip trouble try trying tuesday twelve two type unable unavailable "
    "under understand unfortunately unsuccessful until up upcoming us use using usually vehicle venue verify very "
    "via visit visiting wait waiting want wanted wanting was way we wednesday week weekend welcome well went were "
    "what whatever when where whether which whichever while who why wife wifi will willing wish with within without "
    "wonderful wondering work worry would wrong yeah year yes yet you your yourself zero"
)

# Frequent inside names, where they say what kind of house or dish it is.
_DESCRIPTIVE = _keys(
    "african airport american aquarium arab architecture arena artwork asian "
    "australian autumn avenue baby bakery bank bar barbecue bay beach bed beef beer big bistro black blue boat "
    "botanic botanical boulevard boy bread breakfast brewery bridge bright british brown brunch buffet building "
    "burger cafe cake caribbean castle cathedral central chicken child children chinese chips chop church cinema "
    "classical club coffee college common company concerthall contemporary cookhouse corner corporation country "
    "county court courtyard cuban culture curry dance dessert diner drive east eastern eatery english estate "
    "ethiopian european event exchange exhibition express extended farm field filipino fire fish folk forest fort "
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

# Towns and quarters that names contain and sentences mention ("pizza hut cherry hinton", "the train to cambridge").
TOWN_WORDS = _keys("cambridge cherry hinton fen ditton huntingdon hedges milton london")
ORDINARY_WORDS = _GENERAL | _DESCRIPTIVE | TOWN_WORDS
