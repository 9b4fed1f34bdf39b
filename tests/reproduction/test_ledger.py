"""Pages of results: every kind of row, the index, tables of experiments, and reproducible output."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dair_hf.errors import DataError
from reproduction.ledger import NOTICE, write_ledger

CLAIMS: dict[str, Any] = {
    "sections": [
        {
            "section": "4. Colored MNIST",
            "notes": ["A note\nin two lines."],
            "plots": [{"file": "adv/sweep.png", "caption": "Sweep"}, {"file": "adv/none.png", "caption": "None"}],
            "groups": [
                {
                    "id": "adv", "setup": "Adv.", "experiment": "adv", "better": "higher", "scale": 100,
                    "paper_runs": 4, "quantity": "accuracy", "metric": "accuracy",
                    "claims": [
                        {"id": "erm", "method": "ERM", "paper": "32.70 +- 0.40", "where": {"method": "erm"}},
                        {"id": "dair", "method": "DAIR | SQ", "paper": "72.5", "where": {"method": "dair"},
                         "deviations": "Three\nseeds."},
                        {"id": "irm", "method": "IRM", "paper": "66.90", "where": {"method": "irm"}},
                        {"id": "cm", "method": "ERM", "paper": "77", "quantity": "CM", "metric": "cm",
                         "where": {"method": "erm"}},
                        {"id": "wins", "method": "DAIR", "paper": "DAIR above ERM", "where": {"method": "dair"},
                         "relation": "above", "other": {"where": {"method": "erm"}},
                         "metric": ["accuracy", "theta"], "digits": 1},
                    ],
                },
            ],
        },
        {
            "section": "7. CIFAR-10",
            "groups": [
                {"id": "cifar", "setup": "PGD", "not_run": "needs a GPU.",
                 "claims": [{"id": "clean", "method": "PGD", "quantity": "clean", "paper": "82.89"}]},
            ],
        },
    ],
}  # fmt: skip

PAGE = "pages/4_colored_mnist.md"
HARDWARE = {"cpu": "x86_64", "cores": 2, "torch_threads": 1, "gpus": []}
RUNS = [
    ("erm", 0, {"accuracy": 0.32, "cm": 0.5, "theta": 0.5}),
    ("erm", 1, {"accuracy": 0.34, "cm": None, "theta": 0.5}),
    ("dair", 0, {"accuracy": 0.72, "cm": 1.0, "theta": 0.5}),
]


def put(folder: Path, method: str, seed: int, metrics: Any, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": f"{method}_seed{seed}", "method": method, "seed": seed, "metrics": metrics, **more}
    (folder / f"{method}_seed{seed}.json").write_text(json.dumps(record))


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def ledger_of(results: Path, claims: Any) -> str:
    """Return the first page."""
    (results / "claims.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))
    return write_ledger(results)[PAGE]


def row_of(results: Path, claims: Any, paper: str) -> str:
    """Row of a printed relation in the ledger of other claims."""
    return next(line for line in ledger_of(results, claims).splitlines() if paper in line)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for method, seed, metrics in RUNS:
        put(folder / "adv", method, seed, metrics, hardware=HARDWARE)
    (folder / "adv" / "comparison.json").write_text('{"runs": []}')
    (folder / "adv" / "sweep.png").write_bytes(b"png")
    (folder / "claims.yaml").write_text(yaml.safe_dump(CLAIMS, sort_keys=False))
    return folder


def test_pages_line_by_line(results: Path) -> None:
    pages = write_ledger(results)
    assert {path: (results / path).read_text() for path in pages} == pages
    lines = pages[PAGE].split("## Runs")[0].splitlines()
    # ERM: 33 with std sqrt(2) over 2 seeds, standard error 1; the paper's 0.405 / sqrt(4) = 0.2025; together
    # sqrt(1.041), with 1.041^2 / (1 + 0.041^2 / 3) = 1.083 degrees of freedom, where t is 10.62; and 0.005.
    assert lines == [
        "# 4. Colored MNIST",
        "",
        "A note",
        "in two lines.",
        "",
        "## Claims",
        "",
        "5 claims: 1 hold, 3 undecided, 1 not run ([rules](../RESULTS.md)).",
        "",
        "| Claim | Paper | Ours (mean ± std, n seeds) | Holds | Deviations |",
        "|---|---|---|---|---|",
        "| Adv.: ERM, accuracy | 32.70 ± 0.40 | 33.00 ± 1.41, n = 2 | inside the interval (+0.300, bound 10.840) |  |",
        "| Adv.: DAIR \\| SQ, accuracy | 72.5 | 72.0, n = 1 | one seed: undecided (-0.50, bound 0.05) | Three seeds. |",
        "| Adv.: IRM, accuracy | 66.90 | - | not run yet: adv (method = irm) |  |",
        "| Adv.: ERM, CM | 77 | - | cm is undefined in erm_seed1 |  |",
        # Better by 39 in accuracy and equal in theta: the row shows the metric with less support.
        "| Adv.: DAIR, accuracy | DAIR above ERM | theta: 50.0, n = 1 against 50.0 ± 0.0, n = 2 "
        "| one seed: undecided (+0.0); our means contradict the claim |  |",
        "",
        "![Sweep](../adv/sweep.png)",
        "",
    ]
    assert pages["pages/7_cifar_10.md"].splitlines()[2:10] == [
        "## Claims",
        "",
        "1 claims: 1 not run ([rules](../RESULTS.md)).",
        "",
        "1. needs a GPU.",
        "",
        "| Claim | Paper | Ours (mean ± std, n seeds) | Holds | Deviations |",
        "|---|---|---|---|---|",
    ]
    assert "\n| PGD: PGD, clean | 82.89 | - | not run (1) |  |\n" in pages["pages/7_cifar_10.md"]


def test_failed_claims_are_bold_and_numbered_by_reason(results: Path) -> None:
    claims = copy.deepcopy(CLAIMS)
    of_adv = claims["sections"][0]["groups"][0]["claims"]
    for number, reason in enumerate(("Colours differ.", "Colours differ.", None, "Few rows.")):
        claim = {"id": f"bad{number}", "method": "ERM", "paper": "90.00 +- 0.01", "where": {"method": "erm"}}
        of_adv.append({**claim, "metric": "theta", **({} if reason is None else {"why": reason})})
    text = ledger_of(results, claims)
    assert "\n9 claims: 1 hold, 4 do not hold, 3 undecided, 1 not run ([rules](../RESULTS.md)).\n" in text
    assert "\n\n1. Colours differ.\n2. Few rows.\n\n| Claim |" in text
    # 4 runs of the paper: 0.005 + 3.182 * 0.015 / sqrt(4) = 0.029.
    row = "| Adv.: ERM, accuracy | 90.00 ± 0.01 | 50.00 ± 0.00, n = 2 | **worse (-40.000, bound 0.029)**"
    ends = [line.removeprefix(row) for line in text.splitlines() if line.startswith(row)]
    assert ends == [" (1) |  |", " (1) |  |", " |  |", " (2) |  |"]


def test_index_counts_verdicts(results: Path) -> None:
    index = write_ledger(results)["RESULTS.md"]
    assert index.splitlines()[:7] == [
        "# The paper's claims and our runs",
        "",
        "| Experiment | claims | hold | do not hold | better | undecided | not run |",
        "|---|---|---|---|---|---|---|",
        "| [4. Colored MNIST](pages/4_colored_mnist.md) | 5 | 1 | - | - | 3 | 1 |",
        "| [7. CIFAR-10](pages/7_cifar_10.md) | 1 | - | - | - | - | 1 |",
        "| All | 6 | 1 | 0 | 0 | 3 | 2 |",
    ]
    # The bound of ERM is 10.8, and 32.7 is printed. DAIR and ERM have the same mean of theta.
    assert "counts 1 printed values that our runs do not contradict, 1 of them with a bound wider than a tenth" in index
    assert "and 0 relations. 0 values are outside on the better side." in index
    assert "For 1 of the undecided claims, our means contradict the claim." in index


def test_page_of_others_is_kept(results: Path) -> None:
    write_ledger(results)
    (results / PAGE).write_text("mine")
    with pytest.raises(DataError, match="4_colored_mnist"):
        write_ledger(results)
    assert (results / PAGE).read_text() == "mine" and NOTICE in (results / "RESULTS.md").read_text()


def test_relation_must_hold_for_each_metric(results: Path) -> None:
    """The relation is undecided if it is for one metric, even one with a larger difference."""
    claims = copy.deepcopy(CLAIMS)
    wins = claims["sections"][0]["groups"][0]["claims"][-1]
    wins["metric"], wins["digits"] = ["certain", "uncertain"], 0
    values = {("erm", 0): (0.1, 0.0), ("erm", 1): (0.1, 0.6), ("dair", 0): (0.2, 0.5), ("dair", 1): (0.2, 0.5)}
    for (method, seed), (certain, uncertain) in values.items():
        metrics = {"accuracy": 0.5, "cm": 0.5, "certain": certain, "uncertain": uncertain}
        put(results / "adv", method, seed, metrics)
    # 50 against 30 with a standard error of 30: 20 is inside 12.71 * 30. The other: 20 against 10, without deviation.
    expected = "| uncertain: 50 ± 0, n = 2 against 30 ± 42, n = 2 | undecided (+20, bound 381) |"
    assert expected in row_of(results, claims, "DAIR above ERM")


def test_minus_subtracts_the_run_of_the_same_seed(results: Path) -> None:
    """DA-ERM loses 20 and 10 points with few partners, DAIR 5; seed 1 of DAIR has no full run to subtract."""
    claims = copy.deepcopy(CLAIMS)
    drops = {"id": "drops", "method": "DA-ERM", "paper": "DA-ERM drops more", "relation": "below"}
    drops |= {"where": {"method": "da"}, "minus": {"experiment": "full"}, "other": {"where": {"method": "dair"}}}
    claims["sections"][0]["groups"][0]["claims"] = [drops]
    full = {("da", 0): 0.6, ("da", 1): 0.5, ("dair", 0): 0.75}
    few = {("da", 0): 0.4, ("da", 1): 0.4, ("dair", 0): 0.7, ("dair", 1): 0.1}
    for folder, runs in (("full", full), ("adv", few)):
        for (method, seed), accuracy in runs.items():
            put(results / folder, method, seed, {"accuracy": accuracy})
    assert "-15.00 ± 7.07, n = 2 against -5.00, n = 1" in row_of(results, claims, "DA-ERM drops more")
    shutil.rmtree(results / "full")
    assert "not run yet: adv" in write_ledger(results)[PAGE]


def test_table_of_runs(results: Path) -> None:
    change(results / "adv" / "dair_seed0.json", hardware={"gpus": ["H100"]}, git_revision="abc1234")
    change(results / "adv" / "erm_seed0.json", git_revision="abc1234-dirty")
    pages = write_ledger(results)
    assert pages[PAGE].split("## Runs\n\n")[1].splitlines()[:-2] == [
        "| Folder | runs | methods | seeds | commits | hardware |",
        "|---|---|---|---|---|---|",
        # One tree had changes, and one run names no commit.
        "| adv | 3 | dair, erm | 0, 1 | None, abc1234, abc1234-dirty | H100; x86_64, 2 cores, 1 threads |",
    ]
    assert "2 of the 3 runs behind these pages" in pages["RESULTS.md"]
    for path in (results / "adv").glob("*_seed*.json"):
        change(path, git_revision="abc1234")
    assert "All 3 runs behind these pages were made from commits" in write_ledger(results)["RESULTS.md"]


def test_runs_of_plots_tables_and_compared_values_are_counted_once(results: Path) -> None:
    claims = copy.deepcopy(CLAIMS)
    section = claims["sections"][0]
    draw = {"x": "config.x", "xlabel": "x", "ylabel": "y", "metric": "accuracy"}
    draw["series"] = [{"label": "curve", "sources": [{"experiment": "curve", "where": {}}]}]
    section["tables"] = ["compared", "shown"]
    section["plots"] = [
        {"file": "adv/sweep.png", "caption": "Sweep"},
        {"file": "shown/comparison.png", "caption": "Shown"},
        {"file": "plots/curve.png", "caption": "Curve", "draw": draw},
    ]
    section["groups"][0]["claims"][-1]["other"]["experiment"] = "other/part"
    for folder in ("shown", "curve", "other/part", "adv/part", "compared", "unused"):
        put(results / folder, "erm", 7, {"accuracy": 0.5, "theta": 0.5, "cm": 1.0}, config={"x": 1})
    for folder, note in (("compared", ""), ("shown", "Own note.\n")):
        (results / folder / "comparison.md").write_text(f"# Title\n\n| method |\n|---|\n\nMean.\n{note}")
    text = ledger_of(results, claims)
    assert "8 of the 8 runs behind these pages" in (results / "RESULTS.md").read_text()
    folders = [line.split(" | ")[0] for line in text.split("## Runs\n\n")[1].splitlines()[2:-2]]
    assert folders == ["| compared", "| shown", "| adv", "| other/part", "| curve"]
    assert "Runs in [compared](../compared):\n\n| method |\n|---|\n\nMean.\n\n" in text
    assert "Runs in [shown](../shown):\n\n| method |\n|---|\n\nOwn note.\n\n## Claims" in text
    assert [path.unlink() for path in results.glob("*/comparison.md")] == [None, None]
    assert ledger_of(results, claims).count("):\n\nNot run yet.") == 2


def test_output_depends_on_the_records_only(results: Path, tmp_path: Path) -> None:
    """In another folder, written in another order, and finished at another time."""
    pages = write_ledger(results)
    other = tmp_path / "elsewhere"
    for method, seed, metrics in reversed(RUNS):
        put(other / "adv", method, seed, metrics, hardware=HARDWARE, finished="now", seconds={"a": 1})
    shutil.copy(results / "adv" / "sweep.png", other / "adv")
    shutil.copy(results / "claims.yaml", other)
    assert write_ledger(other) == pages


def test_missing_metric_is_named_and_the_old_pages_kept(results: Path) -> None:
    (results / "RESULTS.md").write_text("old")
    change(results / "adv" / "erm_seed1.json", metrics={"cm": None, "theta": 0.5})
    with pytest.raises(DataError, match=r"claim adv\.erm: .*erm_seed1\.json .*'accuracy'"):
        write_ledger(results)
    assert (results / "RESULTS.md").read_text() == "old"
