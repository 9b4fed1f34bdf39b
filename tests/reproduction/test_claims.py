"""Claims: reading, inheritance from groups, and errors that name the claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from reproduction.claims import Claim, Plot, PrintedValue, Source, parse_printed_value, read_claims


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("72.58 +- 0.11", PrintedValue(72.58, 0.11, 2)),
        ("0.5483", PrintedValue(0.5483, None, 4)),
        ("1,000", PrintedValue(1000, None, 0)),
        ("-0.10", PrintedValue(-0.1, None, 2)),
    ],
)
def test_printed_values(text: str, expected: PrintedValue) -> None:
    assert parse_printed_value(text) == expected


@pytest.mark.parametrize("text", ["", "about 5", "5 +- ", "5 ± 1", "5.", ".5", "1e3", "5 %", "nan"])
def test_invalid_printed_values_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="printed value"):
        parse_printed_value(text)


GROUP: dict[str, Any] = {
    "id": "adv",
    "setup": "Adv.",
    "experiment": "colored_mnist_adv",
    "better": "higher",
    "scale": 100,
    "paper_runs": 10,
    "where": {"config.data.label_noise": 0.25},
    "deviations": "Five seeds.",
    "claims": [
        {"id": "erm", "method": "ERM", "quantity": "accuracy", "paper": "32.70 +- 0.45", "metric": "accuracy_c3",
         "where": {"method": "erm"}},
    ],
}  # fmt: skip


def write(folder: Path, *groups: Any, **section: Any) -> Path:
    path = folder / "claims.yaml"
    content = {"sections": [{"section": "4. Colored MNIST", "groups": list(groups), **section}]}
    path.write_text(json.dumps(content))  # which is YAML without aliases
    return path


def group(*claims: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return GROUP with other claims, each merged into its first one, and other keys; None removes a key."""
    merged = [{**GROUP["claims"][0], **claim} for claim in claims] or GROUP["claims"]
    cleaned = [{key: value for key, value in claim.items() if value is not None} for claim in merged]
    return {key: value for key, value in {**GROUP, "claims": cleaned, **changes}.items() if value is not None}


def test_claim_inherits_from_its_group(tmp_path: Path) -> None:
    (section,) = read_claims(write(tmp_path, group(), notes=["A note."], plots=[{"file": "a.png", "caption": "A"}]))
    assert (section.title, section.notes, section.plots) == ("4. Colored MNIST", ["A note."], [Plot("a.png", "A")])
    where = {"method": "erm", "config.data.label_noise": 0.25}
    assert section.claims == [
        Claim(
            "adv.erm", "Adv.", "ERM", "accuracy", "32.70 +- 0.45",
            Source("colored_mnist_adv", where, ("accuracy_c3",)),
            paper_runs=10, better="higher", scale=100, deviations="Five seeds.",
        )
    ]  # fmt: skip
    # The claim's own condition comes first, so that records of other methods need not have the other keys.
    assert list(section.claims[0].source.where) == ["method", "config.data.label_noise"]  # type: ignore[union-attr]
    assert section.claims[0].printed == PrintedValue(32.7, 0.45, 2)


def test_claim_overrides_its_group(tmp_path: Path) -> None:
    changes = {"deviations": "None.", "better": "lower", "where": {"config.data.label_noise": 0.4, "method": "erm"}}
    absent = {"id": "b", "not_run": "No GPU.", "metric": None}
    (section,) = read_claims(write(tmp_path, group(changes, absent)))
    first, second = section.claims
    assert (first.deviations, first.better) == ("None.", "lower")
    assert first.source is not None
    assert first.source.where == {"method": "erm", "config.data.label_noise": 0.4}
    assert (second.source, second.not_run) == (None, "No GPU.")


def test_relation_compares_two_sources(tmp_path: Path) -> None:
    changes = {"paper": "DAIR above ERM", "relation": "above", "metric": ["a", "b"], "where": {"method": "dair"}}
    other = {"other": {"where": {"method": "erm"}, "metric": "c", "experiment": "x/final"}, "digits": 1}
    (section,) = read_claims(write(tmp_path, group({**changes, **other})))
    (claim,) = section.claims
    noise = {"config.data.label_noise": 0.25}
    assert claim.source == Source("colored_mnist_adv", {"method": "dair", **noise}, ("a", "b"))
    assert claim.other == Source("x/final", {"method": "erm", **noise}, ("c",))
    assert (claim.printed, claim.digits, claim.relation) == (None, 1, "above")


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (group({"metrc": "x"}), r"claims\.yaml: group adv: claim erm: .*metrc"),
        (group({"paper": None}), "claim erm: .*paper"),
        (group({"metric": None}), "claim adv.erm: .*metric"),
        (group({"paper": 32.7}), "paper=32.7"),
        (group({"scale": True}), "scale=True"),
        (group({"where": ["method"]}), "where="),
        (group({"better": "up"}), "better='up'"),
        (group({"relation": "over", "other": {}}), "relation='over'"),
        (group({"relation": "above"}), "other"),
        (group({"other": {}}), "relation"),
        (group({"relation": "above", "other": {"metrics": "x"}}), "other: .*metrics"),
        (group({"relation": "above", "other": {}, "minus": {"metric": "x"}}), "minus: .*metric"),
        (group({"relation": "above", "metric": ["a", "b", "c"], "other": {"metric": ["a", "b"]}}), "metric"),
        (group({"metric": ["a", "b"]}), "relation"),
        (group({"metric": []}), "metric"),
        (group({"paper": "about 32"}), "paper: 'about 32'"),
        (group({"not_run": "No GPU.", "experiment": "x"}), "not_run"),
        (group(experiment=None), "experiment"),
        (group(paper_runs=None), "paper_runs"),
        (group(paper_runs=1), "paper_runs"),
        (group(relation="above"), "relation"),
        (group(claims={}), "group adv"),
    ],
)
def test_invalid_claims_are_named(tmp_path: Path, made: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_claims(write(tmp_path, made))


def test_ids_are_unique_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"claim adv\.erm: this id is given twice"):
        read_claims(write(tmp_path, group({}, {})))
    with pytest.raises(DataError, match=r"claim adv\.erm: this id is given twice"):
        read_claims(write(tmp_path, group(), group()))
    assert len(read_claims(write(tmp_path, group(), group(id="rnd")))[0].claims) == 2


def test_invalid_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    for content in ("claims: []", "sections: [{section: 4, groups: []}]"):
        path.write_text(content)
        with pytest.raises(DataError, match=r"claims\.yaml"):
            read_claims(path)
