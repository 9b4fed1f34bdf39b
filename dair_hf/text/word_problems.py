"""Generated word problems with one or two steps, and their formulas."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import datasets

from dair_hf.data.collator import ROW_ID
from dair_hf.errors import DataError

ATTEMPTS = 1000  # draws of a problem before it is given up
FORMULA = "formula"  # column with the calculation, for `NumberAugmenter(formula_column=...)`
NAMES = ("Ann", "Ben", "Carla", "Dev", "Eva", "Femi", "Gus", "Hana")
THINGS = ("apples", "books", "coins", "pens", "stamps", "shells")
# Question, formula and answer. The first number has two digits, the second one.
TEMPLATES = (
    ("{a} has {x} {t} , {b} has {y} . How many has {a} ?", "n1", "{x}"),
    ("{b} has {y} {t} , {a} has {x} . How many has {b} ?", "n1", "{y}"),
    ("{a} has {x} {t} and gets {y} . How many now ?", "n1 + n2", "{x} + {y} = {sum}"),
    ("{a} has {x} {t} and gives {b} {y} . How many now ?", "n1 - n2", "{x} - {y} = {difference}"),
)


def generate_problems(
    count: int, numbers: Sequence[int], seed: int, name: str = "train", exclude: Collection[int] = ()
) -> datasets.Dataset:
    """Generate word problems whose first number comes from a list; the second one is 1 to 9.

    Args:
        count: Number of problems, >= 1.
        numbers: First numbers of the questions, all above 9.
        seed: Seed of names, things and numbers.
        name: Beginning of the `row_id`.
        exclude: Values that no answer has; such a problem is drawn again.

    Returns:
        `count` rows of `row_id`, `prompt`, `completion` and `formula`.

    Raises:
        DataError: No numbers, or one below 10, or only excluded answers are found.

    Example:
        >>> row = generate_problems(1, [20], seed=4)[0]
        >>> row["prompt"], row["completion"], row["formula"]
        ('Ben has 8 coins , Gus has 20 . How many has Ben ?', '8', 'n1')
    """
    if not numbers or min(numbers) < 10:
        raise DataError(f"numbers={sorted(numbers)!r:.80}: give whole numbers from 10 on")
    generator = random.Random(f"word problems/{name}/{seed}")
    values, rows = sorted(numbers), []
    for row in range(count):
        for _ in range(ATTEMPTS):
            question, formula, answer = generator.choice(TEMPLATES)
            first, second = generator.sample(NAMES, 2)
            x, y = generator.choice(values), generator.randint(1, 9)
            prompt = question.format(a=first, b=second, t=generator.choice(THINGS), x=x, y=y)
            completion = answer.format(x=x, y=y, sum=x + y, difference=x - y)
            if int(completion.split()[-1]) not in exclude:
                break
        else:
            raise DataError(f"exclude: {ATTEMPTS} answers in turn were excluded; exclude fewer values")
        rows.append({ROW_ID: f"{name}/{row}", "prompt": prompt, "completion": completion, FORMULA: formula})
    return datasets.Dataset.from_list(rows)


def known_and_unseen(numbers: Sequence[int], known: int, seed: int) -> tuple[list[int], list[int]]:
    """Split numbers at random into some that training problems have, and the others."""
    if not 2 <= known <= len(numbers) - 2:
        raise DataError(f"known={known}: give a number from 2 to {len(numbers) - 2}, as there are {len(numbers)}")
    order = list(numbers)
    random.Random(f"known numbers/{seed}").shuffle(order)
    return sorted(order[:known]), order[known:]
