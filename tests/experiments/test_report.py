"""Tables and plots of comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dair_hf.experiments.report import Column, _comparison_table, write_comparison

COLUMNS = [Column("jga", "JGA"), Column("cm", "CM", ("num", "den"))]


def run(method: str, **metrics: Any) -> dict[str, Any]:
    return {"method": method, "metrics": metrics}


def test_table_of_single_runs() -> None:
    records = [run("erm", jga=0.25, cm=0.5, num=15, den=30), run("dair", jga=1 / 3, cm=1.0, num=29, den=29)]
    assert _comparison_table(records, COLUMNS).splitlines() == [
        "| method | runs | JGA | CM |",
        "|---|---|---|---|",
        "| erm | 1 | 0.250 | 0.500 (15/30) |",
        "| dair | 1 | 0.333 | - |",
    ]


def test_runs_with_different_lambdas_are_not_averaged() -> None:
    def dair(value: float | str, jga: float) -> dict[str, Any]:
        return {**run("dair", jga=jga), "config": {"training": {"method": "dair", "dair_lambda": value}}}

    records = [dair(1.0, 0.1), dair("auto", 0.5), dair(1.0, 0.2), dair(1.0, 0.6)]
    lines = _comparison_table(records, COLUMNS[:1]).splitlines()
    # Mean 0.3; deviations -0.2, -0.1, 0.3: (0.04 + 0.01 + 0.09) / 2 = 0.07, of which the root is 0.265.
    assert lines[2:] == ["| dair, lambda 1 | 3 | 0.300 ± 0.265 |", "| dair, lambda auto | 1 | 0.500 |"]


def test_metric_that_is_undefined_in_some_runs_has_no_mean() -> None:
    """The mean over the other runs would be biased."""
    records = [run("erm", cm=None, num=0, den=0), run("erm", cm=0.9, num=36, den=40), run("erm", cm=None, num=0, den=0)]
    assert _comparison_table(records, COLUMNS[1:]).splitlines()[2] == "| erm | 3 | - (undefined in 2 of 3 runs) |"
    assert _comparison_table(records[:1] * 2, COLUMNS[1:]).splitlines()[2] == "| erm | 2 | - |"


def test_a_cm_of_seeds_shows_the_number_of_its_pairs() -> None:
    records = [run("erm", cm=0.5, cm_numerator=20, cm_denominator=rows) for rows in (40, 41, 40)]
    columns = [Column("cm", "CM"), Column("cm_all_rows", "CM, all rows")]
    assert _comparison_table(records, columns[:1]).splitlines()[2] == "| erm | 3 | 0.500 ± 0.000 (n = 40 to 41) |"
    assert _comparison_table(records[::2], columns[:1]).splitlines()[2] == "| erm | 2 | 0.500 ± 0.000 (n = 40) |"
    records.append(run("erm", cm=1.0, cm_numerator=2, cm_denominator=2))
    assert _comparison_table(records, columns[:1]).splitlines()[2] == "| erm | 4 | - (undefined in 1 of 4 runs) |"


def test_comparison_files(tmp_path: Path) -> None:
    records = [run("erm", jga=0.25, cm=None), run("erm", jga=0.75, cm=None), run("dair", jga=0.5, cm=1.0, num=2, den=2)]
    table = write_comparison(tmp_path / "new" / "out", "The title", records, COLUMNS, ["First note.", "Second."])
    folder = tmp_path / "new" / "out"
    assert table == _comparison_table(records, COLUMNS)
    assert (
        folder / "comparison.md"
    ).read_text() == f"# The title\n\n{table}\n\nMean ± standard deviation over the runs.\nFirst note.\nSecond.\n"
    write_comparison(folder, "The title", records[1:], COLUMNS)
    assert (folder / "comparison.md").read_text().endswith("|\n")  # one run per method: no deviation
    write_comparison(folder, "The title", records, COLUMNS, ["First note.", "Second."])
    stored = json.loads((folder / "comparison.json").read_text())
    assert stored == {"title": "The title", "notes": ["First note.", "Second."], "runs": records}
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.json", "comparison.md", "comparison.png"]
