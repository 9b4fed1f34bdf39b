"""Settings of the documentation site, which `make docs` builds from the pages of this folder and the docstrings."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.nodes import make_refnode

import dair_hf

PROJECT = tomllib.loads(
    Path(__file__).with_name("..").joinpath("pyproject.toml").read_text(encoding="utf-8")
)["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
FILES = f"{REPOSITORY}/blob/main/"

project = "dair_hf"
author = "The dair_hf authors"
copyright = author
version = release = dair_hf.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.extlinks",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

# Names that a package only passes on are documented in their own modules.
autodoc_default_options = {"members": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
# Types by name that are long in full; the docstrings describe them.
autodoc_type_aliases = {
    name: name
    for name in (
        "ArrayLike",
        "BatchObjective",
        "Correct",
        "OnlineAugmenter",
        "SampleLoss",
    )
}
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Settings", "params_style")]
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
highlight_language = "text"  # of blocks that name no language, such as formulas
default_role = "literal"  # single backticks are code, as in the pages

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# Notebooks are stored with their outputs; tests/test_docs.py runs their code.
nb_execution_mode = "off"
copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor outputs

extlinks = {"card": (f"{FILES}%s", "%s")}

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [
        {"name": "GitHub", "url": REPOSITORY, "html": "Repository", "class": ""}
    ],
}


def settings_of(obj: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a configuration that this package declares and whose metadata holds a help text."""
    if not (isinstance(obj, type) and dataclasses.is_dataclass(obj)):
        return []
    own = {
        name
        for cls in obj.__mro__
        if cls.__module__.startswith("dair_hf")
        for name in vars(cls).get("__annotations__", ())
    }
    return [
        field
        for field in dataclasses.fields(obj)
        if field.name in own and "help" in field.metadata
    ]


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default of a setting as code."""
    factory = field.default_factory
    default = factory() if factory is not dataclasses.MISSING else field.default
    return "required" if default is dataclasses.MISSING else f"default `{default!r}`"


def list_settings(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Add the settings of a configuration to its docstring: defaults and help texts are in its fields."""
    fields = settings_of(obj)
    if fields:
        lines += ["", "Settings:"]
    for field in fields:
        parts = field.metadata["help"].replace("%%", "%").split("`")
        parts[::2] = [re.sub(r"([*_|\\])", r"\\\1", part) for part in parts[::2]]
        lines.append(f"    {field.name} ({default_text(field)}): {'`'.join(parts)}")


def short_types(signature: str | None) -> str | None:
    """Write aliases of types by name, and default factories so that the signature can be parsed."""
    named = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature or "")
    return named.replace("<factory>", "...") or signature


def shorten_signature(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Leave the settings of a configuration out of its signature, since they are listed below it."""
    if what == "class" and settings_of(obj):
        return "(**settings)", None
    return short_types(signature), short_types(returns)


def skip_members(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out checks of settings, and fields of named tuples, which their class describes."""
    is_field = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if is_field or name.startswith("require_") else None


def mark_returns(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Keep a colon in the text of `Returns` from ending a type: types are in the signature."""
    for index, line in enumerate(lines[:-1]):
        if line.strip() in {"Returns:", "Yields:"}:
            text = lines[index + 1].lstrip()
            indent = lines[index + 1][: -len(text)]
            lines[index + 1] = f"{indent}: {text}"


def mark_formulas(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Show an indented block after a line that ends with a colon as it is written: a formula, or an example of data."""
    for index in range(len(lines) - 2):
        line, gap, block = lines[index : index + 3]
        depth = len(line) - len(line.lstrip())
        if (
            line.endswith(":")
            and not line.endswith("::")
            and not gap.strip()
            and block.startswith(" " * (depth + 4))
        ):
            lines[index] = line + ":"


def link_to_repository(app: Any, name: str, source: list[str]) -> None:
    """Let links to files outside this folder, such as records of results, lead to the repository."""
    if "/" not in name:
        source[0] = source[0].replace("](../", f"]({FILES}")


def link_names(app: Any, doctree: nodes.document, page: str) -> None:
    """Link names of the API that are written as code: full names, `module.name`, and names of classes."""
    objects = app.env.domains.python_domain.objects
    targets: dict[str, set[tuple[str, str]]] = {}
    for full, entry in objects.items():
        *_, module, name = f".{full}".split(".")
        names = {full, f"{module}.{name}"}
        if entry.objtype in {"class", "exception"} or full == f"{project}.{name}":
            names.add(name)
        for written in names:
            targets.setdefault(written, set()).add((entry.docname, entry.node_id))
    for literal in list(doctree.findall(nodes.literal)):
        inside = (nodes.reference, nodes.title)
        if isinstance(literal.parent, inside) or isinstance(
            literal.parent.parent, inside
        ):
            continue
        found = targets.get(literal.astext(), set())
        if len(found) == 1:
            link = make_refnode(app.builder, page, *next(iter(found)), literal.deepcopy())
            literal.replace_self(link)


def write_formula(writer: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers show without scripts."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    writer.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Register the hooks; those of docstrings run before napoleon reads their sections."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-process-docstring", mark_formulas, priority=100)
    app.connect("autodoc-process-docstring", mark_returns, priority=100)
    app.connect("autodoc-process-docstring", list_settings, priority=100)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-skip-member", skip_members)
    app.connect("doctree-resolved", link_names)
