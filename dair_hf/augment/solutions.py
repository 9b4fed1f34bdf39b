"""Solutions of word problems: their calculations and spelled numbers."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from dair_hf.errors import DataError

# A number on its own: not part of a word, a decimal, a time, a date or an ordinal. The numbers of "3 1/2" stay.
_NUMBER = re.compile(
    r"(?<![\w.,:])(?<!\d[-/])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?!\d|\w*\d|st\b|nd\b|rd\b|th\b|[:.,]\d|-\d+-\d)"
)
_FRACTION = re.compile(r"(?:\d(?:\s+and)?[\s-]+)?\d+\s*/\s*\d|\d\s?[¼-¾⅐-⅞]")
WORDS = {
    "one": 1, "once": 1, "single": 1, "two": 2, "twice": 2, "double": 2, "doubles": 2, "doubled": 2, "half": 2,
    "halves": 2, "halved": 2, "pair": 2, "pairs": 2, "couple": 2, "both": 2, "three": 3, "thrice": 3, "triple": 3,
    "tripled": 3, "third": 3, "thirds": 3, "four": 4, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4,
    "quadruple": 4, "five": 5, "fifth": 5, "fifths": 5, "six": 6, "sixth": 6, "seven": 7, "week": 7, "weeks": 7,
    "weekly": 7, "eight": 8, "eighth": 8, "nine": 9, "ten": 10, "tenth": 10, "eleven": 11, "twelve": 12, "dozen": 12,
    "dozens": 12, "year": 12, "years": 12, "yearly": 12, "annual": 12, "foot": 12, "feet": 12, "thirteen": 13,
    "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20,
    "day": 24, "days": 24, "daily": 24, "thirty": 30, "month": 30, "months": 30, "forty": 40, "fifty": 50, "sixty": 60,
    "hour": 60, "hours": 60, "minute": 60, "minutes": 60, "seventy": 70, "eighty": 80, "ninety": 90, "percent": 100,
    "cent": 100, "cents": 100, "meter": 100, "meters": 100, "hundred": 100, "%": 100, "thousand": 1000,
}  # fmt: skip
_WORD = re.compile(r"[a-z]+|%")
_STEP = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")
_FINAL = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)")
_LITERAL = re.compile(r"\d[\d,]*\.?\d*|\.\d+")
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class SpelledNumber(NamedTuple):
    """A number in a text, from `start` to before `end`."""

    start: int
    end: int
    value: Fraction
    decimals: int
    has_commas: bool
    is_fixed: bool = False  # part of a fraction such as 1/2, which stays

    def draw(self, generator: random.Random) -> Fraction:
        """Return another number with as many digits before and after the decimal point, each equally likely.

        A number of one digit is 1 to 9, one below 1 is at least its smallest unit, and 0 stays 0.
        """
        unit, whole = 10**self.decimals, int(self.value)
        if self.value == 0:
            return self.value
        low = 10 ** (len(str(whole)) - 1) * unit if whole else 1
        high = 10 ** len(str(whole)) * unit - 1 if whole else unit - 1
        drawn = generator.randint(low, high)
        if self.decimals and drawn % 10 == 0:
            drawn += generator.randint(1, 9)  # or its last digit would be dropped
        return Fraction(drawn, unit)

    def spell(self, value: Fraction) -> str | None:
        """Return a value in this spelling; None if it needs more decimals, or is negative."""
        scaled = value * 10**self.decimals
        if value < 0 or scaled.denominator != 1:
            return None
        whole, rest = divmod(int(scaled), 10**self.decimals)
        text = f"{whole:,}" if self.has_commas else str(whole)
        return f"{text}.{rest:0{self.decimals}d}" if self.decimals else text


def find_numbers(text: str) -> list[SpelledNumber]:
    """Return the numbers of a text in their order, without those in words, ordinals, times, dates and versions."""
    fractions = [match.span() for match in _FRACTION.finditer(text)]
    found = []
    for match in _NUMBER.finditer(text):
        digits, decimals = match[1].replace(",", ""), match[2] or ""
        is_fixed = any(begin < match.end() and match.start() < end for begin, end in fractions)
        value = Fraction(digits + decimals)
        found.append(
            SpelledNumber(match.start(), match.end(), value, max(0, len(decimals) - 1), "," in match[1], is_fixed)
        )
    return found


def values_of_words(text: str) -> set[Fraction]:
    """Return the numbers that words stand for, or may stand for in a calculation: 2 for "twice", 60 for "hours"."""
    values = [Fraction(WORDS.get(word, 0)) for word in _WORD.findall(text.lower())]
    compounds = {tens + ones for tens, ones in pairwise(values) if tens in range(20, 100, 10) and ones < 10}
    products = {few * many for few, many in pairwise(values) if many in (100, 1000)}
    return {*values, *compounds, *products} - {Fraction()}


def rewrite(text: str, changes: Sequence[tuple[SpelledNumber, Fraction]]) -> str:
    """Return a text with other numbers, given in their order, each spelled as the old one."""
    parts, at = [], 0
    for spelled, value in changes:
        parts += [text[at : spelled.start], str(spelled.spell(value))]
        at = spelled.end
    return "".join([*parts, text[at:]])


@dataclass(frozen=True)
class Step:
    """One calculation of a solution: an expression of the names `x0`, `x1`, ..., their old values, the old result."""

    expression: ast.expr
    values: tuple[Fraction, ...]
    result: Fraction


@dataclass(frozen=True)
class Solution:
    """Calculation of an answer from the values of a question."""

    text: str
    steps: tuple[Step, ...]
    variables: frozenset[Fraction]
    function: Callable[[list[Fraction]], Fraction] | None = None
    numbers: tuple[tuple[Fraction, bool], ...] = ()

    def results(self, new: Mapping[Fraction, Fraction]) -> dict[Fraction, Fraction] | None:
        """Return old -> new result of every step; None if a result changes its kind, or does not fit its spelling."""
        results: dict[Fraction, Fraction] = {}
        try:
            if self.function is not None:
                old = self.function([value for value, _ in self.numbers])
                results[old] = self.function([new.get(value, value) if may else value for value, may in self.numbers])
            for step in self.steps:
                known = {**new, **results}
                values = [known.get(value, value) for value in step.values]
                results[step.result] = evaluate(step.expression, {f"x{at}": value for at, value in enumerate(values)})
        except (ArithmeticError, ValueError):
            return None
        for old, now in results.items():
            if now < 0 or (old > 0 and now == 0) or (old.denominator == 1 and now.denominator != 1):
                return None
        if any(spelled.spell(value) is None for spelled, value in self._changes(new, results)):
            return None
        return results

    def answer(self, new: Mapping[Fraction, Fraction], results: Mapping[Fraction, Fraction]) -> str:
        """Return the answer with new numbers."""
        return rewrite(self.text, self._changes(new, results))

    def _changes(
        self, new: Mapping[Fraction, Fraction], results: Mapping[Fraction, Fraction]
    ) -> list[tuple[SpelledNumber, Fraction]]:
        known = {**new, **results}
        found = _numbers_of_answer(self.text)
        return [(spelled, known[spelled.value]) for spelled in found if spelled.value in known]


def solution_by_steps(answer: str, free: Collection[Fraction], fixed: Collection[Fraction]) -> Solution | str:
    """Return the solution that an answer with annotations shows, or the reason why it shows none."""
    final, shown = _FINAL.search(answer), _STEP.findall(answer)
    if not shown:
        return "the answer has no steps such as <<48/2=24>>"
    if final is None:
        return "the answer does not end with its result, such as #### 72"
    steps: list[Step] = []
    for left, right in shown:
        try:
            expression, values = _expression(left)
            old = evaluate(expression, {f"x{at}": value for at, value in enumerate(values)})
        except (SyntaxError, ValueError, KeyError, ArithmeticError):
            return "a step is not a calculation with + - * / and brackets"
        try:
            stated = _number(right)
        except ValueError:
            return "a step states something other than a number"
        if old != stated:
            return "a step does not have the result that it states, not even rounded"
        steps.append(Step(expression, tuple(values), old))
    used = {value for step in steps for value in step.values}
    solution = Solution(answer, tuple(steps), frozenset(used & set(free)))
    if _number(final[1]) not in {step.result for step in steps}:
        return "the result of the answer is not the result of a step"
    return _second_way(steps, free, fixed) or _unknown_number(solution, free) or solution


def solution_by_formula(
    answer: str,
    numbers: Sequence[tuple[Fraction, bool]],
    fixed: Collection[Fraction],
    rule: str | Callable[[list[Fraction]], Any],
) -> Solution | str:
    """Return the solution of a formula, or the reason why it does not give the answer."""
    tree = ast.parse(rule.strip(), mode="eval").body if isinstance(rule, str) else None

    def calculate(values: list[Fraction]) -> Fraction:
        if tree is None:
            return Fraction(rule(values))  # type: ignore[operator]
        return evaluate(tree, {f"n{at}": value for at, value in enumerate(values, 1)})

    try:
        result = calculate([value for value, _ in numbers])
    except ArithmeticError:
        return "the formula divides by zero"
    except KeyError as error:
        return f"the formula names {error}, but the question has only {len(numbers)} numbers"
    shown = {spelled.value for spelled in _numbers_of_answer(answer)}
    free = {value for value, may in numbers if may}
    if result not in shown:
        return f"the formula gives {result} for the old numbers, which the answer does not contain"
    if len(shown) > 1 and (result in free or shown & free & set(fixed)):
        return "a number of the answer may come from the question or mean something else with the same value"
    return Solution(answer, (), frozenset(free), calculate, tuple(numbers))


def evaluate(tree: ast.expr, names: Mapping[str, Fraction]) -> Fraction:
    """Return the exact value of an expression of names, numbers, + - * / and brackets; nothing else runs.

    Example:
        >>> evaluate(ast.parse("n1 / n2", mode="eval").body, {"n1": Fraction(1), "n2": Fraction(3)})
        Fraction(1, 3)
    """
    if isinstance(tree, ast.Name):
        return names[tree.id]
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float) and not isinstance(tree.value, bool):
        return Fraction(str(tree.value))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -evaluate(tree.operand, names)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return Fraction(_OPERATIONS[type(tree.op)](evaluate(tree.left, names), evaluate(tree.right, names)))
    raise DataError(f"formula: expected n1, n2, ..., numbers, + - * / and brackets, got {ast.unparse(tree)!r:.80}")


def _expression(text: str) -> tuple[ast.expr, list[Fraction]]:
    """Return an expression with its numbers replaced by the names `x0`, `x1`, ..., and their values."""
    values: list[Fraction] = []

    def name(match: re.Match[str]) -> str:
        values.append(_number(match[0]))
        return f" x{len(values) - 1} "

    cleaned = text.replace("$", "").replace("x", "*").replace("%", "/100")
    return ast.parse(_LITERAL.sub(name, cleaned).strip(), mode="eval").body, values


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace("$", "").replace("%", "").strip())


def _numbers_of_answer(text: str) -> list[SpelledNumber]:
    """Return the numbers of an answer, also those within calculations such as `<<48/2=24>>`."""
    found = []
    for match in _LITERAL.finditer(text):
        literal = match[0].rstrip(".,")
        spelled = find_numbers(literal)
        if len(spelled) == 1 and spelled[0].end == len(literal):
            start = match.start()
            found.append(spelled[0]._replace(start=start, end=start + len(literal)))
    return found


def _second_way(steps: Sequence[Step], free: Collection[Fraction], fixed: Collection[Fraction]) -> str | None:
    """Return which value has two sources: numbers that may change, numbers and words that stay, and results."""
    if set(free) & set(fixed) & {value for step in steps for value in step.values}:
        return "a number of the question has the value of one that stays, or of a word such as twice"
    results: set[Fraction] = set()
    for step in steps:
        if step.result in results:
            return "two steps have the same result"
        if step.result in free or step.result in fixed or step.result in step.values:
            return "a result has the value of a number or a word of the question"
        results.add(step.result)
    for at, step in enumerate(steps):
        if {later.result for later in steps[at:]} & set(step.values):
            return "a step uses the result of a later one"
    return None


def _unknown_number(solution: Solution, free: Collection[Fraction]) -> str | None:
    """Return why an answer holds a number of the question that its steps do not explain."""
    if not solution.variables:
        return "no step uses a number of the question that may change"
    shown = {spelled.value for spelled in _numbers_of_answer(solution.text)}
    if (shown & set(free)) - solution.variables - {step.result for step in solution.steps}:
        return "the answer mentions a number of the question that no step uses"
    return None
