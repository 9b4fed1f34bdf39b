"""Claims of a paper, each with the runs that answer it: `claims.yaml`, read and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import read_json, read_yaml

SECTION_KEYS = {"section", "notes", "plots", "groups"}
PLOT_KEYS = {"file", "caption", "draw"}
# What a claim may say; a group may say it for all of its claims, but for `id`, `paper`, `other` and `relation`.
CLAIM_KEYS = {
    "id", "setup", "method", "quantity", "paper", "paper_runs", "better", "tolerance", "scale", "digits",
    "experiment", "where", "metric", "minus", "relation", "other", "not_run", "deviations",
}  # fmt: skip
GROUP_KEYS = (CLAIM_KEYS - {"paper", "other", "relation", "minus"}) | {"claims"}
OTHER_KEYS = {"experiment", "where", "metric"}
MINUS_KEYS = {"experiment", "where"}
BETTER = ("higher", "lower", "neither")
RELATIONS = ("above", "below", "near", "not_above")


class Figure(NamedTuple):
    """A figure as it was printed.

    Attributes:
        value: Its value.
        std: The standard deviation printed with it, if any.
        decimals: Digits after the point.
    """

    value: float
    std: float | None
    decimals: int


class Source(NamedTuple):
    """Where our value comes from.

    Attributes:
        experiment: Folder of records, below the results.
        where: Dotted path in the record -> the value it must have, such as {"config.training.dair_lambda": 8.85}.
        metrics: Keys of its metrics; several only where a relation must hold for each.
        minus: Records of the same metrics that are subtracted, seed by seed; None: nothing is.
    """

    experiment: str
    where: Mapping[str, Any]
    metrics: tuple[str, ...]
    minus: Source | None = None


@dataclass(frozen=True)
class Claim:
    """One figure, or one relation, that a paper reports.

    Attributes:
        id: Its name, unique among all claims.
        setup: Which experiment of the section.
        method: Which method.
        quantity: What was measured.
        paper: What is printed: "32.70 +- 0.45", or a sentence where `relation` is set.
        source: Where our value comes from; None where nothing of ours answers it.
        not_run: Why nothing of ours answers it.
        paper_runs: Number of runs behind the printed standard deviation.
        better: Which side of the figure is the better one.
        tolerance: A difference up to this one counts as none, in printed units.
        scale: What our metric is multiplied with, such as 100 for percentages.
        digits: Digits after the point where no figure sets them.
        relation: "above", "below", "near" or "not_above": how our value stands to that of `other`.
        other: The value it is compared with.
        deviations: What differs from the paper's setup.
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

    @property
    def figure(self) -> Figure | None:
        """The printed figure; None where the claim is a relation."""
        return parse_figure(self.paper) if self.relation is None else None

    @property
    def decimals(self) -> int:
        """Digits after the point in which our value is shown: those of the printed figure."""
        figure = self.figure
        return self.digits if figure is None else figure.decimals


class Plot(NamedTuple):
    """A plot that a section shows.

    Attributes:
        file: Its PNG, below the results.
        caption: What it shows.
        draw: How it is drawn from the records (`reproduction.plots`); None where a recipe draws it.
    """

    file: str
    caption: str
    draw: Mapping[str, Any] | None = None


class Section(NamedTuple):
    """A section of the paper.

    Attributes:
        title: Its heading.
        notes: Paragraphs above its table.
        plots: Its plots, shown where their files exist.
        claims: Its claims.
    """

    title: str
    notes: list[str]
    plots: list[Plot]
    claims: list[Claim]


def parse_figure(text: str) -> Figure:
    """The figure in a printed "72.58 +- 0.11", "0.5483" or "1,000".

    Raises:
        DataError: It is none.

    Example:
        >>> parse_figure("72.58 +- 0.11")
        Figure(value=72.58, std=0.11, decimals=2)
    """
    number = r"-?\d[\d,]*(?:\.(\d+))?"
    match = re.fullmatch(rf"({number})(?: \+- ({number}))?", text)
    if match is None:
        raise DataError(f'{text!r} is no printed figure; write "72.58" or "72.58 +- 0.11", or give a `relation`')
    value, decimals, std, _ = match.groups()
    parsed = None if std is None else float(std.replace(",", ""))
    return Figure(float(value.replace(",", "")), parsed, len(decimals or ""))


def read_claims(path: Path) -> list[Section]:
    """Read and check `claims.yaml`.

    The file holds `sections`, each with `section` (its heading), `notes`, `plots` and `groups`; a group holds `claims`
    and what those have in common. A claim overrides its group; `where` of both are joined.

    Args:
        path: The file.

    Returns:
        The sections, in the order of the file.

    Raises:
        DataError: The file is absent or no YAML; an unknown or missing key, a value of the wrong kind, an id twice, or
            a claim with neither or both of `experiment` and `not_run`. The message holds the file and the claim's id.
    """
    content = _keys(read_yaml(path), {"sections"}, {"sections"}, str(path))
    sections = []
    for entry in _list(content["sections"], f"{path}: sections"):
        entry = _keys(entry, SECTION_KEYS, {"section", "groups"}, f"{path}: section")
        for text in (entry["section"], *_list(entry.get("notes", []), f"{path}: notes")):
            if not isinstance(text, str):
                raise DataError(f"{path}: section and notes: found {text!r}, a text is needed; put it into quotes")
        place = f"{path}: section {entry['section']!r}"
        plots = []
        for plot in _list(entry.get("plots", []), f"{place}: plots"):
            plots.append(Plot(**_keys(plot, PLOT_KEYS, {"file", "caption"}, f"{place}: plot")))
        claims = []
        for group in _list(entry["groups"], f"{place}: groups"):
            group = _keys(group, GROUP_KEYS, {"id", "claims"}, f"{place}: group")
            for claim in _list(group["claims"], f"{place}: group {group['id']}"):
                claims.append(_claim(group, claim, path))
        sections.append(Section(entry["section"], entry.get("notes", []), plots, claims))
    seen: set[str] = set()
    for claim in (claim for section in sections for claim in section.claims):
        if claim.id in seen:
            raise DataError(f"{path}: claim {claim.id}: this id is given twice; give each claim its own")
        seen.add(claim.id)
    return sections


def _claim(group: Mapping[str, Any], own: Any, path: Path) -> Claim:
    place = f"{path}: group {group['id']}: claim"
    own = _keys(own, CLAIM_KEYS, {"id", "paper"}, place)
    # A claim that is not run in a group that is, and the other way round.
    overridden = {
        "claims",
        *({"experiment"} if "not_run" in own else ()),
        *({"not_run"} if "experiment" in own else ()),
    }
    given = {**{key: value for key, value in group.items() if key not in overridden}, **own}
    given["id"] = f"{group['id']}.{own['id']}"
    place = f"{path}: claim {given['id']}"
    if ("experiment" in given) == ("not_run" in given):
        raise DataError(f"{place}: give either `experiment` (where ours comes from) or `not_run` (why there is none)")
    missing = {"setup", "method", "quantity"} | ({"metric"} if "experiment" in given else set())
    if missing := missing - set(given):
        raise DataError(f"{place}: lacks {', '.join(sorted(missing))}")
    _check_types(given, place)
    _check_types({"where": group.get("where", {})}, place)
    if ("relation" in given) != ("other" in given):
        raise DataError(f"{place}: `relation` and `other` belong together; give both or none")
    source = other = None
    if "experiment" in given:
        joined = {**own.get("where", {}), **group.get("where", {}), **own.get("where", {})}
        source = _source({**given, "where": joined}, place)
        if "relation" in given:
            second = _keys(given["other"], OTHER_KEYS, set(), f"{place}: other")
            other = _source({**given, **second, "where": {**joined, **second.get("where", {})}}, f"{place}: other")
            if len(other.metrics) not in (1, len(source.metrics)):
                raise DataError(f"{place}: other: name one metric, or as many as the claim does")
        elif len(source.metrics) > 1:
            raise DataError(f"{place}: several metrics need a `relation` that holds for each")
    plain = {key: value for key, value in given.items() if key not in OTHER_KEYS | {"other", "minus"}}
    claim = Claim(**plain, source=source, other=other)
    try:
        figure = claim.figure
    except DataError as error:
        raise DataError(f"{place}: paper: {error}") from error
    if figure is not None and figure.std is not None and (claim.paper_runs or 0) < 2:
        raise DataError(f"{place}: a standard deviation needs `paper_runs`, the number of runs it is of, at least 2")
    return claim


TEXT, NUMBER = (str,), (int, float)
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("paper", "setup", "method", "quantity", "not_run", "deviations"), TEXT),
    **dict.fromkeys(("scale", "tolerance"), NUMBER),
    **dict.fromkeys(("digits", "paper_runs"), (int,)),
    **dict.fromkeys(("where", "minus"), (dict,)),
}


def _check_types(given: Mapping[str, Any], place: str) -> None:
    for key, kinds in TYPES.items():
        if key in given and (not isinstance(given[key], kinds) or isinstance(given[key], bool)):
            hint = "; put it into quotes, so that its printed digits stay" if key == "paper" else ""
            raise DataError(f"{place}: {key}={given[key]!r} has the wrong type{hint}")
    for key, allowed in (("better", BETTER), ("relation", RELATIONS)):
        if key in given and given[key] not in allowed:
            raise DataError(f"{place}: {key}={given[key]!r} is unknown; use {', '.join(allowed)}")


def _source(given: Mapping[str, Any], place: str) -> Source:
    metric = given["metric"]
    metrics = tuple(metric) if isinstance(metric, list) else (metric,)
    if not metrics or not all(isinstance(name, str) for name in metrics) or not isinstance(given["experiment"], str):
        raise DataError(f"{place}: `experiment` is a folder's name, `metric` one key or a list of keys")
    minus = None
    if "minus" in given:
        taken = _keys(given["minus"], MINUS_KEYS, set(), f"{place}: minus")
        where = {**given["where"], **taken.get("where", {})}
        minus = Source(taken.get("experiment", given["experiment"]), where, metrics)
    return Source(given["experiment"], given["where"], metrics, minus)


def _keys(value: Any, allowed: Collection[str], required: Collection[str], place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{place}: found {type(value).__name__}, a mapping is needed")
    named = f"{place} {value['id']}" if "id" in value else place
    for key in value:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(sorted(allowed))}"
            raise DataError(f"{named}: unknown key {key!r}; {hint}")
    if missing := sorted(set(required) - set(value)):
        raise DataError(f"{named}: lacks {', '.join(missing)}")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{place}: found {type(value).__name__}, a list is needed")
    return value


# --- records --------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A finished run and the file it was read from."""

    path: Path
    content: Mapping[str, Any]


def read_records(folder: Path) -> list[Record]:
    """The records of an experiment: every JSON below its folder that is one, by path.

    Other JSON files, such as `comparison.json`, are passed over.

    Raises:
        DataError: A file that is no JSON.
    """
    found = []
    for path in sorted(folder.rglob("*.json")):
        # Hidden: what a killed writer left behind.
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            content = read_json(path)
            if isinstance(content, dict) and {"name", "method", "seed", "metrics"} <= content.keys():
                found.append(Record(path, content))
    return found


def select(records: Sequence[Record], where: Mapping[str, Any], claim: str) -> list[Record]:
    """The records that a filter names, one a seed, by ascending seed.

    The keys of the filter are looked up one after the other, and no further than the first that does not agree: only a
    record that agrees so far must have the next.

    Args:
        records: Records of an experiment.
        where: Dotted path -> value.
        claim: Id for messages.

    Raises:
        DataError: A path that a record does not have, or two records of one seed.
    """
    found: dict[int, Record] = {}
    for record in records:
        if all(value_at(record, path, claim) == value for path, value in where.items()):
            seed = record.content["seed"]
            if seed in found:
                raise DataError(
                    f"claim {claim}: {found[seed].path} and {record.path} both hold seed {seed} of {dict(where)}; "
                    "narrow `where`"
                )
            found[seed] = record
    return [found[seed] for seed in sorted(found)]


def value_at(record: Record, path: str, claim: str) -> Any:
    """What stands in a record under a dotted path.

    Raises:
        DataError: Nothing does; the message holds the claim and the record's file.
    """
    value: Any = record.content
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(f"claim {claim}: {record.path} has no {path!r} ({part!r} is missing); mend `where`")
        value = value[part]
    return value


def metric_of(record: Record, key: str, claim: str) -> float | None:
    """A metric of a record; None where the run found it undefined.

    Raises:
        DataError: The record does not have it.
    """
    metrics = record.content["metrics"]
    if key not in metrics:
        near = difflib.get_close_matches(key, metrics, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(metrics))}"
        raise DataError(f"claim {claim}: {record.path} has no metric {key!r}; {hint}")
    return metrics[key]
