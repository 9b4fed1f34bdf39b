"""Rules of the project: file tree, documentation, and nothing of one machine in what everybody gets."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT


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


def test_the_architecture_names_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    top = {name.split("/")[0] for name in TRACKED if "/" in name and not name.startswith(".")}
    assert {name for name in top if f"`{name}/`" not in page} == set()


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public functions, classes and their methods; what is defined inside a function is nobody else's."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


CODE = [
    name
    for name in PYTHON
    if name.startswith(("dair_hf/", "docs/", "recipes/", "reproduction/", "data_scripts/", "benchmarks/"))
]


@pytest.mark.parametrize("file", CODE)
def test_everything_public_is_documented(file: str) -> None:
    tree = parse(file)
    definitions = [("the module", tree), *public_definitions(tree.body)]
    assert [name for name, node in definitions if not ast.get_docstring(node)] == []


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


UNPUBLISHED = re.compile(
    r"(?:pip3? install|uv add|uv tool \w+|uvx|pipx \w+)[^\n`]*?(?<![\w./-])dair[-_]hf(?![\w./-]|.* @ )"
    r"|\A\s*dair[-_]hf(?:\[[\w,]+\])?\s*\Z",
)


def test_no_command_takes_the_library_from_an_index() -> None:
    """No index has it, so that anybody could take its name."""
    found = {}
    for name in TRACKED:
        if name.endswith((".md", ".py", ".txt", ".yaml", ".yml", ".toml", ".ipynb", "Dockerfile", "Makefile", "run")):
            found[name] = UNPUBLISHED.findall((ROOT / name).read_text(encoding="utf-8"))
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_rule_on_indexes_sees_what_names_the_library() -> None:
    pip, library = "pip " + "install", "dair-" + "hf"
    bad = [f"{pip} '{library}[demo]'", f"uv {pip} -c x {library}", f"{library}[fuzzy]\n", f"{pip} dair_" + "hf\n"]
    assert [len(UNPUBLISHED.findall(text)) for text in bad] == [1] * len(bad)
    good = [
        f"{pip} '.[demo]'",
        f"uv pip uninstall {library}",
        f"{library} @ git+https://host/{library}",
        f"{pip} a/dair_" + "hf/x",
    ]
    assert [UNPUBLISHED.findall(text) for text in good] == [[]] * len(good)


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


def released_version(changelog: str) -> str:
    """The version of the newest entry that is not `Unreleased`; its entry must have a date, or say it has none yet."""
    return re.findall(r"^## \[(\d[^\]]*)\] - (?:\d{4}-\d\d-\d\d|not released yet)$", changelog, re.MULTILINE)[0]


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dair_hf.__version__"}
    (stated,) = [
        ast.literal_eval(node.value)
        for node in parse("dair_hf/__init__.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == stated
    assert released_version((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == stated
    assert citation["repository-code"] == project["project"]["urls"]["Repository"]


def test_supported_versions_of_python_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: \d\.", line)]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={named[0]}"


def script_metadata(source: str) -> dict[str, Any]:
    """The inline metadata of a script (PEP 723)."""
    (block,) = re.findall(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", source, re.MULTILINE)
    return tomllib.loads("".join(line[2:] + "\n" for line in block.splitlines()))


@pytest.mark.parametrize("file", [name for name in PYTHON if re.fullmatch(r"recipes/\w+\.py", name)])
def test_a_recipe_names_the_extras_that_it_needs(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (ROOT / file).read_text(encoding="utf-8")
    metadata = script_metadata(source)
    assert metadata["requires-python"] == project["requires-python"]
    assert metadata["tool"]["uv"]["sources"] == {"dair-hf": {"path": "..", "editable": True}}
    (requirement,) = metadata["dependencies"]
    extras = set(re.fullmatch(r"dair-hf\[([\w,]+)\]", requirement)[1].split(","))
    assert extras <= set(project["optional-dependencies"])
    task = next(room for room in ("dialog", "text", "vision", "vqa", "regression") if f"dair_hf.{room}." in source)
    assert task in extras
    assert f"dair-hf[{','.join(sorted(extras))}]" == requirement
    assert extras <= set(re.split(r"[\[\],]", project["optional-dependencies"]["recipes"][0]))


def unpinned_actions(workflow: str) -> list[str]:
    """Actions that are named by a tag or a branch, which can be moved, rather than by a commit."""
    used = re.findall(r"^\s*(?:- )?uses: (\S+)", workflow, re.MULTILINE)
    return [name for name in used if not re.fullmatch(r"\./\S+|[\w./-]+@[0-9a-f]{40}", name)]


WORKFLOWS = [name for name in TRACKED if name.startswith(".github/workflows/")]


@pytest.mark.parametrize("file", WORKFLOWS)
def test_a_workflow_has_least_rights_and_pinned_actions(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert unpinned_actions(text) == []
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert "concurrency" in workflow
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    expected: dict[str, dict[str, Any]] = {
        "docs.yml": {"deploy": {"pages": "write", "id-token": "write"}},
        "release.yml": {"publish": {"id-token": "write"}},
    }
    assert rights == expected.get(Path(file).name, {})
    # A job that calls a workflow has the limits of its jobs.
    assert all("timeout-minutes" in job or "uses" in job for job in workflow["jobs"].values())


def test_tools_and_the_base_image_have_a_version() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        assert not re.findall(r"uvx [\w-]+ ", path.read_text(encoding="utf-8")), path
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_a_release_is_published_only_after_all_tests() -> None:
    release, ci = (yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("release", "ci"))
    callers = [name for name, job in release["jobs"].items() if job.get("uses") == "./.github/workflows/ci.yml"]
    assert set(callers) < set(release["jobs"]["publish"]["needs"]) and callers
    assert "workflow_call" in ci[True]  # YAML reads the key `on` as true


def test_an_action_named_by_its_tag_is_noticed() -> None:
    text = f"steps:\n  - uses: a/b@v4\n  - name: c\n    uses: d/e/f@{'0' * 40} # v1\n  - uses: ./g\n"
    assert unpinned_actions(text) == ["a/b@v4"]
    assert WORKFLOWS, "no workflows were checked"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in TRACKED:
        if name.startswith(("dair_hf/", "recipes/")) or name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", folder, source], check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_wheel_holds_types_metrics_and_recipes(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel).namelist()
    assert set(inside) >= {name for name in TRACKED if name.startswith("dair_hf/")}
    assert set(inside) >= {f"dair_hf/{name}" for name in TRACKED if name.startswith("recipes/")}
    assert "dair_hf/py.typed" in inside
    assert {re.split(r"[/-]", name)[0] for name in inside} == {"dair_hf"}


@pytest.mark.slow
def test_a_recipe_of_the_wheel_trains_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    target, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); from dair_hf.commands.main import main; main()"

    def dair_hf(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked("-c", code, *arguments, cwd=work)

    assert dair_hf("train", "--list").stdout.splitlines()[-1] == f"their files are in {target}/dair_hf/recipes"
    small = ["--train_dialogs", "30", "--test_dialogs", "4", "--max_steps", "2", "--warmup_steps", "0"]
    quiet = ["--disable_tqdm", "true", "--allow_low_ceiling", "true", "--use_cpu", "true"]
    done = dair_hf("train", "demo", "--methods", "erm", *small, *quiet)
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads((work / "outputs" / "demo" / "erm_seed0.json").read_text())
    assert record["config"]["training"]["max_steps"] == 2 and record["git_revision"] is None
    assert sorted(path.name for path in work.iterdir()) == ["outputs"]
