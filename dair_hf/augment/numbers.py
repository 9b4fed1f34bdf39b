"""Partners of word problems: other numbers in the question, and the answer that follows from them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import datasets

from dair_hf.augment.solutions import (
    Solution,
    SpelledNumber,
    find_numbers,
    rewrite,
    solution_by_formula,
    solution_by_steps,
    values_of_words,
)
from dair_hf.data.collator import ROW_ID
from dair_hf.data.view_columns import view_prefix
from dair_hf.errors import DataError

Formula = Callable[[list[Fraction]], Any]

REASON = "_number_reason"  # column with the reason why a row has no partner, dropped after it was counted
ATTEMPTS = 200  # to draw new numbers, before giving up on a row
NO_NUMBERS = "the question has no number that may change"
NO_DRAW = "no new numbers were found that are allowed and keep the kind of every result (whole, positive)"


class _NumberPartner(NamedTuple):
    """Partner of a problem, or the reason why it has none."""

    question: str | None
    answer: str | None
    reason: str | None


@dataclass
class _NumberReport:
    """Counts of the rows that got a partner with other numbers, and of the reasons why the rest did not."""

    rows: int
    changed: int
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.changed} of {self.rows} rows have a partner with other numbers"]
        for reason, rows in sorted(self.skipped.items(), key=lambda item: -len(item[1])):
            lines.append(f"{len(rows)} have none, such as row {rows[0]!r}: {reason}")
        return "\n".join(lines)


class NumberAugmenter:
    r"""Changes the numbers of word problems, and the answer with them.

    New numbers have as many digits before and after the decimal point as the old ones, and the same spelling: `1,200`
    may become `3,750`, `$40` `$85`, and `3.5` `7.2`. Numbers with equal values change together. A row gets a
    partner only if its answer follows from its numbers in exactly one way; the report gives the reasons for the others.

    How the answer follows is given by

    - the answer itself, if it shows its steps in the annotations of GSM8K, `<<48/2=24>>`, and ends with `#### 72`: a
      number of a step is the result of an earlier step, a number of the question, or a constant (`answer=None`);
    - a formula, an expression of `n1`, `n2`, ... (the numbers of the question in order, kept ones included),
      such as `"n1 * n2 - n3"`;
    - a function of the list of these numbers, as `fractions.Fraction`, that returns the result;
    - a column with such an expression for every row (`formula_column`).

    The old numbers must give the old answer. New results must be positive and whole where the old ones were, and need
    no more decimals; other draws are repeated. Numbers are also changed in the text of the answer.

    A step may contain a constant that only the meaning of the question gives, such as the 4 sides of a square. If a
    number of the question has the same value, it is taken for that number, except for common words ("twice", "half",
    "dozen", "hours", `augment.solutions.WORDS`), whose rows get no partner. Read some partners before you train.

    Args:
        answer: Expression or function; None: the annotations.
        formula_column: Column of expressions, in place of `answer`.
        question: Column of the question.
        target: Column of the answer.
        keep: Regular expression. Numbers that overlap a match stay unchanged, for example
            `r"\d+ wheels|\d+ minutes per hour"`.
        exclude: Values that are never drawn, such as numbers of the test.
        exclude_results: Values that no new result may have; such numbers are drawn again.
        partners: Number of partners per row, >= 1.
        seed: Draws depend on it, the `row_id` and the number of the partner only.

    Raises:
        DataError: Both `answer` and `formula_column` are given, or an expression is more than arithmetic.

    Example:
        >>> augmenter = NumberAugmenter("n1 + n2", seed=1)
        >>> partner = augmenter.partner("Ann has 23 pens and buys 14. How many?", "37", "a/0")
        >>> partner.question, partner.answer
        ('Ann has 68 pens and buys 75. How many?', '143')
        >>> augmenter.partner("Ann has 23 pens and buys 14. How many?", "36", "a/0").reason
        'the formula gives 37 for the old numbers, which the answer does not contain'
    """

    revision = 3  # part of the fingerprint by which `Dataset.map` finds earlier results

    def __init__(
        self,
        answer: Formula | str | None = None,
        *,
        formula_column: str | None = None,
        question: str = "prompt",
        target: str = "completion",
        keep: str | None = None,
        exclude: Collection[int] = (),
        exclude_results: Collection[int] = (),
        partners: int = 1,
        seed: int = 0,
    ) -> None:
        if answer is not None and formula_column is not None:
            raise DataError(f"answer={answer!r}, formula_column={formula_column!r}: expected one of them")
        self.keep = None if keep is None else re.compile(keep)
        self.answer, self.formula_column = answer, formula_column
        self.question, self.target = question, target
        self.exclude = frozenset(map(Fraction, exclude))
        self.exclude_results = frozenset(map(Fraction, exclude_results))
        self.partners, self.seed, self.made_by = partners, seed, self.revision

    def pairs(self, rows: datasets.Dataset) -> tuple[datasets.Dataset, _NumberReport]:
        """Return rows with the columns of partners, None for rows without one, and a report on them.

        Rows without `row_id` get their number.
        """
        if ROW_ID not in rows.column_names:
            rows = rows.add_column(ROW_ID, [str(number) for number in range(len(rows))])
        prefixes = map(view_prefix, range(1, 1 + self.partners))
        texts = sorted(prefix + name for prefix in prefixes for name in (self.question, self.target))
        features = {**rows.features, **dict.fromkeys(texts, datasets.Value("string"))}
        pairs = rows.map(
            self, features=datasets.Features({**features, REASON: datasets.Value("string")}), desc="Changing numbers"
        )
        skipped: dict[str, list[str]] = {}
        for row_id, reason in zip(pairs[ROW_ID], pairs[REASON], strict=True):
            if reason is not None:
                skipped.setdefault(reason, []).append(str(row_id))
        count = len(rows) - sum(map(len, skipped.values()))
        return pairs.remove_columns(REASON), _NumberReport(len(rows), count, skipped)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the partners of a row, and the reason if the first has none."""
        columns: dict[str, Any] = {}
        formula = row[self.formula_column] if self.formula_column else None
        earlier: set[str | None] = set()
        for number in range(1, 1 + self.partners):
            made = self.partner(row[self.question], row[self.target], str(row[ROW_ID]), number, formula, earlier)
            earlier.add(made.question)
            prefix = view_prefix(number)
            columns |= {prefix + self.question: made.question, prefix + self.target: made.answer}
            columns.setdefault(REASON, made.reason)
        return columns

    def partner(
        self,
        question: str,
        answer: str,
        row_id: str,
        number: int = 1,
        formula: str | None = None,
        earlier: Collection[str | None] = (),
    ) -> _NumberPartner:
        """Return the partner of one problem.

        Args:
            question: The question.
            answer: The answer.
            row_id: Its name, which determines the draws.
            number: Number of the partner.
            formula: Expression for this row.
            earlier: Questions of the partners with lower numbers, which are not drawn again.
        """
        numbers = find_numbers(question)
        kept = self._kept(question, numbers)
        rule = self.answer if formula is None else formula
        solution = self._solution(question, answer, numbers, kept, rule)
        if isinstance(solution, str):
            return _NumberPartner(None, None, solution)
        free = [spelled for at, spelled in enumerate(numbers) if at not in kept and spelled.value in solution.variables]
        if not free:
            return _NumberPartner(None, None, NO_NUMBERS)
        generator = random.Random(f"numbers/{self.seed}/{number}/{row_id}")
        for _ in range(ATTEMPTS):
            new = self._draw(free, generator)
            results = None if new is None else solution.results(new)
            if new is None or results is None or not self.exclude_results.isdisjoint(results.values()):
                continue
            changed = {at: new[s.value] for at, s in enumerate(numbers) if at not in kept and s.value in new}
            text = rewrite(question, [(s, changed[at]) for at, s in enumerate(numbers) if at in changed])
            if text not in earlier:
                return _NumberPartner(text, solution.answer(new, results), None)
        return _NumberPartner(None, None, NO_DRAW)

    def _solution(
        self, question: str, answer: str, numbers: Sequence[SpelledNumber], kept: Collection[int], rule: Any
    ) -> Solution | str:
        free = {spelled.value for at, spelled in enumerate(numbers) if at not in kept}
        fixed = {spelled.value for at, spelled in enumerate(numbers) if at in kept} | values_of_words(question)
        if rule is None:
            return solution_by_steps(answer, free, fixed)
        return solution_by_formula(
            answer, [(spelled.value, at not in kept) for at, spelled in enumerate(numbers)], fixed, rule
        )

    def _kept(self, question: str, numbers: Sequence[SpelledNumber]) -> set[int]:
        """Return the numbers of a question that stay: numbers that `keep` matches, and parts of fractions."""
        spans = [] if self.keep is None else [match.span() for match in self.keep.finditer(question)]
        return {
            at
            for at, spelled in enumerate(numbers)
            if spelled.is_fixed or any(begin < spelled.end and spelled.start < end for begin, end in spans)
        }

    def _draw(self, free: Sequence[SpelledNumber], generator: random.Random) -> dict[Fraction, Fraction] | None:
        """Return old -> new value; None if two values became equal, or a value is excluded."""
        new: dict[Fraction, Fraction] = {}
        for spelled in free:
            if spelled.value not in new:
                new[spelled.value] = spelled.draw(generator)
        values = Counter(new.values())
        if any(spelled.spell(new[spelled.value]) is None for spelled in free):
            return None  # of two spellings of a value, 3 and 3.0, one has fewer decimals
        if max(values.values()) > 1 or self.exclude & set(values) or any(old == now for old, now in new.items()):
            return None
        return new
