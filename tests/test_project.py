"""The house rules: floors, file tree, documentation, and nothing of one machine in what everybody gets."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dair_hf"
TASKS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")

# The floors of the core, bottom to top: a module imports only from lower ones. A new module gets its place here.
FLOORS = (
    {"errors", "lazy"},
    {"files", "arrow", "neighbour_attention", "draws", "schedules", "processes"},
    {"folders", "arguments"},
    {"commands"},
    {"modeling"},
    {"objective", "archives", "packing"},
    {"sample_losses", "theory"},
    {"projection", "forwards", "target_tokens"},
    {"collator", "evaluation", "features", "chunked_loss", "prediction", "view_predictor", "logistic_toy"},
    {"sampling", "tensor_pairs", "batch_layout"},
    {"config"},
    {"pair_loss", "term_sums", "pair_views", "model_card", "finiteness", "data_checks"},
    {"pair_predictor", "pair_loading", "batch_objectives", "tensor_views", "trainer_checks"},
    {"trainer"},
    {"report", "plots", "selection", "claims", "experiments"},
    {"run_records"},
    {"comparison", "ledger_plots"},
    {"search", "ledger", "sweeps"},
)
# What a task folder must not import: the package itself (it brings the trainer), the trainer, its parts, what uses it.
TOP_FLOORS = {"dair_hf", *(f"dair_hf.{name}" for floor in FLOORS[-7:] for name in floor)}


def tracked_files() -> list[str]:
    """The files of the repository, or all that is there where the source came without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    skipped = {".git", ".venv", "__pycache__", "build", "dist", "outputs"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in found if not skipped.intersection(path.parts)]


TRACKED = tracked_files()
PYTHON = [name for name in TRACKED if name.endswith(".py")]


def parse(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), filename=name)


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module a file imports anywhere, also inside functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write `from dair_hf.x import y`"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / (inner.replace(".", "/") + ".py")).exists() or (
                    ROOT / inner.replace(".", "/")
                ).is_dir()
                yield inner if is_module else node.module


def floor_violations(file: str, tree: ast.Module) -> list[str]:
    """What a file of the package imports against the rules of the floors."""
    parts = module_name(file).split(".")
    ranks = {name: rank for rank, floor in enumerate(FLOORS) for name in floor}
    wrong = []
    for target in imported_modules(tree):
        if target.split(".")[0] in ("recipes", "data_scripts", "benchmarks", "tests"):
            wrong.append(f"{file} imports {target}: that stands above the package")
        if target.split(".")[0] != "dair_hf":
            continue
        name = target.split(".")[1] if "." in target else ""
        if parts[1:2] and parts[1] in TASKS:
            if target in TOP_FLOORS:
                wrong.append(f"{file} imports {target}: a task folder must not import the trainer")
            if name in TASKS and name not in (parts[1], "augment", "metrics"):  # these serve every task, and know none
                wrong.append(f"{file} imports {target}: a task folder must not import another")
        elif name in TASKS:
            wrong.append(f"{file} imports {target}: the core must not import a task folder")
        elif len(parts) == 2 and ranks.get(name, len(FLOORS)) >= ranks[parts[1]]:
            wrong.append(f"{file} imports {target}: that is not on a lower floor")
    return wrong


# --- floors ---------------------------------------------------------------------------------------------------------


def test_every_core_module_has_a_floor() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules - set().union(*FLOORS) == set(), "new core module: give it a place in FLOORS"


@pytest.mark.parametrize("file", [name for name in PYTHON if name.startswith("dair_hf/")])
def test_file_imports_only_from_floors_below(file: str) -> None:
    assert floor_violations(file, parse(file)) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("dair_hf/collator.py", "from dair_hf.dialog.state import state_to_text"),
        ("dair_hf/objective.py", "def f():\n    import dair_hf.collator"),
        ("dair_hf/evaluation.py", "from dair_hf import collator"),
        ("dair_hf/collator.py", "from dair_hf import PairCollator"),
        ("dair_hf/dialog/state.py", "from dair_hf.trainer import DAIRTrainer"),
        ("dair_hf/dialog/state.py", "from dair_hf import DAIRTrainer"),
        ("dair_hf/augment/entities.py", "from dair_hf.dialog import rows"),
        ("dair_hf/metrics/items.py", "from dair_hf.vqa import answers"),
        ("dair_hf/config.py", "import recipes.multiwoz_simpletod"),
    ],
)
def test_floor_rule_sees_violations(file: str, source: str) -> None:
    assert len(floor_violations(file, ast.parse(source))) == 1


def test_floor_rule_allows_what_is_below() -> None:
    source = "import torch\nfrom dair_hf.errors import DataError\nfrom dair_hf.dialog.rows import FEATURES"
    assert floor_violations("dair_hf/dialog/state.py", ast.parse(source)) == []


def test_objective_imports_torch_only() -> None:
    roots = {name.split(".")[0] for name in imported_modules(parse("dair_hf/objective.py"))}
    assert roots - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("file", [name for name in PYTHON if name.startswith("recipes/")])
def test_recipe_defines_no_class(file: str) -> None:
    assert [node.name for node in ast.walk(parse(file)) if isinstance(node, ast.ClassDef)] == []


@pytest.mark.parametrize("file", [name for name in PYTHON if re.fullmatch(r"dair_hf/.*__init__\.py", name)])
def test_init_only_reexports(file: str) -> None:
    """Imports and constants; re-exports may be lazy, by `__getattr__` and imports for type checkers."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    for node in parse(file).body:
        lazy = isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        assert isinstance(node, allowed) or lazy or for_types, ast.unparse(node)


# --- documentation --------------------------------------------------------------------------------------------------


def read_tree(text: str) -> list[str]:
    """The paths of the README's file tree: indented or drawn names, each before its description."""
    section = re.search(r"^#+ [^\n]*\btree\b[^\n]*\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE | re.IGNORECASE)
    assert section is not None, "the README has no section with the file tree"
    paths: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in re.sub("[│├└─]", " ", section[1]).splitlines():
        names = re.split(r"\s{2,}|\s#", line.strip())[0].split()
        if not line.startswith((" ", "dair_hf")) or not names or not re.fullmatch(r"[\w./*-]+", names[0]):
            continue
        depth = len(line) - len(line.lstrip())
        while parents and parents[-1][0] >= depth:
            parents.pop()
        folder = parents[-1][1] if parents else ""
        paths += [folder + name for name in names]
        if names[-1].endswith("/"):
            parents.append((depth, folder + names[-1]))
    return paths


def test_read_tree_understands_indents_and_lines() -> None:
    indented = (
        "## File tree\n\n    a/\n      b.py   what it is\n      c/ d/  two\n    e/       last\n\n## Next\n    f/\n"
    )
    drawn = "## The tree\n\n    a/\n    ├── b.py   # what it is\n    │   \n    └── c/\n        └── d.py\n"
    assert read_tree(indented) == ["a/", "a/b.py", "a/c/", "a/d/", "e/"]
    assert read_tree(drawn) == ["a/", "a/b.py", "a/c/", "a/c/d.py"]


def test_file_tree_of_the_readme_is_true() -> None:
    named = set(read_tree((ROOT / "README.md").read_text(encoding="utf-8")))
    folders = {str(parent) + "/" for name in TRACKED for parent in Path(name).parents if str(parent) != "."}
    assert named - folders - set(TRACKED) == set(), "the file tree names what is not there"

    top = {name for name in folders if name.count("/") == 1 and not name.startswith(".")}
    inside = {name for name in folders if re.fullmatch(r"dair_hf/\w+/", name)}
    modules = {name for name in PYTHON if re.fullmatch(r"dair_hf/\w+\.py", name)} - {"dair_hf/__init__.py"}
    assert (top | inside | modules) - named == set(), "the file tree lacks what is there"


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public functions, classes and their methods; what is defined inside a function is nobody else's."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


CODE = [name for name in PYTHON if name.startswith(("dair_hf/", "recipes/", "data_scripts/", "benchmarks/"))]


@pytest.mark.parametrize("file", CODE)
def test_everything_public_is_documented(file: str) -> None:
    tree = parse(file)
    definitions = [("the module", tree), *public_definitions(tree.body)]
    assert [name for name, node in definitions if not ast.get_docstring(node)] == []


def test_documentation_rule_sees_what_is_missing() -> None:
    source = "def _a(): ...\ndef b():\n 'B.'\n def c(): ...\nclass D:\n 'D.'\n def e(self): ...\n def _f(self): ..."
    found = public_definitions(ast.parse(source).body)
    assert [name for name, node in found if not ast.get_docstring(node)] == ["D.e"]


def config_classes() -> list[tuple[str, str]]:
    """Dataclasses that hold settings, by their name, in the package."""
    return [
        (module_name(file), node.name)
        for file in PYTHON
        if file.startswith("dair_hf/")
        for node in parse(file).body
        if isinstance(node, ast.ClassDef)
        and node.name.endswith(("Config", "Settings", "Arguments"))
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


def fields_without_help(config: type) -> list[str]:
    own = vars(config).get("__annotations__", {})
    return [item.name for item in dataclasses.fields(config) if item.name in own and not item.metadata.get("help")]


@pytest.mark.parametrize(("module", "name"), config_classes())
def test_each_field_of_a_config_has_help(module: str, name: str) -> None:
    assert fields_without_help(getattr(importlib.import_module(module), name)) == []


def test_help_rule_sees_a_field_without() -> None:
    @dataclasses.dataclass
    class Base:
        inherited: int = 0

    @dataclasses.dataclass
    class Example(Base):
        bare: int = 1
        told: int = dataclasses.field(default=2, metadata={"help": "a number"})

    assert fields_without_help(Example) == ["bare"]


# --- what everybody gets --------------------------------------------------------------------------------------------

# In pieces, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:root|work|opt/(?:wheels|pypi)|tmp/(?:venv|plan)|home/\w+|Users/\w+)(?=[/\s'\"`)]|$)"
)
REGISTRY = re.compile(
    "|".join([r"py" + r"pi\.org", "python" + "hosted", r"download\.pytorch\." + "org", "--(?:extra-)?index" + "-url"])
)


def foreign_to_others(text: str) -> list[str]:
    return [match[0] for rule in (MACHINE_PATH, REGISTRY) for match in rule.finditer(text)]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = {}
    for name in TRACKED:
        content = (ROOT / name).read_bytes()
        if b"\0" not in content[:8000]:
            found[name] = foreign_to_others(content.decode("utf-8"))
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_rule_on_machine_paths_sees_them() -> None:
    bad = [
        "cd /" + "work/main",
        '"/' + 'root"',
        "/home/" + "me/x",
        "https://py" + "pi.org/simple",
        "--index" + "-url x",
    ]
    assert [len(foreign_to_others(text)) for text in bad] == [1] * len(bad)
    good = ["../shared/data", "https://host/work/x", "/tmp/x", "frame/work", "python -m pip install .", "/workers"]
    assert [foreign_to_others(text) for text in good] == [[]] * len(good)


def test_constraints_pin_all_that_is_required() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {
        re.split(r"[><=\[; ]", requirement)[0].lower().replace("_", "-")
        for requirement in sum(extras.values(), project["dependencies"])
    } - {"dair-hf"}
    assert wanted - set(pins) == set()
    assert pins["torch"] == "2.13.0", "no local version: pip takes the build that the machine's settings offer"
    assert not any("==" in requirement for requirement in project["dependencies"])
    assert set(extras) >= {"fuzzy", "plots", "images", "search", "regression", "demo", "test", "lint", "dev", "all"}


def test_citation_holds_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert citation["version"] == version
    (paper,) = citation["references"]
    assert paper["title"] == "Robustness through Data Augmentation Loss Consistency"
    assert [author["family-names"] for author in paper["authors"]] == [
        "Huang", "Halbe", "Sankar", "Amini", "Kottur", "Geramifard", "Razaviyayn", "Beirami",
    ]  # fmt: skip


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\w+) ", shown, re.MULTILINE)) == targets
    assert targets >= {"install", "demo", "test", "lint"}


def test_ci_script_is_executable_bash() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.slow
def test_wheel_holds_types_and_metrics(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in TRACKED:
        if name.startswith("dair_hf/") or name in ("pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", tmp_path, source], check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert set(inside) >= {name for name in TRACKED if name.startswith("dair_hf/")}
    assert "dair_hf/py.typed" in inside
    assert not [name for name in inside if name.startswith(("tests/", "recipes/"))]
