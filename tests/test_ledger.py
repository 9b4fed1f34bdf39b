"""The ledger: its rule by hand arithmetic, what each kind of row says, and the same bytes from the same records."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from dair_hf import ledger as module
from dair_hf.claims import Figure
from dair_hf.errors import DataError
from dair_hf.ledger import Sample, judge_figure, judge_relation, main, write_ledger


def test_sample_by_hand() -> None:
    assert Sample.of([0.5]) == Sample(0.5, 0.0, 1)
    # Mean 0.3; deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2 = 0.07.
    mean, std, seeds = Sample.of([0.1, 0.2, 0.6])
    assert (round(mean, 12), seeds) == (0.3, 3)
    assert std == pytest.approx(math.sqrt(0.07), abs=1e-12)


# Ours: std 0.6 over 9 seeds, standard error 0.2. Paper: std 0.45 over 9 runs, 0.15. Both: 0.25; two of it: 0.5.
@pytest.mark.parametrize(
    ("mean", "better", "expected"),
    [
        (33.2, "higher", ("inside", "inside two standard errors (+0.500, bound 0.500)")),
        (32.2, "higher", ("inside", "inside two standard errors (-0.500, bound 0.500)")),
        (33.21, "higher", ("better", "better (+0.510, bound 0.500)")),
        (33.21, "lower", ("worse", "worse (+0.510, bound 0.500)")),
        (32.19, "higher", ("worse", "worse (-0.510, bound 0.500)")),
        (32.19, "lower", ("better", "better (-0.510, bound 0.500)")),
        (32.19, "neither", ("differs", "differs (-0.510, bound 0.500)")),
    ],
)
def test_two_standard_errors_of_both(mean: float, better: str, expected: tuple[str, str]) -> None:
    assert judge_figure(Sample(mean, 0.6, 9), Figure(32.7, 0.45, 2), 9, better, 0.0) == expected


def test_a_figure_without_deviation_is_known_to_its_digits() -> None:
    # 2 * 0.02 / sqrt(4) = 0.02.
    paper = Figure(1.23, None, 2)
    assert judge_figure(Sample(1.249, 0.02, 4), paper, None, "lower", 0.0)[1] == (
        "inside two standard errors (+0.019, bound 0.020)"
    )
    # Seeds that agree to the last digit: half a unit of the printed one is left.
    assert judge_figure(Sample(1.2349, 0.0, 5), paper, None, "lower", 0.0)[0] == "inside"
    assert judge_figure(Sample(1.2351, 0.0, 5), paper, None, "lower", 0.0)[0] == "worse"


def test_one_seed_says_so() -> None:
    paper = Figure(79.09, None, 2)
    assert (
        judge_figure(Sample(79.094, 0, 1), paper, None, "higher", 0)[1] == "one seed: as printed (+0.004, bound 0.005)"
    )
    assert judge_figure(Sample(80, 0, 1), paper, None, "higher", 0) == (
        "better", "one seed: better (+0.910, bound 0.005)",
    )  # fmt: skip
    # The paper's deviation stands in for ours: 2 * sqrt(0.3^2 + 0.3^2 / 9) = 0.632.
    found = judge_figure(Sample(79.7, 0, 1), Figure(79.09, 0.3, 2), 9, "higher", 0)
    assert found == ("inside", "one seed: inside two standard errors (+0.610, bound 0.632)")


def test_tolerance_of_a_row() -> None:
    paper = Figure(0.4767, None, 4)
    assert judge_figure(Sample(0.4776, 0, 1), paper, None, "neither", 1e-3) == (
        "inside", "one seed: inside the tolerance (+0.00090, bound 0.00100)",
    )  # fmt: skip
    assert judge_figure(Sample(0.4778, 0, 1), paper, None, "neither", 1e-3)[0] == "differs"
    # Where two standard errors are wider, they count.
    assert "standard errors" in judge_figure(Sample(0.4778, 0.01, 2), paper, None, "neither", 1e-3)[1]


# Standard errors 0.3 / sqrt(9) = 0.1 and 0: bound 0.2.
@pytest.mark.parametrize(
    ("mean", "relation", "kind"),
    [
        (1.21, "above", "holds"),
        (1.19, "above", "undecided"),
        (0.81, "above", "undecided"),
        (0.79, "above", "does not hold"),
        (0.79, "below", "holds"),
        (0.81, "below", "undecided"),
        (1.21, "below", "does not hold"),
        (1.19, "near", "holds"),
        (1.21, "near", "does not hold"),
        (1.19, "not_above", "holds"),
        (0.5, "not_above", "holds"),
        (1.21, "not_above", "does not hold"),
    ],
)
def test_relations(mean: float, relation: str, kind: str) -> None:
    found = judge_relation(Sample(mean, 0.3, 9), Sample(1.0, 0.0, 4), relation, 0.0, 2)
    assert found == (kind, f"{kind} ({mean - 1:+.2f}, bound 0.20)")


def test_relations_of_one_seed() -> None:
    one, other = Sample(0.6, 0, 1), Sample(0.5, 0, 1)
    assert judge_relation(one, other, "above", 0, 2) == ("holds", "one seed: holds (+0.10, bound 0.00)")
    assert judge_relation(other, one, "above", 0, 2)[0] == "does not hold"
    assert judge_relation(one, one, "above", 0, 2)[0] == "does not hold"
    assert judge_relation(one, one, "near", 0, 2)[0] == "holds"
    assert judge_relation(one, one, "not_above", 0, 2)[0] == "holds"
    assert judge_relation(one, other, "not_above", 0, 2)[0] == "does not hold"
    assert judge_relation(one, other, "near", 0.1, 2)[0] == "holds"
    assert judge_relation(one, other, "near", 0.09, 2)[0] == "does not hold"


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

HARDWARE = {"cpu": "x86_64", "cores": 2, "torch_threads": 1, "gpus": []}
RUNS = {
    "erm_seed0": ("erm", 0, {"accuracy": 0.32, "cm": 0.5, "theta": 0.5}),
    "erm_seed1": ("erm", 1, {"accuracy": 0.34, "cm": None, "theta": 0.5}),
    "dair_seed0": ("dair", 0, {"accuracy": 0.72, "cm": 1.0, "theta": 0.5}),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    (folder / "adv").mkdir(parents=True)
    for name, (method, seed, metrics) in RUNS.items():
        record = {"name": name, "method": method, "seed": seed, "metrics": metrics, "hardware": HARDWARE}
        (folder / "adv" / f"{name}.json").write_text(json.dumps(record))
    (folder / "adv" / "comparison.json").write_text('{"runs": []}')
    (folder / "adv" / "sweep.png").write_bytes(b"png")
    (folder / "claims.yaml").write_text(yaml.safe_dump(CLAIMS, sort_keys=False))
    return folder


def test_ledger_line_by_line(results: Path) -> None:
    text = write_ledger(results)
    assert (results / "RESULTS.md").read_text() == text
    lines = text.split("## The runs behind it")[0].splitlines()
    # ERM: 33 with std sqrt(2) over 2 seeds, standard error 1; the paper's 0.4 / sqrt(4) = 0.2; 2 sqrt(1.04) = 2.040.
    assert lines[lines.index("## 4. Colored MNIST") :] == [
        "## 4. Colored MNIST",
        "",
        "A note\nin two lines.".split("\n")[0],
        "in two lines.",
        "",
        "| Claim | Paper | Ours (mean ± std, n seeds) | Holds | Deviations |",
        "|---|---|---|---|---|",
        "| Adv.: ERM, accuracy | 32.70 ± 0.40 | 33.00 ± 1.41, n = 2 "
        "| inside two standard errors (+0.300, bound 2.040) |  |",
        "| Adv.: DAIR \\| SQ, accuracy | 72.5 | 72.0, n = 1 | one seed: worse (-0.50, bound 0.05) | Three seeds. |",
        "| Adv.: IRM, accuracy | 66.90 | - | not run yet: adv (method = irm) |  |",
        "| Adv.: ERM, CM | 77 | - | cm is undefined in erm_seed1 |  |",
        # Better by 39 in accuracy, equal at theta: the weaker one is shown.
        "| Adv.: DAIR, accuracy | DAIR above ERM | theta: 50.0, n = 1 against 50.0 ± 0.0, n = 2 "
        "| one seed: does not hold (+0.0, bound 0.0) |  |",
        "",
        "![Sweep](adv/sweep.png)",
        "",
        "## 7. CIFAR-10",
        "",
        "| Claim | Paper | Ours (mean ± std, n seeds) | Holds | Deviations |",
        "|---|---|---|---|---|",
        "| PGD: PGD, clean | 82.89 | - | not run: needs a GPU. |  |",
        "",
    ]


def test_a_relation_must_hold_for_each_metric(results: Path) -> None:
    """The metric with the smaller lead is certain, the other is not: the relation as a whole is undecided."""
    claims = json.loads(json.dumps(CLAIMS))
    wins = claims["sections"][0]["groups"][0]["claims"][-1]
    wins["metric"], wins["digits"] = ["sure", "vague"], 0
    (results / "claims.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))
    values = {("erm", 0): (0.1, 0.0), ("erm", 1): (0.1, 0.6), ("dair", 0): (0.2, 0.5)}
    for (method, seed), (sure, vague) in values.items():
        path = results / "adv" / f"{method}_seed{seed}.json"
        record = json.loads(path.read_text())
        record["metrics"] |= {"sure": sure, "vague": vague}
        path.write_text(json.dumps(record))
    row = next(line for line in write_ledger(results).splitlines() if "DAIR above ERM" in line)
    # 50 against 30 with a standard error of 30: 20 is inside 60. The other: 20 against 10, both without deviation.
    assert "| vague: 50, n = 1 against 30 ± 42, n = 2 | one seed: undecided (+20, bound 60) |" in row


def test_what_a_claim_subtracts_is_the_run_of_the_same_seed(results: Path) -> None:
    """DA-ERM loses 20 and 10 points with few partners, DAIR 5: the second seed of DAIR has no full run to subtract."""
    claims = json.loads(json.dumps(CLAIMS))
    drops = {"id": "drops", "method": "DA-ERM", "paper": "DA-ERM drops more", "relation": "below"}
    drops |= {"where": {"method": "da"}, "minus": {"experiment": "full"}, "other": {"where": {"method": "dair"}}}
    claims["sections"][0]["groups"][0]["claims"] = [drops]
    (results / "claims.yaml").write_text(yaml.safe_dump(claims, sort_keys=False))
    full = {("da", 0): 0.6, ("da", 1): 0.5, ("dair", 0): 0.75}
    few = {("da", 0): 0.4, ("da", 1): 0.4, ("dair", 0): 0.7, ("dair", 1): 0.1}
    (results / "full").mkdir()
    for folder, runs in (("full", full), ("adv", few)):
        for (method, seed), accuracy in runs.items():
            record = {"name": method, "method": method, "seed": seed, "metrics": {"accuracy": accuracy}}
            (results / folder / f"{method}_seed{seed}.json").write_text(json.dumps(record))
    row = next(line for line in write_ledger(results).splitlines() if "DA-ERM drops more" in line)
    assert "-15.00 ± 7.07, n = 2 against -5.00, n = 1" in row
    shutil.rmtree(results / "full")
    assert "not run yet: adv" in write_ledger(results)


def test_no_negative_zero() -> None:
    assert module._show(Sample(-1e-9, 0, 1), 3) == "0.000, n = 1"
    assert module._show(Sample(-0.0006, 0, 1), 3) == "-0.001, n = 1"


def test_summary_counts_every_claim_once(results: Path) -> None:
    lines = write_ledger(results).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| Section"))
    assert lines[start : start + 4] == [
        "| Section | claims | inside | worse | does not hold | undefined | not run |",
        "|---|---|---|---|---|---|---|",
        "| 4. Colored MNIST | 5 | 1 | 1 | 1 | 1 | 1 |",
        "| 7. CIFAR-10 | 1 | 0 | 0 | 0 | 0 | 1 |",
    ]


def test_runs_behind_it(results: Path) -> None:
    record = json.loads((results / "adv" / "dair_seed0.json").read_text())
    record["hardware"] = {"gpus": ["H100"]}
    (results / "adv" / "dair_seed0.json").write_text(json.dumps(record))
    lines = write_ledger(results).split("## The runs behind it\n\n")[1].splitlines()
    assert lines == [
        "| Folder | runs | methods | seeds | hardware |",
        "|---|---|---|---|---|",
        "| adv | 3 | dair, erm | 0, 1 | H100; x86_64, 2 cores, 1 threads |",
    ]


def test_the_same_records_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    text = write_ledger(results)
    assert write_ledger(results) == text
    # Elsewhere, written in another order, and with another time of finishing.
    other = tmp_path / "elsewhere"
    (other / "adv").mkdir(parents=True)
    for name in sorted(RUNS, reverse=True):
        record = json.loads((results / "adv" / f"{name}.json").read_text())
        (other / "adv" / f"{name}.json").write_text(json.dumps({**record, "finished": "now", "seconds": {"a": 1}}))
    shutil.copy(results / "adv" / "sweep.png", other / "adv")
    shutil.copy(results / "claims.yaml", other)
    assert write_ledger(other) == text
    # Another value, another ledger.
    record = {
        **json.loads((other / "adv" / "erm_seed0.json").read_text()),
        "metrics": {**RUNS["erm_seed0"][2], "accuracy": 0.4},
    }
    (other / "adv" / "erm_seed0.json").write_text(json.dumps(record))
    assert write_ledger(other) != text


def test_a_missing_metric_is_named_and_the_old_ledger_stays(results: Path) -> None:
    (results / "RESULTS.md").write_text("old")
    record = json.loads((results / "adv" / "erm_seed1.json").read_text())
    del record["metrics"]["accuracy"]
    (results / "adv" / "erm_seed1.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"claim adv\.erm: .*erm_seed1\.json has no metric 'accuracy'"):
        write_ledger(results)
    assert (results / "RESULTS.md").read_text() == "old"


def test_module_as_a_program(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--results", str(results)])
    assert "RESULTS.md" in capsys.readouterr().out
    assert (results / "RESULTS.md").read_text().startswith("# The ledger of claims\n")
    assert set(module.KINDS) >= {"inside", "better", "worse", "not run"}
