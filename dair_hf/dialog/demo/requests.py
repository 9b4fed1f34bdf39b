"""Generated requests for a restaurant as pairs of texts."""

from __future__ import annotations

import random

from datasets import Dataset, Features, Value

from dair_hf.data.view_columns import VIEW_PREFIXES
from dair_hf.dialog.demo.names import make_names
from dair_hf.dialog.demo.texts import DAYS, PEOPLE, PRICES
from dair_hf.errors import DataError

# "[name]" is a restaurant.
_REQUESTS = (
    "a table at [name] , please",
    "book [name] for {people} people",
    "i want to eat at [name] on {day}",
    "is there a table for {people} at [name] ?",
    "[name] on {day} for {people} , please",
    "something {price} , please",
    "a {price} place for {people} people",
)
_REQUEST_VALUES = {"people": PEOPLE, "day": DAYS, "price": PRICES}
_KNOWN_NAMES, _OTHER_NAMES = 8, 16
# Given, as the type of a column cannot be inferred from rows without partners.
_FEATURES = Features(
    {"row_id": Value("string")}
    | {prefix + text: Value("string") for prefix in VIEW_PREFIXES for text in ("source", "target")}
)


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
    return Dataset.from_list(rows, features=_FEATURES)
