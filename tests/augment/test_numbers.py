"""Partners with other numbers: their answers by plain arithmetic on the new texts, and rows that must stay alone."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

import datasets
import pytest

from dair_hf import DataError
from dair_hf.augment.numbers import NO_DRAW, NO_NUMBERS, NumberAugmenter
from dair_hf.augment.solutions import find_numbers

CLIPS = "Natalia sold 48 clips in April, and 3 times 50 in May. How many did she sell altogether?"
CLIPS_ANSWER = "In May 3*50=<<3*50=150>>150 clips. Together <<48+150=198>>198 clips.\n#### 198"


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_steps_are_worked_out_again() -> None:
    """Question and answer of many draws, calculated from the text of the question by floats."""
    seen = set()
    for row in range(200):
        partner = NumberAugmenter(seed=3).partner(CLIPS, CLIPS_ANSWER, f"r/{row}")
        assert partner.question is not None and partner.answer is not None and partner.reason is None
        april, times, each = numbers(partner.question)
        assert 10 <= april <= 99 and 1 <= times <= 9 and 10 <= each <= 99
        assert re.sub(r"\d+", "0", partner.question) == re.sub(r"\d+", "0", CLIPS)
        may, both = times * each, april + times * each
        wanted = [times, each, times, each, may, may, april, may, both, both, both]
        assert numbers(partner.answer) == wanted
        seen.add(partner.question)
    assert len(seen) > 190


def test_numbers_keep_their_spelling_and_size() -> None:
    question = "A car costs $12,500 and 3.5 litres, or 40 pounds at 7:30 on the 2nd floor. And 1/2 more?"
    augmenter, draws = NumberAugmenter("n1 - n3 * n2"), Counter[int]()
    for row in range(300):
        partner = augmenter.partner(question, "It is $12,360.00.", str(row))
        assert partner.question is not None and partner.answer is not None
        found = re.fullmatch(
            r"A car costs \$(\d\d,\d{3}) and (\d\.[1-9]) litres, or (\d\d) pounds at 7:30 on the 2nd floor\. "
            r"And 1/2 more\?",
            partner.question,
        )
        assert found is not None
        price, litres, pounds = (Fraction(part.replace(",", "")) for part in found.groups())
        assert re.fullmatch(r"It is \$[\d,]+\.\d\d\.", partner.answer)
        shown = Fraction(re.findall(r"\$([\d,.]+)\.$", partner.answer)[0].replace(",", ""))
        assert shown == price - pounds * litres
        draws[int(pounds) // 10] += 1
    # Each first digit of a number of two digits is as likely as any other: 300 / 9 draws, five standard deviations.
    assert set(draws) == set(range(1, 10)) and max(abs(count - 300 / 9) for count in draws.values()) < 5 * 5.5


def test_draws_follow_from_seed_and_row_id_only() -> None:
    rows = datasets.Dataset.from_dict(
        {"row_id": ["a", "b", "c"], "prompt": ["Add 23 and 14"] * 3, "completion": ["37"] * 3}
    )
    made, report = NumberAugmenter("n1 + n2", partners=2, seed=1).pairs(rows)
    moved, _ = NumberAugmenter("n1 + n2", partners=2, seed=1).pairs(rows.select([2, 0]))
    assert moved.to_list() == [made[2], made[0]] and report.changed == 3
    texts = {row[name] for row in made for name in ("augmented_prompt", "augmented_2_prompt")}
    assert len(texts) == 6
    other, _ = NumberAugmenter("n1 + n2", seed=2).pairs(rows)
    assert other["augmented_prompt"][:] != made["augmented_prompt"][:]
    for row in made:
        for prefix in ("augmented_", "augmented_2_"):
            assert sum(numbers(row[prefix + "prompt"])) == float(row[prefix + "completion"])


def test_numbers_that_stay() -> None:
    question = "2 cars with 4 wheels, and 13 bikes with 2 wheels. How many wheels?"
    augmenter = NumberAugmenter("n1 * n2 + n3 * n4", keep=r"\d+ wheels", exclude=[11, 12, 13])
    for row in range(50):
        partner = augmenter.partner(question, "34", str(row))
        assert partner.question is not None and partner.answer is not None
        cars, four, bikes, two = numbers(partner.question)
        assert (four, two) == (4, 2) and bikes not in (11, 12, 13) and cars != 2
        assert float(partner.answer) == cars * 4 + bikes * 2
    assert NumberAugmenter("n1 * n2 + n3 * n4", keep=r"\d+").partner(question, "34", "0").reason == NO_NUMBERS


@pytest.mark.parametrize("hours", ["3 1/2", "3-1/2", "3 and 1/2", "3½", "3 ⅔"])
def test_mixed_numbers_stay(hours: str) -> None:
    assert [number for number in find_numbers(f"Work {hours} hours.") if not number.is_fixed] == []


def test_equal_numbers_change_together() -> None:
    partner = NumberAugmenter(lambda values: values[0] * values[1]).partner("5 boxes of 5", "25", "0")
    assert partner.question is not None and partner.answer is not None
    first, second = numbers(partner.question)
    assert first == second != 5 and float(partner.answer) == first * second


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        (CLIPS, "198", "the answer has no steps such as <<48/2=24>>"),
        (CLIPS, CLIPS_ANSWER.replace("#### 198", ""), "the answer does not end with its result"),
        (CLIPS, CLIPS_ANSWER.replace("#### 198", "#### 199"), "the result of the answer is not the result of a step"),
        (CLIPS, CLIPS_ANSWER.replace("48+150=198", "48+150=199"), "a step does not have the result that it states"),
        (CLIPS, CLIPS_ANSWER.replace("48+150", "f(48)+150"), "a step is not a calculation"),
        # "twice" may be the 2 of a step, or that of "2 days".
        ("He runs twice for 2 days, 9 miles each.", "<<9*2=18>>18 #### 18", "has the value of one that stays"),
        ("Fifteen cost 15 each.", "<<15*15=225>>225 #### 225", "has the value of one that stays"),
        ("He has twenty-five and 25.", "<<25+25=50>>50 #### 50", "has the value of one that stays"),
        ("Two hundred pay 200 each.", "<<200*200=40000>>40000 #### 40000", "has the value of one that stays"),
        ("For 3 1/2 hours, 3 days.", "<<3.5*3=10.5>>10.5 #### 10.5", "has the value of one that stays"),
        ("For 3½ hours, 3 days.", "<<3.5*3=10.5>>10.5 #### 10.5", "has the value of one that stays"),
        ("He has 24 and 48.", "<<48/2=24>>24 #### 24", "a result has the value of a number"),
        ("He has 10, 5 and 20.", "<<10-4=6>>6 <<5+1=6>>6 <<20-6=14>>14 #### 14", "two steps have the same result"),
        ("He has 8 and 9.", "<<2+3=5>>5 #### 5", "no step uses a number of the question"),
        ("He has 8 and 9.", "Of 9: <<8+3=11>>11 #### 11", "the answer mentions a number of the question that no step"),
    ],
)  # fmt: skip
def test_answers_that_do_not_follow_have_no_partner(question: str, answer: str, reason: str) -> None:
    partner = NumberAugmenter().partner(question, answer, "0")
    assert partner.question is None and partner.answer is None
    assert partner.reason is not None and reason in partner.reason


def test_results_stay_whole_and_positive() -> None:
    augmenter = NumberAugmenter()
    for row in range(100):
        partner = augmenter.partner("She packs 48 in 6 bags.", "<<48/6=8>>8 #### 8", str(row))
        if partner.question is not None:
            total, bags = numbers(partner.question)
            assert partner.answer is not None and total % bags == 0 and total / bags == numbers(partner.answer)[-1]
    never = NumberAugmenter("n1 - n2", exclude=range(11, 100))
    assert never.partner("98 minus 10", "88", "0").reason == NO_DRAW


def test_the_report_counts_rows_and_reasons() -> None:
    rows = datasets.Dataset.from_dict({"prompt": [CLIPS, CLIPS, "none"], "completion": [CLIPS_ANSWER, "5", "5"]})
    made, report = NumberAugmenter().pairs(rows)
    assert made["row_id"][:] == ["0", "1", "2"] and made["augmented_prompt"][1:] == [None, None]
    assert (report.rows, report.changed, list(report.skipped.values())) == (3, 1, [["1", "2"]])
    assert str(report).startswith(
        "1 of 3 rows have a partner with other numbers\n2 have none, such as row '1': the ans"
    )


@pytest.mark.parametrize("formula", ["__import__('os')", "n1 ** n2", "[n1]", "n1 if n2 else 0"])
def test_a_formula_runs_arithmetic_only(formula: str) -> None:
    with pytest.raises(DataError, match="formula"):
        NumberAugmenter(formula).partner("5 and 6", "11", "0")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,200 and 3.50, B2, 2nd, 3:30, 2020-05-03, 10-year", ["1200", "7/2", "10"]),
        ("12%, $5, x7, 0.25.", ["12", "5", "1/4"]),
        ("no", []),
    ],
)
def test_numbers_of_a_text(text: str, values: list[str]) -> None:
    assert [str(number.value) for number in find_numbers(text)] == values
