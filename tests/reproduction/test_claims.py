"""Claims are read as they are written, faulty ones named; records are picked by what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dair_hf.errors import DataError
from reproduction.claims import Claim, Figure, Plot, Source, metric_of, parse_figure, read_claims, read_records, select


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("72.58 +- 0.11", Figure(72.58, 0.11, 2)),
        ("0.5483", Figure(0.5483, None, 4)),
        ("1,000", Figure(1000, None, 0)),
        ("-0.10", Figure(-0.1, None, 2)),
        ("83.40", Figure(83.4, None, 2)),
    ],
)
def test_printed_figures(text: str, expected: Figure) -> None:
    assert parse_figure(text) == expected


@pytest.mark.parametrize("text", ["", "about 5", "5 +- ", "5 ± 1", "5.", ".5", "1e3", "5 %", "nan"])
def test_no_figures(text: str) -> None:
    with pytest.raises(DataError, match="is no printed figure; write"):
        parse_figure(text)


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
    path.write_text(yaml.safe_dump(content))
    return path


def group(*claims: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The group above with other claims, each on top of the one it holds; None drops a key."""
    made = [{**GROUP["claims"][0], **claim} for claim in claims] or GROUP["claims"]
    kept = [{key: value for key, value in claim.items() if value is not None} for claim in made]
    return {key: value for key, value in {**GROUP, "claims": kept, **changes}.items() if value is not None}


def test_a_claim_has_what_its_group_says(tmp_path: Path) -> None:
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
    # The record's method is looked at first: other methods need not have the rest.
    assert list(section.claims[0].source.where) == ["method", "config.data.label_noise"]  # type: ignore[union-attr]
    assert section.claims[0].figure == Figure(32.7, 0.45, 2)


def test_a_claim_overrides_its_group(tmp_path: Path) -> None:
    own = {"deviations": "None.", "better": "lower", "where": {"config.data.label_noise": 0.4, "method": "erm"}}
    absent = {"id": "b", "not_run": "No GPU.", "metric": None}
    (section,) = read_claims(write(tmp_path, group(own, absent)))
    first, second = section.claims
    assert (first.deviations, first.better) == ("None.", "lower")
    assert first.source is not None
    assert first.source.where == {"method": "erm", "config.data.label_noise": 0.4}
    assert (second.source, second.not_run) == (None, "No GPU.")


def test_a_relation_compares_two_sources(tmp_path: Path) -> None:
    own = {"paper": "DAIR above ERM", "relation": "above", "metric": ["a", "b"], "where": {"method": "dair"}}
    other = {"other": {"where": {"method": "erm"}, "metric": "c", "experiment": "x/final"}, "digits": 1}
    (section,) = read_claims(write(tmp_path, group({**own, **other})))
    (claim,) = section.claims
    noise = {"config.data.label_noise": 0.25}
    assert claim.source == Source("colored_mnist_adv", {"method": "dair", **noise}, ("a", "b"))
    assert claim.other == Source("x/final", {"method": "erm", **noise}, ("c",))
    assert (claim.figure, claim.decimals, claim.relation) == (None, 1, "above")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrc": "x"}, r"claims\.yaml: group adv: claim erm: unknown key 'metrc'; did you mean 'metric'\?"),
        ({"paper": None}, "group adv: claim erm: lacks paper"),
        ({"metric": None}, "claim adv.erm: lacks metric"),
        ({"method": None}, "claim adv.erm: lacks method"),
        ({"paper": 32.7}, "claim adv.erm: paper=32.7 has the wrong type; put it into quotes"),
        ({"scale": "100"}, "claim adv.erm: scale='100' has the wrong type"),
        ({"scale": True}, "scale=True has the wrong type"),
        ({"where": ["method"]}, "where=.* has the wrong type"),
        ({"better": "up"}, "better='up' is unknown; use higher, lower, neither"),
        ({"relation": "over", "other": {}}, "relation='over' is unknown; use above, below, near, not_above"),
        ({"relation": "above"}, "`relation` and `other` belong together"),
        ({"other": {}}, "`relation` and `other` belong together"),
        ({"relation": "above", "other": {"metrics": "x"}}, "claim adv.erm: other: unknown key 'metrics'"),
        ({"relation": "above", "other": {}, "minus": {"metric": "x"}}, "claim adv.erm: minus: unknown key 'metric'"),
        ({"relation": "above", "metric": ["a", "b", "c"], "other": {"metric": ["a", "b"]}}, "one metric, or as many"),
        ({"metric": ["a", "b"]}, "several metrics need a `relation`"),
        ({"metric": []}, "`metric` one key or a list of keys"),
        ({"paper": "about 32"}, "claim adv.erm: paper: 'about 32' is no printed figure"),
        ({"not_run": "No GPU.", "experiment": "x"}, "give either `experiment` .* or `not_run`"),
    ],
)
def test_faulty_claims_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_claims(write(tmp_path, group(changes)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experiment": None}, "give either `experiment`"),
        ({"paper_runs": None}, "claim adv.erm: a standard deviation needs `paper_runs`"),
        ({"paper_runs": 1}, "a standard deviation needs `paper_runs`, the number of runs it is of, at least 2"),
        ({"relation": "above"}, "group adv: unknown key 'relation'"),
        ({"claims": {}}, "group adv: found dict, a list is needed"),
        ({"claims": ["a"]}, "group adv: claim: found str, a mapping is needed"),
        ({"where": ["a"]}, "where=.* has the wrong type"),
    ],
)
def test_faulty_groups_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_claims(write(tmp_path, group(**changes)))


def test_ids_are_unique_over_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"claim adv\.erm: this id is given twice"):
        read_claims(write(tmp_path, group({}, {})))
    with pytest.raises(DataError, match=r"claim adv\.erm: this id is given twice"):
        read_claims(write(tmp_path, group(), group()))
    assert len(read_claims(write(tmp_path, group(), group(id="rnd")))[0].claims) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sections: [", "not valid YAML"),
        ("- a", "found list, a mapping is needed"),
        ("claims: []", "unknown key 'claims'; use sections"),
        ("sections: [{section: 4, groups: []}]", "section and notes: found 4, a text is needed"),
        ("sections: [{section: a, groups: [], plots: [{file: x}]}]", "section 'a': plot: lacks caption"),
        ("sections: [{section: a, groups: [], plots: [{file: x, caption: y, drawn: {}}]}]", "did you mean 'draw'"),
    ],
)
def test_faulty_files_are_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        read_claims(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"claims\.yaml: no such file"):
        read_claims(tmp_path / "claims.yaml")


# --- records --------------------------------------------------------------------------------------------------------


def put(folder: Path, file: str, **content: Any) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": path.stem, "method": "erm", "seed": 0, "metrics": {}, **content}))
    return path


def test_records_are_what_looks_like_one(tmp_path: Path) -> None:
    put(tmp_path, "b.json", seed=1)
    put(tmp_path, "noise/a.json")
    put(tmp_path, ".b.json.x1/b.json")
    (tmp_path / "comparison.json").write_text('{"title": "T", "runs": []}')
    (tmp_path / "list.json").write_text("[1]")
    assert [record.path.name for record in read_records(tmp_path)] == ["b.json", "a.json"]
    assert read_records(tmp_path / "absent") == []
    (tmp_path / "c.json").write_text('{"name": "c"')
    with pytest.raises(DataError, match=r"c\.json: line 1, column \d+: not valid JSON"):
        read_records(tmp_path)


def test_select_follows_dotted_paths(tmp_path: Path) -> None:
    put(tmp_path, "c.json", method="dair", seed=2, config={"training": {"dair_lambda": 8.85}})
    put(tmp_path, "a.json", method="dair", seed=10, config={"training": {"dair_lambda": 8.85}})
    put(tmp_path, "b.json", method="dair", seed=2, config={"training": {"dair_lambda": 100}})
    put(tmp_path, "e.json", method="erm", config={})
    records = read_records(tmp_path)

    def names(**where: Any) -> list[str]:
        dotted = {key.replace("__", "."): value for key, value in where.items()}
        return [record.path.stem for record in select(records, dotted, "x.y")]

    # By seed as a number, not by name.
    assert names(method="dair", config__training__dair_lambda=8.85) == ["c", "a"]
    assert names(method="dair", config__training__dair_lambda=100.0) == ["b"]
    assert names(method="da") == []
    with pytest.raises(DataError, match=r"claim x\.y: .*b\.json and .*c\.json both hold seed 2 of .*; narrow `where`"):
        names(method="dair")
    with pytest.raises(DataError, match=r"e\.json has no 'config\.training\.dair_lambda' \('training' is missing\)"):
        names(config__training__dair_lambda=8.85)


def test_metric_of_a_record(tmp_path: Path) -> None:
    put(tmp_path, "a.json", metrics={"accuracy": 0.5, "cm": None})
    (record,) = read_records(tmp_path)
    assert metric_of(record, "accuracy", "x.y") == 0.5
    assert metric_of(record, "cm", "x.y") is None
    with pytest.raises(DataError, match=r"claim x\.y: .*a\.json has no metric 'acuracy'; did you mean 'accuracy'\?"):
        metric_of(record, "acuracy", "x.y")
    with pytest.raises(DataError, match="it has accuracy, cm"):
        metric_of(record, "rmse", "x.y")
