"""Several methods from the same initial weights: which ones, with which lambda, and one JSON for each finished run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.files import read_json

# What each name of a comparison means: (method, regularizer).
COMPARED = {
    "erm": ("erm", "sq"),
    "da": ("da", "sq"),
    "kl": ("dair", "kl"),
    "js": ("dair", "js"),
    "dair": ("dair", "sq"),
    "dair_l1": ("dair", "l1"),
}


@dataclass
class ComparisonConfig:
    """Methods and seeds that a recipe trains, one run each.

    Raises:
        DataError: An unknown method, or none.

    Example:
        >>> [run.name for run in runs_of(ComparisonConfig(methods=["erm", "dair"]), DAIRConfig("out"))]
        ['erm_seed0', 'dair_seed0']
    """

    methods: list[str] = field(
        default_factory=lambda: ["erm", "da", "kl", "dair"],
        metadata={"help": f"Methods to compare, from the same initial weights: any of {', '.join(COMPARED)}."},
    )
    lambdas: dict[str, float] | None = field(
        default=None,
        metadata={
            "help": "Lambda of single methods, such as {kl: 1.0}; the others take dair_lambda. Its unit follows "
            "`normalization`."
        },
    )
    seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds; each sets initial weights, order of the data, dropout and augmentation."},
    )

    def __post_init__(self) -> None:
        if unknown := sorted({*self.methods, *(self.lambdas or {})} - set(COMPARED)):
            raise DataError(f"methods: unknown {', '.join(unknown)}; use {', '.join(COMPARED)}")
        if not self.methods or not self.seeds:
            raise DataError("methods and seeds must each hold at least one entry")


class Run(NamedTuple):
    """One method with one seed.

    Attributes:
        method: Its name in the comparison, such as "kl".
        seed: Its seed.
        args: The trainer's arguments.
    """

    method: str
    seed: int
    args: DAIRConfig

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return f"{self.method}_seed{self.seed}"


def runs_of(config: ComparisonConfig, args: DAIRConfig) -> Iterator[Run]:
    """The runs of a comparison, all methods of one seed after the other.

    Args:
        config: Methods, lambdas, seeds.
        args: What all runs share; `output_dir/runs/NAME` becomes the folder of each.

    Yields:
        One `Run` each.
    """
    for seed in config.seeds:
        for name in config.methods:
            method, regularizer = COMPARED[name]
            weight = (config.lambdas or {}).get(name, args.dair_lambda)
            yield Run(
                name,
                seed,
                derive(
                    args,
                    method=method,
                    regularizer=regularizer,
                    dair_lambda=weight,
                    seed=seed,
                    output_dir=str(Path(args.output_dir) / "runs" / f"{name}_seed{seed}"),
                ),
            )


def derive(args: DAIRConfig, **changes: Any) -> DAIRConfig:
    """A copy of `args` with other values, validated again.

    Args:
        args: The arguments to start from.
        **changes: Fields and their new values.

    Returns:
        New arguments.
    """
    fields = {f.name: getattr(args, f.name) for f in dataclasses.fields(args) if f.init}
    return type(args)(**{**fields, **changes})


def fingerprint(*settings: Any) -> str:
    """Eight hex digits over anything that JSON can hold: equal settings, equal fingerprint.

    Example:
        >>> fingerprint({"a": 1}) == fingerprint({"a": 1}) != fingerprint({"a": 2})
        True
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def finished_record(path: Path, settings: str) -> dict[str, Any] | None:
    """The record of a run that is already there with the same settings; None where it must be run.

    Args:
        path: The run's JSON.
        settings: `fingerprint` of what the run depends on.
    """
    if not path.exists():
        return None
    record = read_json(path)
    return record if record.get("settings_fingerprint") == settings else None
