"""Recipes and their configurations, as the folders hold them: each can be run by the command in its header."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dair_hf import DAIRConfig
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig, runs_of
from tests.fixtures.paths import ROOT
from tests.fixtures.recipe_runs import CONFIGS, RECIPES

FILES = sorted(CONFIGS.glob("*.yaml"))
NAMES = sorted(path.stem for path in RECIPES.glob("*.py"))


def command_of(text: str) -> tuple[str, list[str]]:
    """Return the recipe and the options of the command in the header of a configuration."""
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    found = re.search(r"accelerate launch recipes/(\w+)\.py ([^\n)]*)", "\n".join(lines).replace("\\\n", ""))
    return (found[1], shlex.split(found[2])) if found else ("", [])


COMMANDS = {path: command_of(path.read_text(encoding="utf-8")) for path in FILES}
OF_RECIPES = [path for path in FILES if COMMANDS[path][0]]


def settings_of(recipe: str) -> list[type]:
    """Return the classes of settings that a recipe reads."""
    read: list[type] = []

    def parse(types: Sequence[type], argv: list[str] | None = None) -> Any:
        read.extend(types)
        raise StopIteration

    main = runpy.run_path(str(RECIPES / f"{recipe}.py"), run_name="recipe")["main"]
    with mock.patch.dict(main.__globals__, parse_arguments=parse), pytest.raises(StopIteration):
        main()
    return read


def test_commands_are_read_from_headers() -> None:
    text = "# What.\n#\n#   make x (or: accelerate launch recipes/a.py --config c.yaml \\\n#       --b 'd e')\nf: --g\n"
    assert command_of(text) == ("a", ["--config", "c.yaml", "--b", "d e"])
    assert command_of("f: accelerate launch recipes/a.py --config c.yaml") == ("", [])


def test_every_recipe_has_a_configuration() -> None:
    assert {COMMANDS[path][0] for path in OF_RECIPES} == set(NAMES)
    without = set(FILES) - set(OF_RECIPES)
    assert without == set(), "the header must hold the command: accelerate launch recipes/NAME.py --config ..."


@pytest.mark.parametrize("path", OF_RECIPES, ids=lambda path: path.name)
def test_the_command_of_a_configuration_is_valid(path: Path) -> None:
    recipe, options = COMMANDS[path]
    assert options[:2] == ["--config", f"recipes/configs/{path.name}"]
    # bf16 needs a GPU, which the test machine may lack.
    parsed = parse_arguments(settings_of(recipe), ["--config", str(path), *options[2:], "--bf16", "false"])
    (comparison,) = (settings for settings in parsed if isinstance(settings, ComparisonConfig))
    assert isinstance(parsed[-1], DAIRConfig)
    assert list(runs_of(comparison, parsed[-1]))
    assert parsed[-1].output_dir == f"outputs/{path.stem}"


def test_the_pages_and_the_experiments_name_what_is_there() -> None:
    table = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}.py`" not in table and f"recipes/{name}.py" not in table] == []
    texts = [
        (ROOT / "README.md").read_text(encoding="utf-8"),
        *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))),
    ]
    texts.append((ROOT / "results" / "experiments.yaml").read_text(encoding="utf-8"))
    known = {path.name for folder in (CONFIGS, RECIPES / "accelerate_configs") for path in folder.glob("*.yaml")}
    known |= {path.name for folder in ("results", "reproduction") for path in (ROOT / folder).glob("*.yaml")}
    named = {name for text in texts for name in re.findall(r"[`/](\w+\.yaml)\b", text)}
    assert named - known == set(), "a configuration that does not exist"
    unnamed = {path.stem for path in FILES if path.name not in named} - set(NAMES)
    assert unnamed == set(), "name these configurations in docs/recipes.md or in results/experiments.yaml"
