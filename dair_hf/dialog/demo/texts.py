"""Utterances of generated dialogues, and the values of their slots."""

from __future__ import annotations

DOMAINS = ("hotel", "restaurant", "attraction")

AREAS = ("north", "south", "east", "west", "centre")
PRICES = ("cheap", "moderate", "expensive")
STARS = ("2", "3", "4", "5")
FOODS = ("indian", "italian", "chinese", "thai", "french", "british")
TYPES = ("museum", "park", "college", "theatre", "cinema", "church")
PEOPLE = ("1", "2", "3", "4", "5", "6", "7", "8")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
TIMES = ("09:15", "10:30", "11:45", "12:00", "13:15", "15:30", "17:45", "18:00", "19:15", "20:30")

VALUES = {
    "hotel-area": AREAS,
    "hotel-pricerange": PRICES,
    "hotel-stars": STARS,
    "hotel-bookpeople": PEOPLE,
    "hotel-bookday": DAYS,
    "restaurant-area": AREAS,
    "restaurant-pricerange": PRICES,
    "restaurant-food": FOODS,
    "restaurant-bookpeople": PEOPLE,
    "restaurant-booktime": TIMES,
    "attraction-area": AREAS,
    "attraction-type": TYPES,
    "taxi-leaveat": TIMES,
}

# Descriptions by the user. "{hotel-area}" is replaced by a value of the slot.
SEARCH = {
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
RECOMMEND = ("how about [name] ?", "i recommend [name] .", "[name] would suit you .", "there is [name] .")
RECOMMEND_TWO = ("there are [name] and [other] .", "i can offer [other] or [name] .")
ACCEPT = {
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
CHOOSE = ("i like [name] .", "then i choose [name] .", "let it be [name] .")
REQUEST = {
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
CHANGE = {
    "hotel": ("i would rather stay at [name] .", "please change the hotel to [name] ."),
    "restaurant": ("i would rather eat at [name] .", "please change the restaurant to [name] ."),
    "attraction": ("i would rather visit [name] .", "please change that to [name] ."),
}
DONE = ("done . anything else ?", "it is booked .", "all set . what else ?")
TAXI = (
    "i need a taxi to the {destination} .",
    "get me a taxi from the {departure} to the {destination} .",
    "a taxi should take me from the {departure} at {taxi-leaveat} .",
    "i need a taxi to the {destination} at {taxi-leaveat} .",
)


def text_words() -> set[str]:
    """Return all words of the dialogues outside of names."""
    texts: list[str] = [*RECOMMEND, *RECOMMEND_TWO, *CHOOSE, *DONE, *TAXI]
    for templates in (SEARCH, ACCEPT, REQUEST, CHANGE, VALUES):
        for group in templates.values():
            texts.extend(group)
    return {word for text in texts for word in text.split()} | {"hotel", "restaurant", "attraction"}
