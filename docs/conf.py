"""Settings of the documentation site, which `make docs` builds from the pages of this folder and the docstrings."""

import tomllib
from pathlib import Path
from typing import Any

import dair_hf

PROJECT = tomllib.loads(Path(__file__).with_name("..").joinpath("pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
FILES = f"{PROJECT['urls']['Repository']}/blob/main/"

project = "dair_hf"
author = "The dair_hf authors"
copyright = author
version = release = dair_hf.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# One page for each module. The app.py of a metric belongs to its page on the Hub.
apidoc_modules = [
    {
        "path": "../dair_hf",
        "destination": "api/modules",
        "separate_modules": True,
        "module_first": True,
        "exclude_patterns": ["**/app.py"],
    }
]
# Names that a package only passes on are documented in their own modules.
autodoc_default_options = {"members": True, "undoc-members": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_mock_imports = ["art", "trackio"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "literal"  # single backticks are code, as in the pages

myst_heading_anchors = 4
# Notebooks are stored with their outputs; tests/test_docs.py runs their code.
nb_execution_mode = "off"

html_theme = "furo"
html_title = "dair_hf"
html_show_sourcelink = False


def mark_formulas(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show an indented block after a line that ends with a colon as it is written: a formula, or an example of data."""
    for index in range(len(lines) - 2):
        line, gap, block = lines[index : index + 3]
        depth = len(line) - len(line.lstrip())
        if line.endswith(":") and not line.endswith("::") and not gap.strip() and block.startswith(" " * (depth + 4)):
            lines[index] = line + ":"


def link_to_repository(app: Any, name: str, source: list[str]) -> None:
    """Let links to files outside this folder, such as records of results, lead to the repository."""
    if "/" not in name:
        source[0] = source[0].replace("](../", f"]({FILES}")


def setup(app: Any) -> None:
    """Register the hooks; that of docstrings runs before napoleon reads their sections."""
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-process-docstring", mark_formulas, priority=100)
