"""Budget of the package: its size, its refusals and its public names may shrink, and not grow back."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT

# Lower a limit with every room that becomes smaller.
FILES = 208
LINES = 32_937
TEST_LINES = 39_608
RAISES_PER_1000 = 16  # in the package, of lines of code
RAISES_PER_1000_OF_A_ROOM = 28
PUBLIC_NAMES = 650
NAMES_DEFINED_TWICE = 0
MODULES_OF_THE_TRAINER = 42


class Size(NamedTuple):
    """Size of a source file; lines of code are neither blank, nor comments, nor docstrings."""

    lines: int
    code: int
    raises: int
    names: tuple[str, ...]


def size_of(source: str) -> Size:
    tree = ast.parse(source)
    code = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip()[:1] not in ("", "#")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            code -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    raises = sum(isinstance(node, ast.Raise) for node in ast.walk(tree))
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return Size(source.count("\n"), len(code), raises, tuple(name for name in defined if not name.startswith("_")))


def sizes_in(folder: Path) -> dict[Path, Size]:
    return {path.relative_to(folder): size_of(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}


PACKAGE = sizes_in(ROOT / "dair_hf")


def test_size_of_a_source() -> None:
    function = 'def f(x):\n    """Return."""\n    if x:\n        raise E(\n            x\n        )\n'
    source = f'"""Module."""\n\n# A comment.\n{function}\n\ndef _g(): pass\n\n\nclass K: ...\n'
    assert size_of(source) == Size(15, 7, 1, ("f", "K"))


def test_package_does_not_grow() -> None:
    assert len(PACKAGE) <= FILES
    assert sum(size.lines for size in PACKAGE.values()) <= LINES
    assert sum(path.read_bytes().count(b"\n") for path in (ROOT / "tests").rglob("*.py")) <= TEST_LINES


def test_refusals_do_not_grow() -> None:
    raises, code = Counter[str](), Counter[str]()
    for path, size in PACKAGE.items():
        room = path.parts[0] if len(path.parts) > 1 else ""
        raises[room] += size.raises
        code[room] += size.code
    assert 1000 * raises.total() / code.total() <= RAISES_PER_1000
    shares = {room: round(1000 * raises[room] / code[room], 1) for room in code}
    assert {room: share for room, share in shares.items() if share > RAISES_PER_1000_OF_A_ROOM} == {}


def test_public_names_do_not_grow() -> None:
    counts = Counter(name for size in PACKAGE.values() for name in size.names)
    assert counts.total() <= PUBLIC_NAMES
    assert len([name for name, count in counts.items() if count > 1]) <= NAMES_DEFINED_TWICE


def test_trainer_loads_few_modules() -> None:
    script = "import sys; from dair_hf import DAIRTrainer; print(*sys.modules)"
    loaded = [name for name in forked("-c", script).stdout.split() if name.startswith("dair_hf.")]
    assert 0 < len(loaded) <= MODULES_OF_THE_TRAINER
