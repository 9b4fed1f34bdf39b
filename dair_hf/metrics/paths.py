"""Where the metric folders lie, and how their names stay paths."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any


def metric_path(name: str) -> str:
    """Return the folder of the metric `name`, as `evaluate.load` takes it.

    Example:
        >>> Path(metric_path("consistency")).name
        'consistency'
    """
    return str(Path(__file__).parent / name)


class MetricPaths(ModuleType):
    """A package whose metric names keep the path strings given to them.

    Importing a sub-package makes Python set it as an attribute of its parent, under the very name that holds the path.
    That one assignment is ignored; the sub-package stays reachable through `from ... import` and `sys.modules`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and isinstance(self.__dict__.get(name), str):
            return
        super().__setattr__(name, value)
