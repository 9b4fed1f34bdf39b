"""Which spellings mean the same entity, and where they are found."""

from __future__ import annotations

import pytest

from dair_hf.dialog.names import NameLinker, Span
from dair_hf.dialog.spelling import kind_of, name_keys, same_entity


def same(left: str, right: str, slot: str, other_slot: str | None = None) -> bool:
    return same_entity(name_keys(left), kind_of(slot), name_keys(right), kind_of(other_slot or slot)) > 0


@pytest.mark.parametrize(
    ("left", "right", "slot"),
    [
        ("warkworth house", "the Warkworth House", "hotel-name"),
        ("warkworth house", "wartworth", "hotel-name"),
        ("acorn guest house", "Acorn Guesthouse", "hotel-name"),
        ("lensfield hotel", "the lensfield", "hotel-name"),
        ("finches bed and breakfast", "finches b & b", "hotel-name"),
        ("el shaddia guesthouse", "el shaddai", "hotel-name"),
        ("christ college", "Christ's college", "attraction-name"),
        ("saint johns college", "St. John's college", "attraction-name"),
        ("pizza hut fenditton", "pizza hut fen ditton", "restaurant-name"),
        ("corn cambridge exchange", "cambridge corn exchange", "attraction-name"),
        ("scott polar museum", "scott polar", "attraction-name"),
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
        ("curry king", "curry queen", "restaurant-name"),
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


def surfaces(texts: list[str], *names: tuple[str, str], spans: list[Span] | None = None) -> list[tuple[str, str]]:
    linker = NameLinker()
    for slot, name in names:
        linker.add(slot, name)
    mentions, _ = linker.link(texts, spans or [])
    return [(texts[mention.turn][mention.start : mention.end], mention.name) for mention in mentions]


def test_search() -> None:
    hotel = ("hotel-name", "worth house")
    assert surfaces(["The Worth House's rooms"], hotel) == [("Worth House", "worth house")]
    assert surfaces(["the worth houses, wortham house"], hotel) == [("worth houses", "worth house")]
    assert surfaces(["is the Oak Bistro open"], ("restaurant-name", "the oak bistro")) == [
        ("the Oak Bistro", "the oak bistro")
    ]


def test_the_longest_name_wins() -> None:
    names = [("train-destination", "cambridge"), ("hotel-name", "cambridge belfry")]
    assert surfaces(["The Cambridge Belfry in Cambridge"], *names) == [
        ("Cambridge Belfry", "cambridge belfry"),
        ("Cambridge", "cambridge"),
    ]


def test_a_common_word_is_a_name_only_where_annotated() -> None:
    texts = ["May I ask about Ask?"]
    name = ("restaurant-name", "ask")
    assert surfaces(texts, name) == []
    assert surfaces(texts, name, spans=[Span("restaurant-name", "ask", 0, 16, 20)]) == [("Ask", "ask")]


def test_a_street_is_not_its_namesake() -> None:
    assert surfaces(["Gonville is at Gonville Place"], ("hotel-name", "gonville hotel")) == [
        ("Gonville", "gonville hotel")
    ]


def test_a_misspelling_is_found_without_annotation() -> None:
    texts = ["is the wankworth house free", "yes"]
    assert surfaces(texts, ("hotel-name", "warkworth house")) == [("wankworth house", "warkworth house")]
    assert surfaces(["is the Fitzwilliam free"], ("attraction-name", "fitzwilliam museum")) == [
        ("Fitzwilliam", "fitzwilliam museum")
    ]


def test_a_span_over_two_names_gives_each() -> None:
    texts = ["try Curry Prince and Rajmahal"]
    spans = [Span("restaurant-name", "curry prince and rajmahal", 0, 4, 29)]
    names = [("restaurant-name", "curry prince"), ("restaurant-name", "rajmahal")]
    assert surfaces(texts, *names, spans=spans) == [("Curry Prince", "curry prince"), ("Rajmahal", "rajmahal")]


def test_entries_hold_every_form_and_the_name_slot() -> None:
    linker = NameLinker()
    linker.add("hotel-name", "warkworth house")
    linker.add("hotel-name", "warkworth house")
    linker.add("taxi-departure", "the warkworth")
    _, names = linker.link(["the Wartworth, I mean warkworth"], [Span("hotel-name", "wartworth", 0, 4, 13)])
    (entry,) = names
    assert (entry.slot, entry.name) == ("hotel-name", "warkworth house")
    assert set(entry.forms) == {"warkworth house", "the warkworth", "Wartworth", "warkworth"}
