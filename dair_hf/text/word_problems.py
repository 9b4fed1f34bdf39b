"""Generated word problems with one or two steps, their formulas, and a tokenizer for models that compute."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

import datasets
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dair_hf.data.collator import ROW_ID
from dair_hf.errors import DataError

ATTEMPTS = 1000  # draws of a problem before it is given up
FORMULA = "formula"  # column with the calculation, for `NumberAugmenter(formula_column=...)`
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
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
        numbers: First numbers of the questions, of two digits.
        seed: Seed of names, things and numbers.
        name: Beginning of the `row_id`.
        exclude: Values that no answer has; such a problem is drawn again.

    Returns:
        `count` rows of `row_id`, `prompt`, `completion` and `formula`.

    Raises:
        DataError: Only excluded answers are found.

    Example:
        >>> row = generate_problems(1, [20], seed=4)[0]
        >>> row["prompt"], row["completion"], row["formula"]
        ('Ben has 8 coins , Gus has 20 . How many has Ben ?', '8', 'n1')
    """
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
            raise DataError(f"exclude: {ATTEMPTS} answers in a row were excluded; expected fewer values")
        rows.append({ROW_ID: f"{name}/{row}", "prompt": prompt, "completion": completion, FORMULA: formula})
    return datasets.Dataset.from_list(rows)


def build_problem_tokenizer(texts: Iterable[str], model_max_length: int = 128) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are the words of texts, punctuation marks, and all ten digits one by one.

    Args:
        texts: Training texts.
        model_max_length: Maximum number of tokens, stored with the tokenizer.

    Returns:
        A tokenizer with `<pad>`, `</s>` and `<unk>`.

    Example:
        >>> build_problem_tokenizer(["Ann has 23 pens ."]).tokenize("Ann has 907 pens .")
        ['Ann', 'has', '9', '0', '7', 'pens', '.']
    """
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(text)}
    vocabulary = [PAD, END, UNKNOWN, *"0123456789", *sorted(words - set("0123456789"))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, END, UNKNOWN)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
