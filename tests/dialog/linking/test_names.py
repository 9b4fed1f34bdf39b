"""Words of a text, spellings of the same entity, and mentions in text."""

from __future__ import annotations

import pytest
import rapidfuzz.fuzz
from hypothesis import given
from hypothesis import strategies as st

from dair_hf.dialog.linking.mentions import Annotation, LinkedNames, _whole_words, link_names
from dair_hf.dialog.linking.names import DialogueNames, _same_entity, kind_of, name_keys
from dair_hf.dialog.linking.words import similarity, words
from dair_hf.dialog.rows import NameEntry


def test_words_compare_spellings() -> None:
    assert words("St. John's Guesthouse & Café!").keys == ["saint", "john", "guest", "house", "and", "cafe"]
    assert words("Straße").keys == words("STRASSE").keys == ["strasse"]
    text = "the St John's college"
    found = words(text)
    surfaces = [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    assert surfaces == text.split()


@given(st.text("abcdé ", max_size=70), st.text("abcdé ", max_size=70))
def test_similarity_is_rapidfuzz_ratio(left: str, right: str) -> None:
    if left and right:
        assert similarity(left, right) == pytest.approx(rapidfuzz.fuzz.ratio(left, right) / 100, abs=1e-12)


def same(left: str, right: str, slot: str, other_slot: str | None = None) -> bool:
    return _same_entity(name_keys(left), kind_of(slot), name_keys(right), kind_of(other_slot or slot)) > 0


@pytest.mark.parametrize(
    ("left", "right", "slot"),
    [
        ("warkworth house", "the Warkworth House", "hotel-name"),
        ("warkworth house", "wartworth", "hotel-name"),
        ("acorn guest house", "Acorn Guesthouse", "hotel-name"),
        ("lensfield hotel", "the lensfield", "hotel-name"),
        ("finches bed and breakfast", "finches b & b", "hotel-name"),
        ("el shaddia guesthouse", "el shaddai", "hotel-name"),
        ("saint johns college", "St. John's college", "attraction-name"),
        ("corn cambridge exchange", "cambridge corn exchange", "attraction-name"),
        ("restaurant alimentum", "alimentum", "restaurant-name"),
    ],
)
def test_same(left: str, right: str, slot: str) -> None:
    assert same(left, right, slot)
    assert same(right, left, slot)


@pytest.mark.parametrize(
    ("left", "right", "slot"),
    [
        ("warkworth house", "worth house", "hotel-name"),
        ("pizza hut fenditton", "pizza hut cherry hinton", "restaurant-name"),
        ("rice house", "rice boat", "restaurant-name"),
        ("clare college", "clare hall", "attraction-name"),
        ("christ college", "churchill college", "attraction-name"),
        ("great saint marys church", "little saint marys church", "attraction-name"),
        ("cambridge belfry", "cambridge", "hotel-name"),
        ("kings college", "college", "attraction-name"),
    ],
)
def test_not_the_same(left: str, right: str, slot: str) -> None:
    assert not same(left, right, slot)
    assert not same(right, left, slot)


def test_places_refer_to_names_but_towns_do_not() -> None:
    assert same("gonville hotel", "the gonville", "hotel-name", "taxi-departure")
    assert not same("zizzi cambridge", "cambridge", "restaurant-name", "train-departure")


def link(texts: list[str], *names: tuple[str, str], spans: list[Annotation] | None = None) -> LinkedNames:
    dialogue_names = DialogueNames()
    for slot, name in names:
        dialogue_names.add(slot, name)
    return link_names(texts, dialogue_names, spans or [])


def entries_of(linked: LinkedNames) -> list[NameEntry]:
    return [entity.entry() for entity in linked.entities]


def surfaces(texts: list[str], *names: tuple[str, str], spans: list[Annotation] | None = None) -> list[tuple[str, str]]:
    mentions = link(texts, *names, spans=spans).mentions
    return [(texts[mention.turn][mention.start : mention.end], mention.name) for mention in mentions]


def test_search() -> None:
    hotel = ("hotel-name", "worth house")
    assert surfaces(["The Worth House's rooms"], hotel) == [("Worth House", "worth house")]
    assert surfaces(["the worth houses, wortham house"], hotel) == [("worth houses", "worth house")]
    bistro = ("restaurant-name", "the oak bistro")
    assert surfaces(["is the Oak Bistro open"], bistro) == [("the Oak Bistro", "the oak bistro")]
    # The longest name wins.
    names = [("train-destination", "cambridge"), ("hotel-name", "cambridge belfry")]
    assert surfaces(["The Cambridge Belfry in Cambridge"], *names) == [
        ("Cambridge Belfry", "cambridge belfry"),
        ("Cambridge", "cambridge"),
    ]


def test_a_common_word_is_a_name_only_if_annotated() -> None:
    texts = ["May I ask about Ask?"]
    name = ("restaurant-name", "ask")
    assert surfaces(texts, name) == []
    assert surfaces(texts, name, spans=[Annotation("restaurant-name", "ask", 0, 16, 20)]) == [("Ask", "ask")]


INDIAN = "i want indian food at the indian"


@pytest.mark.parametrize("name", ["indian", "the indian", "indian restaurant"])
def test_a_value_of_another_slot_is_a_name_only_if_annotated(name: str) -> None:
    def found(*spans: Annotation) -> list[int]:
        names = DialogueNames()
        names.add_states({0: {"restaurant-name": [name], "restaurant-food": ["indian"]}}, {"restaurant-name"})
        return [mention.start for mention in link_names([INDIAN], names, spans).mentions]

    assert found() == []
    assert found(Annotation(None, "indian", 0, 7, 13)) == []
    assert found(Annotation("restaurant-name", "indian", 0, 26, 32)) in ([26], [22])  # with "the" if the name has it


def test_no_name_is_searched_in_a_span_annotated_as_something_else() -> None:
    # Spelled out ("indian"), misspelled ("wartworth") and a longer name than the span ("oak lodge").
    names = [("restaurant-name", "indian"), ("hotel-name", "warkworth"), ("hotel-name", "oak lodge")]
    texts = [INDIAN, "a lodge such as oak lodge or wartworth"]
    spans = [Annotation(None, "indian", 0, 7, 13), Annotation(None, "lodge", 1, 20, 25)]
    assert surfaces(texts, *names, spans=spans) == [
        ("indian", "indian"),
        ("oak lodge", "oak lodge"),
        ("wartworth", "warkworth"),
    ]
    assert link(texts, *names, spans=spans).mentions[0].start == 26
    assert ("wartworth", "warkworth") not in surfaces(texts, *names, spans=[Annotation(None, "x", 1, 29, 38)])


def test_a_street_is_not_its_namesake() -> None:
    hotel = ("hotel-name", "gonville hotel")
    assert surfaces(["Gonville is at Gonville Place"], hotel) == [("Gonville", "gonville hotel")]


def test_a_misspelling_is_found_without_annotation() -> None:
    texts = ["is the wankworth house free", "yes"]
    assert surfaces(texts, ("hotel-name", "warkworth house")) == [("wankworth house", "warkworth house")]
    museum = ("attraction-name", "fitzwilliam museum")
    assert surfaces(["is the Fitzwilliam free"], museum) == [("Fitzwilliam", "fitzwilliam museum")]


def test_a_span_over_two_names_gives_both() -> None:
    texts = ["try Curry Prince and Rajmahal"]
    spans = [Annotation("restaurant-name", "curry prince and rajmahal", 0, 4, 29)]
    names = [("restaurant-name", "curry prince"), ("restaurant-name", "rajmahal")]
    assert surfaces(texts, *names, spans=spans) == [("Curry Prince", "curry prince"), ("Rajmahal", "rajmahal")]


GALLERY = ("attraction-name", "orla fenwick gallery")


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        (GALLERY, "Orla Fenwick sounds great", "Orla Fenwick"),
        (GALLERY, "what area is the fenwick in?", "fenwick"),
        (GALLERY, "the address of Fenwik please", "Fenwik"),
        (GALLERY, "near orlla fenwick", "orlla fenwick"),
        (("restaurant-name", "vespa pizza kitchen and bar"), "book vespa pizza kitchen please", "vespa pizza kitchen"),
        (("hotel-name", "express by green inn cambridge"), "at the Express by Green Inn", "Express by Green Inn"),
        (("attraction-name", "cambridge and county folk museum"), "a taxi to County Folk Museum", "County Folk Museum"),
        (("attraction-name", "jolly fun house"), "from the fun house to the station", "fun house"),
        (("restaurant-name", "ask"), "Is it called Ask restaurant?", "Ask restaurant"),
    ],
)  # fmt: skip
def test_a_part_of_a_name_is_found_beside_the_whole(name: tuple[str, str], text: str, part: str) -> None:
    assert surfaces([f"{name[1]} is free", text], name)[-1] == (part, name[1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("attraction-name", "funky fun house"), "it's a really fun house, so funky and fun"),
        (("restaurant-name", "pizza hut cherry hinton"), "I like pizza, and I am in Cherry Hinton"),
        (("restaurant-name", "pizza hut cherry hinton"), "at 3 colville road, Cherry Hinton"),
        (("attraction-name", "ruskin gallery"), "it is in Ruskin Road"),
        (("attraction-name", "museum of classical archaeology"), "interested in archaeology or art?"),
        (("restaurant-name", "the golden wok"), "a golden opportunity"),
        (("attraction-name", "trinity college"), "a college, any college"),
    ],
)
def test_a_part_that_does_not_identify_the_name_is_not_found(name: tuple[str, str], text: str) -> None:
    assert surfaces([name[1], text], name) == [(name[1], name[1])]


def test_a_part_of_two_names_is_not_found() -> None:
    names = [("hotel-name", "ambler marriott hotel"), ("hotel-name", "quay marriott hotel")]
    assert surfaces(["the marriott"], *names) == []


def test_no_part_of_a_name_is_searched_in_a_span_annotated_as_something_else() -> None:
    texts = ["orla fenwick gallery", "the address is fenwick yard"]
    assert len(surfaces(texts, GALLERY)) == 2
    assert len(surfaces(texts, GALLERY, spans=[Annotation(None, "fenwick yard", 1, 15, 27)])) == 1


@pytest.mark.parametrize(
    ("state", "text", "annotated"),
    [
        (("restaurant-name", "kumari tandoori"), "four are called Tandoori", "Tandoori"),
        (("attraction-name", "cafe dalloway gallery"), "the cafe dalloway museum", "cafe dalloway museum"),
        (("attraction-name", "schools"), "the Old Schools are open", "Old Schools"),
        (("hotel-name", "lang hong house restaurant"), "is lang hong house open", "lang hong house"),
    ],
)
def test_one_entity_has_one_name(state: tuple[str, str], text: str, annotated: str) -> None:
    slot = "restaurant-name" if "restaurant" in state[1] else state[0]
    start = text.index(annotated)
    linked = link([text], state, spans=[Annotation(slot, annotated.lower(), 0, start, start + len(annotated))])
    assert len(entries_of(linked)) == 1 and {state[1], annotated} <= set(entries_of(linked)[0].forms)
    assert [text[mention.start : mention.end] for mention in linked.mentions] == [annotated]


@pytest.mark.parametrize("said", ["musee du quai", "MUSÉE DU QUAI", "Muse\u0301e du Quai", "the Musée"])
def test_accents_do_not_matter(said: str) -> None:
    assert surfaces([said], ("attraction-name", "Musée du Quai")) == [(said.removeprefix("the "), "musée du quai")]


def test_a_part_never_becomes_the_name() -> None:
    texts = ["there is Orla Fenwick Gallery", *["the Fenwick"] * 3]
    names = entries_of(link(texts, spans=[Annotation("attraction-name", "orla fenwick gallery", 0, 9, 29)]))
    assert names[0].name == "orla fenwick gallery" and "Fenwick" in names[0].forms


def test_a_destination_that_is_a_part_of_a_name_refers_to_it() -> None:
    linked = link(
        ["zefiro city centre"],
        ("restaurant-name", "zefiro city centre"),
        ("taxi-destination", "zefiro"),
        ("train-destination", "cambridge"),
        ("hotel-name", "cambridge belfry"),
    )
    assert [(entry.slot, set(entry.forms) >= {"zefiro"}) for entry in entries_of(linked)] == [
        ("restaurant-name", True), ("train-destination", False), ("hotel-name", False),
    ]  # fmt: skip


def test_words_for_a_kind_of_place_name_nothing() -> None:
    names = [("attraction-name", "college"), ("attraction-name", "cambridge"), ("hotel-name", "university arms hotel")]
    texts = ["The University Arms, and preferably a college.", "I'm looking for cambridge."]
    spans = [Annotation("attraction-name", "college", 0, 38, 45), Annotation("attraction-name", "cambridge", 1, 16, 25)]
    linked = link(texts, *names, spans=spans)
    assert [entry.name for entry in entries_of(linked)] == ["university arms hotel"]
    assert [mention.name for mention in linked.mentions] == ["university arms hotel"]


def test_entries_hold_every_form_and_the_name_slot() -> None:
    hotel = ("hotel-name", "warkworth house")
    spans = [Annotation("hotel-name", "wartworth", 0, 4, 13)]
    texts = ["the Wartworth, I mean warkworth"]
    (entry,) = entries_of(link(texts, hotel, hotel, ("taxi-departure", "the warkworth"), spans=spans))
    assert (entry.slot, entry.name) == ("hotel-name", "warkworth house")
    assert set(entry.forms) == {"warkworth house", "the warkworth", "Wartworth", "warkworth"}


@pytest.mark.parametrize("span", [(4, 13), (3, 14), (5, 11)])
def test_an_annotation_is_extended_to_whole_words(span: tuple[int, int]) -> None:
    assert _whole_words("is (Oak House) free", Annotation(None, "oak house", 0, *span)) == (4, 13)
