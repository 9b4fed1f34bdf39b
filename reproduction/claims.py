"""Claims of a paper and the runs that answer them, read from `claims.yaml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import read_yaml

SECTION_KEYS = {"section", "notes", "tables", "plots", "groups"}
PLOT_KEYS = {"file", "caption", "draw"}
CLAIM_KEYS = {
    "id", "setup", "method", "quantity", "paper", "paper_runs", "better", "tolerance", "scale", "digits",
    "experiment", "where", "metric", "minus", "relation", "other", "not_run", "deviations", "why",
}  # fmt: skip
# A group may set any of these for all of its claims.
GROUP_KEYS = (CLAIM_KEYS - {"paper", "other", "relation", "minus"}) | {"claims"}
OTHER_KEYS = {"experiment", "where", "metric"}
MINUS_KEYS = {"experiment", "where"}
BETTER = ("higher", "lower", "neither")
RELATIONS = ("above", "below", "near", "not_above")
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("paper", "setup", "method", "quantity", "not_run", "deviations", "why"), (str,)),
    **dict.fromkeys(("scale", "tolerance"), (int, float)),
    **dict.fromkeys(("digits", "paper_runs"), (int,)),
    **dict.fromkeys(("where", "minus"), (dict,)),
}


class PrintedValue(NamedTuple):
    """Number printed in the paper.

    Attributes:
        value: The value.
        std: Standard deviation printed with it, if any.
        decimals: Digits after the decimal point.
    """

    value: float
    std: float | None
    decimals: int


class Source(NamedTuple):
    """Records that our value is computed from.

    Attributes:
        experiment: Folder of records, below the results.
        where: Dotted path in the record -> required value, such as {"config.training.dair_lambda": 8.85}.
        metrics: Keys of the metrics; several only if a relation must hold for each.
        minus: Records whose metrics are subtracted, seed by seed.
    """

    experiment: str
    where: Mapping[str, Any]
    metrics: tuple[str, ...]
    minus: Source | None = None


@dataclass(frozen=True)
class Claim:
    """One number, or one relation, that the paper reports.

    Attributes:
        id: Unique name.
        setup: Experiment within the section.
        method: Method.
        quantity: Measured quantity.
        paper: Printed value, such as "32.70 +- 0.45", or a sentence if `relation` is set.
        source: Records of our value; None if we have no run.
        not_run: Reason why we have no run.
        paper_runs: Number of runs behind the printed standard deviation.
        better: Whether "higher", "lower" or "neither" is better.
        tolerance: Tolerated difference, in printed units (`reproduction.verdicts.RULES`).
        scale: Factor for our metric, such as 100 for percentages.
        digits: Digits after the decimal point, if `paper` is a sentence.
        relation: "above", "below", "near" or "not_above": claimed relation of our value to the value of `other`.
        other: Records of the value to compare with.
        deviations: Differences from the paper's setup.
        why: Why it does not hold here, as far as known.
    """

    id: str
    setup: str
    method: str
    quantity: str
    paper: str
    source: Source | None
    not_run: str = ""
    paper_runs: int | None = None
    better: str = "neither"
    tolerance: float = 0.0
    scale: float = 1.0
    digits: int = 2
    relation: str | None = None
    other: Source | None = None
    deviations: str = ""
    why: str = ""

    @property
    def printed(self) -> PrintedValue | None:
        """The printed value; None if the claim is a relation."""
        return parse_printed_value(self.paper) if self.relation is None else None


class Plot(NamedTuple):
    """Plot of a section.

    Attributes:
        file: PNG file, below the results.
        caption: Caption.
        draw: Description of a plot that is drawn from records (`reproduction.plots`); None if a recipe draws it.
    """

    file: str
    caption: str
    draw: Mapping[str, Any] | None = None


class Section(NamedTuple):
    """Experiment of the paper, or one beyond it: a page of the results.

    Attributes:
        title: Heading.
        notes: Paragraphs above the table.
        plots: Plots, shown if their files exist.
        claims: Claims.
        tables: Folders below the results whose runs are compared in a table (`reproduction.ledger.TABLES`).
    """

    title: str
    notes: list[str]
    plots: list[Plot]
    claims: list[Claim]
    tables: Sequence[str] = ()


def parse_printed_value(text: str) -> PrintedValue:
    """Parse a printed "72.58 +- 0.11", "0.5483" or "1,000".

    Raises:
        DataError: The text has another form.

    Example:
        >>> parse_printed_value("72.58 +- 0.11")
        PrintedValue(value=72.58, std=0.11, decimals=2)
    """
    number = r"-?\d[\d,]*(?:\.(\d+))?"
    match = re.fullmatch(rf"({number})(?: \+- ({number}))?", text)
    if match is None:
        raise DataError(f'{text!r} is not a printed value; write "72.58" or "72.58 +- 0.11", or give a `relation`')
    value, decimals, std, _ = match.groups()
    parsed_std = None if std is None else float(std.replace(",", ""))
    return PrintedValue(float(value.replace(",", "")), parsed_std, len(decimals or ""))


def read_claims(path: Path) -> list[Section]:
    """Read and check `claims.yaml`.

    The file contains `sections`, each with `section` (its heading), `notes`, `tables`, `plots` and `groups`. A group
    contains `claims` and the keys that they share. A claim overrides its group, and `where` of both is merged.

    Raises:
        DataError: The file is missing or not YAML, a key is unknown, missing or of the wrong type, an id is given
            twice, or a claim has neither or both of `experiment` and `not_run`. The message names file and claim.
    """
    content = check_keys(read_yaml(path), {"sections"}, {"sections"}, str(path))
    sections = []
    seen: set[str] = set()
    for entry in _list(content["sections"], f"{path}: sections"):
        entry = check_keys(entry, SECTION_KEYS, {"section", "groups"}, f"{path}: section")
        notes, tables = (_list(entry.get(key, []), f"{path}: {key}") for key in ("notes", "tables"))
        for text in (entry["section"], *notes, *tables):
            if not isinstance(text, str):
                raise DataError(f"{path}: section, notes and tables: expected text, found {text!r}; put it into quotes")
        label = f"{path}: section {entry['section']!r}"
        plots = [
            Plot(**check_keys(plot, PLOT_KEYS, {"file", "caption"}, f"{label}: plot"))
            for plot in _list(entry.get("plots", []), f"{label}: plots")
        ]
        claims = []
        for group in _list(entry["groups"], f"{label}: groups"):
            group = check_keys(group, GROUP_KEYS, {"id", "claims"}, f"{label}: group")
            for fields in _list(group["claims"], f"{label}: group {group['id']}"):
                claims.append(_read_claim(group, fields, path))
        for claim in claims:
            if claim.id in seen:
                raise DataError(f"{path}: claim {claim.id}: this id is given twice; give each claim its own")
            seen.add(claim.id)
        sections.append(Section(entry["section"], notes, plots, claims, tables))
    return sections


def _read_claim(group: Mapping[str, Any], claim: Any, path: Path) -> Claim:
    claim = check_keys(claim, CLAIM_KEYS, {"id", "paper"}, f"{path}: group {group['id']}: claim")
    # A claim may override `experiment` of its group by `not_run`, and vice versa.
    overridden = {
        "claims",
        *({"experiment"} if "not_run" in claim else ()),
        *({"not_run"} if "experiment" in claim else ()),
    }
    merged = {**{key: value for key, value in group.items() if key not in overridden}, **claim}
    merged["id"] = f"{group['id']}.{claim['id']}"
    label = f"{path}: claim {merged['id']}"
    if ("experiment" in merged) == ("not_run" in merged):
        raise DataError(f"{label}: give either `experiment` (source of our value) or `not_run` (why there is none)")
    required = {"setup", "method", "quantity"} | ({"metric"} if "experiment" in merged else set())
    if missing := required - set(merged):
        raise DataError(f"{label}: lacks {', '.join(sorted(missing))}")
    _check_types(merged, label)
    _check_types({"where": group.get("where", {})}, label)
    if ("relation" in merged) != ("other" in merged):
        raise DataError(f"{label}: `relation` and `other` belong together; give both or none")
    source = other = None
    if "experiment" in merged:
        # The claim's own conditions come first, because records need only have the keys up to the first mismatch.
        where = {**claim.get("where", {}), **group.get("where", {}), **claim.get("where", {})}
        source = _read_source({**merged, "where": where}, label)
        if "relation" in merged:
            changes = check_keys(merged["other"], OTHER_KEYS, set(), f"{label}: other")
            other_where = {**where, **changes.get("where", {})}
            other = _read_source({**merged, **changes, "where": other_where}, f"{label}: other")
            if len(other.metrics) not in (1, len(source.metrics)):
                raise DataError(f"{label}: other: give one metric, or as many as the claim has")
        elif len(source.metrics) > 1:
            raise DataError(f"{label}: several metrics need a `relation` that holds for each")
    plain = {key: value for key, value in merged.items() if key not in OTHER_KEYS | {"other", "minus"}}
    result = Claim(**plain, source=source, other=other)
    try:
        printed = result.printed
    except DataError as error:
        raise DataError(f"{label}: paper: {error}") from error
    if printed is not None and printed.std is not None and (result.paper_runs or 0) < 2:
        raise DataError(f"{label}: a standard deviation needs `paper_runs`, its number of runs, at least 2")
    return result


def _read_source(fields: Mapping[str, Any], label: str) -> Source:
    metric = fields["metric"]
    metrics = tuple(metric) if isinstance(metric, list) else (metric,)
    if not metrics or not all(isinstance(name, str) for name in metrics) or not isinstance(fields["experiment"], str):
        raise DataError(f"{label}: `experiment` must be a folder's name, and `metric` a key or a list of keys")
    minus = None
    if "minus" in fields:
        changes = check_keys(fields["minus"], MINUS_KEYS, set(), f"{label}: minus")
        where = {**fields["where"], **changes.get("where", {})}
        minus = Source(changes.get("experiment", fields["experiment"]), where, metrics)
    return Source(fields["experiment"], fields["where"], metrics, minus)


def _check_types(fields: Mapping[str, Any], label: str) -> None:
    for key, types in TYPES.items():
        if key in fields and (not isinstance(fields[key], types) or isinstance(fields[key], bool)):
            hint = "; put it into quotes to keep its printed digits" if key == "paper" else ""
            raise DataError(f"{label}: {key}={fields[key]!r} has the wrong type{hint}")
    for key, allowed in (("better", BETTER), ("relation", RELATIONS)):
        if key in fields and fields[key] not in allowed:
            raise DataError(f"{label}: {key}={fields[key]!r} is unknown; use {', '.join(allowed)}")


def check_keys(value: Any, allowed: Collection[str], required: Collection[str], label: str) -> dict[str, Any]:
    """Return `value` if it is a mapping that has the required and no unknown keys; else name `label` and the key."""
    if not isinstance(value, dict):
        raise DataError(f"{label}: expected a mapping, found {type(value).__name__}")
    label = f"{label} {value['id']}" if "id" in value else label
    if unknown := [key for key in value if key not in allowed]:
        raise DataError(f"{label}: unknown key {unknown[0]!r}; use {', '.join(sorted(allowed))}")
    if missing := sorted(set(required) - set(value)):
        raise DataError(f"{label}: lacks {', '.join(missing)}")
    return value


def _list(value: Any, label: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{label}: expected a list, found {type(value).__name__}")
    return value
