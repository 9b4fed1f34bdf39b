"""Food types in a text: the longest one, other spellings, misspellings, and words that name no food."""

from __future__ import annotations

import pytest

from dair_hf.dialog.linking.catalogs import FOODS, HOUSES, ORDINARY_FOODS, SPELLINGS, _food_type, link_foods
from dair_hf.dialog.linking.words import words


def linked(text: str, *in_states: str) -> list[tuple[str, str]]:
    """Surface and food type of each mention."""
    mentions = link_foods([text], in_states, "restaurant-food").mentions
    return [(text[mention.start : mention.end], mention.name) for mention in mentions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modern European, or european food", [("modern European", "modern european"), ("european", "european")]),
        ("North American food in the north", [("North American", "north american")]),
        ("Asian, oriental or asian-oriental", [("Asian", "asian oriental"), ("oriental", "asian oriental"),
                                               ("asian-oriental", "asian oriental")]),
        ("an Indian place and Indians", [("Indian", "indian"), ("Indians", "indian")]),
        ("gastropubs, a gastro pub and BBQ", [("gastropubs", "gastropub"), ("gastro pub", "gastropub"),
                                              ("BBQ", "barbeque")]),
        ("some portugese, mediterrean or vietmanese food", [("portugese", "portuguese"),
                                                           ("mediterrean", "mediterranean"),
                                                           ("vietmanese", "vietnamese")]),
        ("north, american", [("american", "north american")]),
        ("panasian, indianapolis and thailand", [("panasian", "panasian")]),
    ],
)  # fmt: skip
def test_mentions(text: str, expected: list[tuple[str, str]]) -> None:
    assert linked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a moderately priced one in the south, additional person, would that be alright?",
        "The Backstreet Bistro, the good luck Chinese food takeaway and the River Bar Steakhouse and Grill",
        "it has an unusual name, in the modern world",
        "I find that creative",
        "I don't care, any food",
    ],
)
def test_words_that_name_no_food(text: str) -> None:
    assert linked(text) == []


def test_ordinary_words_are_food_before_a_noun_or_if_the_state_has_them() -> None:
    assert linked("the most creative place", "creative") == [("creative", "creative")]
    assert linked("unusual restaurants and traditional food") == [
        ("unusual", "unusual"),
        ("traditional", "traditional"),
    ]
    assert linked("a traditional place") == []
    assert linked("some world food", "dontcare") == [("world", "world")]


def test_values_of_the_states_are_found_even_if_they_are_no_known_food() -> None:
    assert linked("Peruvian, please", "peruvian") == [("Peruvian", "peruvian")]
    assert linked("Peruvian, please") == []
    assert linked("some -- food", "--") == []
    _, entities = link_foods(["corsica or bbq"], ["corsican"], "restaurant-food")
    assert [(entity.name, set(entity.entry().forms)) for entity in entities] == [
        ("corsican", {"corsican", "corsica"}),
        ("barbeque", {"barbeque", "bbq"}),
    ]
    assert [entity.is_respelled for entity in entities] == [True, False]


def test_the_lists_are_consistent() -> None:
    assert len(set(FOODS)) == len(FOODS) and set(SPELLINGS.values()) <= set(FOODS) >= ORDINARY_FOODS
    assert not set(SPELLINGS) & set(FOODS)
    assert all(_food_type(food.upper()) == food for food in FOODS)
    assert all(_food_type(spelling) == food for spelling, food in SPELLINGS.items())
    # The name of a house is longer than every food type in it, so that it is found first or as a whole.
    assert all(len(words(house).keys) > 1 and not linked(f"the {house}") for house in HOUSES)
