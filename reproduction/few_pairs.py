"""Table of docs/results.md: counterfactual reviews, by model and by the share of originals that keep their revision.

    python -m reproduction.few_pairs   # print the table from results/

`results/counterfactual_sentiment/MODEL_SHARE/` holds the search for lambda on the dev split and, in `final/`, the runs
on the test split; `MODEL_SHARE_auto/` holds those with `dair_lambda: auto`. The `outcomes` of the records give the
differences to DA-ERM, paired over test rows and seeds.
"""

from __future__ import annotations

from dair_hf.io.commands import run_recipe

import argparse
import statistics
from pathlib import Path

from dair_hf.config import AUTO
from dair_hf.errors import DataError
from dair_hf.experiments.paired import difference_text, paired_differences
from dair_hf.experiments.run_records import lambda_of, lambda_text
from reproduction.records import Record, metric_of, read_records

FOLDER = "counterfactual_sentiment"
MODELS = {"bag_of_words": "bag of words", "embeddings": "embeddings", "bilstm": "BiLSTM"}
SHARES = (10, 30, 100)
# Metric of `paired_differences` -> heading.
DIFFERENCES = {
    "original_accuracy": "originals",
    "augmented_accuracy_pairs": "revisions",
    "cm": "CM",
    "both_correct": "both right",
}


def table(results: Path) -> str:
    """Return the table in Markdown, one row for each model and share of pairs that was run.

    Raises:
        DataError: No experiment was run, or one lacks DA-ERM, DAIR or their paired differences.
    """
    lines = [
        "| model, share of pairs | seeds | ERM | DA-ERM | KL | DAIR | auto | "
        + " | ".join(f"DAIR - DA: {name}" for name in DIFFERENCES.values())
        + " |",
        "|---|---|---|---|---|---|---|" + "---|" * len(DIFFERENCES),
    ]
    for model, title in MODELS.items():
        for share in SHARES:
            folder = results / FOLDER / f"{model}_{share}"
            if (folder / "final").is_dir():
                lines.append(f"| {title}, {share} % | " + " | ".join(_cells(folder)) + " |")
    if len(lines) == 2:
        raise DataError(f"{results / FOLDER}: holds no runs; make results runs them")
    return "\n".join(lines)


def _cells(folder: Path) -> list[str]:
    runs: dict[str, list[Record]] = {}
    for record in read_records(folder / "final"):
        runs.setdefault(record.content["method"], []).append(record)
    if missing := {"da", "dair"} - runs.keys():
        raise DataError(f"{folder}: has no run of {', '.join(sorted(missing))}; run it again")
    paired = paired_differences([record.content for records in runs.values() for record in records])
    differences = paired["differences"].get("dair") if paired else None
    if differences is None:
        raise DataError(f"{folder}: DAIR cannot be paired with DA-ERM; run it again")
    return [
        str(len(differences["seeds"])),
        *(_both_right(runs.get(method, []), str(folder)) for method in ("erm", "da", "kl", "dair")),
        _both_right(read_records(folder.with_name(f"{folder.name}_auto")), str(folder)),
        *(difference_text(differences.get(key)).replace("0.", ".") for key in DIFFERENCES),
    ]


def _both_right(runs: list[Record], label: str) -> str:
    """Return the mean share of pairs with both views right, and lambda if the method has one; "-" without runs."""
    if not runs:
        return "-"
    value = statistics.mean(float(metric_of(run, "both_correct", label) or 0) for run in runs)
    used = lambda_of(runs[0].content)
    return f"{value:.3f}" + ("" if used in (None, AUTO) else f" ({lambda_text(used)})")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of stored runs")
    print(table(parser.parse_args().results))


if __name__ == "__main__":
    run_recipe(main)
