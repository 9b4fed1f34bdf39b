"""Attributes of a package that are imported on first use, so that importing the package itself costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any


def lazy_attribute(package: str, name: str, homes: Mapping[str, str] = MappingProxyType({})) -> Any:
    """A public name or a public submodule of a package; what its `__getattr__` returns.

    Args:
        package: Name of the package.
        name: Name of the attribute.
        homes: Public name -> module that defines it.

    Returns:
        The object or the module.

    Raises:
        AttributeError: The package has neither.

    Example:
        >>> import dair_hf
        >>> lazy_attribute("dair_hf", "evaluation").mcnemar([1, 0], [1, 1])["only_b"]
        1
    """
    if name in homes:
        return getattr(import_module(homes[name]), name)
    if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
        return import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
