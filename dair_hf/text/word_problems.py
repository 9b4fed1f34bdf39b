"""Generated word problems with one or two steps, and their formulas."""

from __future__ import annotations

import random
from collections.abc import Sequence

import datasets

from dair_hf.data.collator import ROW_ID
from dair_hf.errors import DataError

FORMULA = "formula"  # column with the calculation, for `NumberAugmenter(formula_column=...)`
NAMES = ("Ann", "Ben", "Carla", "Dev", "Eva", "Femi", "Gus", "Hana")
THINGS = ("apples", "books", "coins", "pens", "stamps", "shells")
# Question and formula; numbers in their order in the question. The second number of a difference is the smaller one.
TEMPLATES = (
    ("{a} has {x} {t} . {b} has {y} {t} . How many {t} does {a} have ?", "n1"),
    ("{a} has {x} {t} . {b} has {y} {t} . How many {t} does {b} have ?", "n2"),
    ("{a} has {x} {t} . {b} gives {a} {y} {t} . How many {t} does {a} have now ?", "n1 + n2"),
    ("{a} buys {y} {t} and finds {x} {t} . How many {t} is that in all ?", "n1 + n2"),
    ("{a} has {x} {t} and gives {y} {t} to {b} . How many {t} are left ?", "n1 - n2"),
)


def generate_problems(
    count: int, numbers: Sequence[int], seed: int, name: str = "train", templates: Sequence[int] | None = None
) -> datasets.Dataset:
    """Generate word problems whose numbers come from a list.

    Args:
        count: Number of problems, >= 1.
        numbers: Numbers of the questions, at least two, all positive.
        seed: Seed of names, things and numbers.
        name: Beginning of the `row_id`.
        templates: Numbers of the templates; None: all of `TEMPLATES`.

    Returns:
        `count` rows of `row_id`, `prompt`, `completion` and `formula`.

    Raises:
        DataError: Fewer than two numbers, or one that is not positive.

    Example:
        >>> row = generate_problems(1, [3, 20], seed=0, templates=[4])[0]
        >>> row["completion"], row["formula"]
        ('17', 'n1 - n2')
    """
    values = sorted(set(numbers))
    if len(values) < 2 or values[0] < 1:
        raise DataError(f"numbers={values!r:.80}: give at least two positive numbers")
    generator = random.Random(f"word problems/{name}/{seed}")
    chosen = range(len(TEMPLATES)) if templates is None else templates
    rows = []
    for row in range(count):
        question, formula = TEMPLATES[generator.choice(list(chosen))]
        first, second = generator.sample(NAMES, 2)
        low, high = sorted(generator.sample(values, 2))
        x, y = (high, low) if "-" in formula or generator.random() < 0.5 else (low, high)
        prompt = question.format(a=first, b=second, t=generator.choice(THINGS), x=x, y=y)
        result = {"n1": x, "n2": y, "n1 + n2": x + y, "n1 - n2": x - y}[formula]
        rows.append({ROW_ID: f"{name}/{row}", "prompt": prompt, "completion": str(result), FORMULA: formula})
    return datasets.Dataset.from_list(rows)


def known_and_unseen(numbers: Sequence[int], known: int, seed: int) -> tuple[list[int], list[int]]:
    """Split numbers into some that training problems have.

    Returns:
        `known` of the numbers, and those of the test.

    Raises:
        DataError: Too few numbers are left.

    Example:
        >>> known, unseen = known_and_unseen(range(10, 100), 20, seed=0)
        >>> len(known), len(unseen), set(known) & set(unseen)
        (20, 70, set())
    """
    if not 2 <= known <= len(numbers) - 2:
        raise DataError(f"known={known}: give a number from 2 to {len(numbers) - 2}, as there are {len(numbers)}")
    order = list(numbers)
    random.Random(f"known numbers/{seed}").shuffle(order)
    return sorted(order[:known]), sorted(order[known:])
