"""Lazy import of submodules, so that importing a package is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any


def lazy_submodules(package: str, names: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """Return a `__getattr__` that imports submodules, and re-exported names (name -> module), on first use."""

    def get_attribute(name: str) -> Any:
        if name in names:
            return getattr(import_module(names[name]), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute
