"""Architecture: rooms, floors and the picture of both."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from docs import draw_architecture as architecture
from tests.fixtures.paths import ROOT

# Floors from bottom to top. A room imports only from lower floors; the tasks know neither the trainer nor each other.
FLOORS = (
    {"errors", "lazy"},
    {"settings"},
    {"io", "losses", "modeling", "word_tokenizer"},
    {"data"},
    {"config", "augment", "trees"},
    {"evaluation"},
    {"metrics", "pair_report"},
    {"training", "dialog", "regression", "text", "vision", "vqa"},
    {"experiments"},
    {"commands"},
)
NEW_ROOM = (
    "the room {room!r} has no floor: add it to FLOORS in tests/test_architecture.py, above all that it imports, and to "
    "the table of docs/architecture.md; then run python docs/draw_architecture.py"
)
TOPS = ("reproduction", "recipes", "data_scripts", "benchmarks", "tests")

FILES = architecture.modules()
GRAPH = architecture.file_graph(FILES)
ROOMS = architecture.room_graph(GRAPH)


def floor_violations(module: str, source: str) -> list[str]:
    """Imports of a module that break the rules of the floors."""
    rank = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    room = module.split(".")[1]
    if room not in rank:
        return [f"{module}: {NEW_ROOM.format(room=room)}"]
    violations = []
    for target in architecture.imported_names(source):
        top, _, inside = target.partition(".")
        if top in TOPS:
            violations.append(f"{module} imports {target}: that stands above the package")
        if top != "dair_hf" or target not in {*FILES, "dair_hf"}:
            continue
        target_room = inside.split(".")[0]
        if target_room == room:
            continue
        # The package itself brings the trainer.
        if target_room in ROOMS and target_room not in rank:
            violations.append(f"{module} imports {target}: {NEW_ROOM.format(room=target_room)}")
        elif not target_room or rank[target_room] >= rank[room]:
            violations.append(f"{module} imports {target}: that is not on a lower floor")
    return violations


def test_every_room_has_a_floor() -> None:
    placed = set().union(*FLOORS)
    assert [NEW_ROOM.format(room=room) for room in sorted(set(ROOMS) - placed)] == []
    assert placed - set(ROOMS) == set(), "FLOORS names a room that does not exist"


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_module_imports_only_from_floors_below(module: str) -> None:
    assert floor_violations(module, FILES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dair_hf.data.collator", "import dair_hf.dialog.rows"),
        ("dair_hf.losses.objective", "def f():\n    import dair_hf.data.collator"),
        ("dair_hf.io.files", "from dair_hf import evaluation"),
        ("dair_hf.dialog.rows", "import dair_hf.training.trainer"),
        ("dair_hf.dialog.rows", "import dair_hf"),
        ("dair_hf.dialog.rows", "import dair_hf.vision.networks"),
        ("dair_hf.metrics.items", "import dair_hf.vqa.answers"),
        ("dair_hf.config", "import recipes.multiwoz_simpletod"),
        ("dair_hf.new_room.task", "import torch"),
    ],
)
def test_floor_rule_sees_violations(module: str, source: str) -> None:
    assert floor_violations(module, source) != []


def test_floor_rule_allows_what_is_below() -> None:
    source = "import torch\nimport dair_hf.errors\nimport dair_hf.dialog.rows"
    assert floor_violations("dair_hf.dialog.rows", source) == []


def test_no_module_reaches_itself() -> None:
    assert architecture.circles(GRAPH) == []
    assert architecture.circles(ROOMS) == []


def test_the_house_stays_small_enough_to_take_in() -> None:
    assert len(ROOMS) <= 22
    assert sum(map(len, ROOMS.values())) <= 100
    per_folder: dict[Path, int] = {}
    for file in FILES.values():
        per_folder[file.parent] = per_folder.get(file.parent, 0) + 1
    assert {str(folder): count for folder, count in per_folder.items() if count > 12} == {}


def test_graph_of_a_small_package(tmp_path: Path) -> None:
    package = tmp_path / "dair_hf"
    for name, source in {
        "__init__.py": "from dair_hf.top.a import x",
        "low.py": "x = 1",
        "top/__init__.py": "from dair_hf.top import a",
        "top/a.py": "def f():\n    from dair_hf.low import x",
        "top/b.py": "import torch\nfrom dair_hf.top import a\nimport dair_hf.low",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    graph = architecture.file_graph(architecture.modules(tmp_path))
    assert graph == {
        "dair_hf.low": set(),
        "dair_hf.top.a": {"dair_hf.low"},
        "dair_hf.top.b": {"dair_hf.top.a", "dair_hf.low"},
    }
    rooms = architecture.room_graph(graph)
    assert rooms == {"low": set(), "top": {"low"}}
    picture = architecture.svg(rooms)
    assert re.findall(r">(\w+)</text>", picture) == ["low", "top"]
    assert picture.count("<path") == 1


def test_picture_is_the_one_of_today() -> None:
    shown = architecture.PICTURE.read_text(encoding="utf-8")
    assert shown == architecture.svg(ROOMS), "run python docs/draw_architecture.py"


def is_defined(name: str) -> bool:
    """Whether "dialog.task.training_pairs" names a room, a folder, a file, or something that a file defines."""
    module, _, symbol = f"dair_hf.{name.replace('/', '.')}".rpartition(".")
    if f"{module}.{symbol}" in FILES or (ROOT / module.replace(".", "/") / symbol).is_dir():
        return True
    if module not in FILES:
        return False
    source = FILES[module].read_text(encoding="utf-8")
    return re.search(rf"^(def|class) {symbol}\b|^{symbol}\b.*=", source, re.MULTILINE) is not None


def test_page_names_what_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(/?)`.*\|.*\|(.*)\|$", page, re.MULTILINE)
    assert {room for room, _, _ in rows} == set(ROOMS) - {"lazy"}
    cells = [
        (f"{room}." if slash else "") + name
        for room, slash, cell in rows
        for name in re.findall(r"`([\w/]+\.\w+)`", cell)
    ]
    text = page.partition("## From raw data")[2]
    names = [name for name in re.findall(r"`([\w.]+)`", text) if name.partition(".")[0] in ROOMS]
    assert len(cells) > 15 and len(names) > 10
    assert [name for name in (*cells, *names) if not is_defined(name)] == []
    assert not is_defined("training.loading.length_sampler") and not is_defined("nowhere.at_all")


def test_objective_imports_torch_only() -> None:
    names = architecture.imported_names(FILES["dair_hf.losses.objective"].read_text(encoding="utf-8"))
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.py")), ids=lambda file: file.stem)
def test_recipe_defines_no_class(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] == []


@pytest.mark.parametrize("file", sorted((ROOT / "dair_hf").rglob("__init__.py")), ids=lambda file: file.parent.name)
def test_init_only_reexports(file: Path) -> None:
    """Imports and constants; imports may be lazy, or for type checkers only."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        allowed = isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr))
        assert allowed or for_types, ast.unparse(node)
