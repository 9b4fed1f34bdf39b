"""Grids of lambda, among them those of the paper, and the settings of a search."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import require_distinct, require_lambdas

PRUNERS = ("none", "median", "halving")


def log_grid(low: float, high: float, points: int) -> tuple[float, ...]:
    """Return logarithmically spaced points: lambda_i = low (high / low)^(i / (points - 1)).

    They are rounded to six significant digits, so that tables, file names and YAML files show the same value.
    """
    if not 0 < low < high or points < 2:
        raise DataError(f"log_grid({low}, {high}, {points}): needs 0 < low < high and at least 2 points")
    return tuple(float(f"{low * (high / low) ** (index / (points - 1)):.6g}") for index in range(points))


# Grids of the paper. It does not print the grid of MNIST. The lambdas in its table on longer training, 1.43, 8.85,
# 16.23 and 100, are points 13, 16, 17 and 20 of this one (1.4384, 8.8587, 16.2378, 100), truncated to two decimals;
# twenty points over [0.1, 100] contain neither 1.43 nor 8.85.
GRIDS: Mapping[str, tuple[float, ...]] = {
    "dialog": (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0),
    "vqa": log_grid(0.1, 10, 8),
    "regression": log_grid(1, 1e4, 5),
    "mnist": log_grid(1e-3, 100, 20),
}


@dataclass
class SearchConfig:
    """Grid and seeds of a search for the lambda of each method that has one; without a grid, none.

    Raises:
        DataError: An unknown grid or pruner, a value out of range, a duplicate entry, or settings that cannot be
            combined.

    Example:
        >>> SearchConfig(search_grid="regression").lambdas
        (1.0, 10.0, 100.0, 1000.0, 10000.0)
    """

    search_grid: str | None = field(
        default=None,
        metadata={"help": f"A grid of the paper: {', '.join(GRIDS)}. Cannot be combined with search_lambdas."},
    )
    search_lambdas: list[float] | None = field(
        default=None, metadata={"help": "A grid of your own, each lambda >= 0, in the unit set by `normalization`."}
    )
    search_seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of the search; the metrics of each lambda are averaged over them."},
    )
    search_pruner: str = field(
        default="none",
        metadata={
            "help": "Stop hopeless runs early, judged by Optuna: median (worse than half of the finished lambdas), "
            "halving (outside the better half of those that got as far, at 1, 2, 4, ... times search_warmup) or none."
        },
    )
    search_reports: int = field(
        default=10,
        metadata={"help": "With a pruner: evaluations of a run on validation rows, evenly spaced, the last included."},
    )
    search_warmup: int = field(
        default=3, metadata={"help": "With a pruner: the first report that can stop a run; 1 to search_reports - 1."}
    )
    search_startup: int = field(
        default=2, metadata={"help": "With search_pruner=median: lambdas to finish before any is stopped; >= 1."}
    )
    search_storage: str | None = field(
        default=None,
        metadata={
            "help": "File through which several processes or machines share the work, each with an output_dir of its "
            "own: an Optuna journal, created by the first."
        },
    )

    def __post_init__(self) -> None:
        if self.search_grid is not None and self.search_lambdas is not None:
            raise DataError("search_grid and search_lambdas are both given; keep one of them")
        if self.search_grid is not None and self.search_grid not in GRIDS:
            raise DataError(f"search_grid={self.search_grid!r} is unknown; use {', '.join(GRIDS)}, or search_lambdas")
        require_distinct("search_seeds", self.search_seeds)
        require_seeds("search_seeds", self.search_seeds)
        if self.search_lambdas is not None:
            require_lambdas("search_lambdas", self.search_lambdas)
        if self.lambdas:
            # Compared as printed in file names.
            require_distinct("search_lambdas", [f"{value:g}" for value in self.lambdas])
        self._check_trials()
        self._check_storage()

    def _check_trials(self) -> None:
        if self.search_pruner not in PRUNERS:
            raise DataError(f"search_pruner={self.search_pruner!r} is unknown; use {', '.join(PRUNERS)}")
        for name in ("search_reports", "search_warmup", "search_startup"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise DataError(f"{name}={value!r} is no integer; give one")
        if self.search_reports < 2 or not 1 <= self.search_warmup < self.search_reports or self.search_startup < 1:
            raise DataError(
                f"search_reports={self.search_reports}, search_warmup={self.search_warmup}, "
                f"search_startup={self.search_startup}: needs 1 <= search_warmup < search_reports, search_startup >= 1"
            )

    def _check_storage(self) -> None:
        if self.search_storage is None:
            return
        if isinstance(self.search_storage, os.PathLike):
            self.search_storage = os.fspath(self.search_storage)
        if not isinstance(self.search_storage, str) or not self.search_storage:
            raise DataError(f"search_storage={self.search_storage!r} is no file name; give one, such as search.log")
        if Path(self.search_storage).is_dir():
            raise DataError(f"search_storage={self.search_storage} is a folder; name a file, such as search.log in it")
        if "://" in self.search_storage:
            raise DataError(
                f"search_storage={self.search_storage} is a URL; name a file. SQLite lets two processes take the same "
                "run, and other databases are not supported"
            )

    def check_with(self, others: Sequence[Any], given: Collection[str], options: Collection[str] = ()) -> None:
        """Refuse settings that would have no effect.

        Args:
            others: All settings of the recipe.
            given: Names of the fields that were set.
            options: Names of those that the command line sets; beside a grid, a lambda of the file is the default of
                runs without one.

        Raises:
            DataError: A setting of a search without a grid, of a pruner without one, or of another pruner; or the
                command line sets lambda beside a grid.

        Example:
            >>> SearchConfig(search_grid="vqa").check_with([], {"search_grid", "search_warmup"})
            Traceback (most recent call last):
            dair_hf.errors.DataError: search_warmup has no effect without search_pruner; set that too, or leave it out
        """
        needs = {"search_pruner": "search_lambdas", "search_storage": "search_lambdas"} if not self.lambdas else {}
        if not self.prunes:
            needs |= dict.fromkeys(("search_reports", "search_warmup", "search_startup"), "search_pruner")
        elif self.search_pruner != "median":
            needs["search_startup"] = "search_pruner=median"
        for name in sorted(needs.keys() & set(given)):
            raise DataError(f"{name} has no effect without {needs[name]}; set that too, or leave it out")
        grid = "search_grid" if self.search_grid is not None else "search_lambdas"
        if self.lambdas and (unused := sorted({"dair_lambda", "lambda_sweep"}.intersection(options))):
            raise DataError(f"{unused[0]} has no effect beside {grid}, which chooses lambda; leave out one of them")

    @property
    def prunes(self) -> bool:
        """True if hopeless runs are stopped early."""
        return self.search_pruner != "none"

    @property
    def lambdas(self) -> tuple[float, ...]:
        """The grid in ascending order; empty if none is set."""
        return GRIDS[self.search_grid] if self.search_grid is not None else tuple(sorted(self.search_lambdas or ()))
