"""Settings chosen on dev data, and the sentence that hand-made differences support."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist

import pytest

from dair_hf.evaluation.paired import PairedDifference
from dair_hf.experiments.comparison import ComparisonConfig
from dair_hf.experiments.run_records import Result, Run
from dair_hf.experiments.trials import DEV_METRIC, _outcomes, _partner_weights, _verdict, run_trials
from tests.fixtures import tiny


def test_the_best_trial_is_run_with_the_other_seeds(tmp_path: Path) -> None:
    executed: list[tuple[str, int]] = []

    def execute(run: Run, total: int) -> Result:
        executed.append((run.name, total))
        weight = (run.args.view_weights or [0.5, 0.5])[1]
        return Result({DEV_METRIC: 0.9 if weight == 2 or run.args.method == "da" else 0.1}, {"training": 1.0})

    comparison = ComparisonConfig(["erm", "da", "kl", "dair"], {"kl": 10.0}, seeds=[3, 4])
    args = tiny.config(tmp_path / "out", dair_lambda="auto")
    records, labels = run_trials(comparison, args, execute, {}, {}, 0.4)
    assert (_partner_weights(1.0), _partner_weights(0.1)) == ((0.5, 1.0), (0.5, 9.5))
    # Of the two best weights of DA the first is chosen.
    assert labels == {"erm": "erm", "da": "da_weight0.5", "kl": "kl_weight2", "dair": "dair_weight2"}
    assert len(executed) == len(set(executed)) == 11 and {total for _, total in executed} == {11}
    assert [name for name, _ in executed[7:]] == [
        "erm_seed4",
        "da_weight0.5_seed4",
        "kl_weight2_seed4",
        "dair_weight2_seed4",
    ]
    assert [(record["method"], record["seed"]) for record in records] == [
        (method, seed) for seed in (3, 4) for method in comparison.methods
    ]
    settings = [(r["config"]["training"]["dair_lambda"], r["config"]["training"]["view_weights"]) for r in records]
    assert not settings[4][1] and settings[5:] == [("auto", [0.5, 0.5]), (10.0, [0.5, 2.0]), ("auto", [0.5, 2.0])]
    assert run_trials(comparison, args, execute, {}, {}, 0.4) == (json.loads(json.dumps(records)), labels)
    assert len(executed) == 11


def difference_of(difference: float, half_width: float | None) -> PairedDifference:
    error = (half_width or 0.1) / 1.959964  # normal
    return PairedDifference(difference, error, half_width, ((0.0, 1), (error**2, 1e9), (0.0, 1)))


@pytest.mark.parametrize(
    ("difference", "half_width", "on_pairs", "on_methods"),
    [
        (0.21, 0.03, "pairs help", "better"),
        (-0.21, 0.03, "pairs hurt", "worse"),
        (0.01, 0.03, "pairs change little", "do not differ"),
        (0.03, 0.04, "too few", "too few"),
        (-0.04, 0.09, "too few", "too few"),
        (0.3, None, "too few", "too few"),
    ],
)
def test_the_sentence_says_what_intervals_support(
    difference: float, half_width: float | None, on_pairs: str, on_methods: str
) -> None:
    found, other = (difference_of(d, h) for d, h in ((difference, half_width), (0.5, 0.1)))
    both, *others = _verdict({"da": other, "dair": found}, {"erm": other, "dair": found}, "dair").split("; ")
    assert both.startswith(on_pairs) and "DAIR" in both and "ERM" in both
    assert len(others) == 1 and on_methods in others[0] and "ERM" not in others[0]
    assert f"{difference:+.2f}" in both and ("±" in both) == (half_width is not None)
    assert _verdict({}, {"dair": found}, "dair") == others[0]


@pytest.mark.parametrize("size", [1.0, 1.01, 1.15, 1.25])
def test_the_sentence_is_corrected_for_the_number_of_its_differences(size: float) -> None:
    scores = [size * score for score in (1.9, 1.97, 2.4, 2.2)]
    levels = [2 * (1 - NormalDist().cdf(score)) for score in scores]
    expected, rejected = ["unknown"] * 4, True  # Holm (1979) by p-values
    for number, index in enumerate(sorted(range(4), key=levels.__getitem__)):
        rejected = rejected and levels[index] <= 0.05 / (4 - number)
        expected[index] = "better" if rejected else "unknown"
    half_width = 1.959965
    assert _outcomes([difference_of(score, half_width) for score in scores]) == expected
    # A decided difference leaves the others a larger level, also if it is that two methods do not differ.
    narrow, found = difference_of(0.0, 0.01 * half_width), difference_of(2.0, half_width)
    assert _outcomes([narrow, found]) == ["equal", "better"] and _outcomes([found, found]) == ["unknown"] * 2
