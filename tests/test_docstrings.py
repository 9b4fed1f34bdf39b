"""Examples in docstrings: each shows what the code returns."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.fixtures.paths import ROOT

FILES = sorted(path for path in (ROOT / "dair_hf").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]


def failures(examples: str) -> list[str]:
    """Return the examples of a text that do not print what they show."""
    parsed = doctest.DocTestParser().get_doctest(examples, {}, "text", None, None)
    return run([parsed])


def run(tests: list[doctest.DocTest]) -> list[str]:
    wrong: list[str] = []
    for test in tests:
        doctest.DocTestRunner(verbose=False, optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(test, out=wrong.append)
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_a_module(module: str) -> None:
    assert "".join(run(doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module)))) == ""


def test_a_wrong_example_is_noticed() -> None:
    assert failures(">>> 1 + 1\n2\n") == []
    (report,) = failures(">>> 1 + 1\n3\n")
    assert "Expected:\n    3\nGot:\n    2" in report
