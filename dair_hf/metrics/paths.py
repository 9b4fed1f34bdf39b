"""Paths of the metric folders as attributes of the package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def _metric_path(name: str) -> str:
    """Return the folder of a metric, for `evaluate.load`."""
    return str(Path(__file__).parent / name)


class _MetricPaths(ModuleType):
    """Package whose attributes with a path are not replaced by sub-packages of the same name.

    Python sets an imported sub-package as an attribute of its parent, which would replace the path. The sub-package
    stays reachable through `from ... import` and `sys.modules`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and isinstance(self.__dict__.get(name), str)):
            super().__setattr__(name, value)
