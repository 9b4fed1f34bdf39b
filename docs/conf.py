"""Settings of the documentation site: `make docs` builds it from the pages of this folder and the docstrings."""

import dair_hf

project = "dair_hf"
author = "The dair_hf authors"
copyright = author
version = release = dair_hf.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.apidoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
apidoc_modules = [
    {"path": "../dair_hf", "destination": "api/modules", "separate_modules": True, "module_first": True,
     "exclude_patterns": ["**/app.py"], "implicit_namespaces": False}
]
default_role = "literal"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
html_theme = "furo"
html_title = "dair_hf"
exclude_patterns = ["_build"]
