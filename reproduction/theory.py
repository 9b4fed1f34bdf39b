"""The theory of the paper: linear toy, logistic toy, the bound in lambda, and R_l1 compared with R_sq (section 9).

Run (no data; writes outputs/theory; half a minute on one core for three seeds):

    python -m reproduction.theory --output_dir outputs/theory

Solves DA-ERM and DAIR on the linear toy, in one and in 3 + 2 dimensions, and DA-ERM with weight decay; trains the
logistic toy by Adam until its gradient norm is below 1e-7. Expect:

- DA-ERM at its closed form (0.4767, 0.6977), far from (1, 0). No weight decay brings it below RMSE 0.71; DAIR reaches
  0.50, the best possible value.
- DAIR ten times closer to (1, 0) for each tenfold lambda, and R_sq within its bound.
- About 250 iterations at lambda 0.5 and 650 at 10,000 (paper: 81 and 803; see `logistic_toy.train_logistic`).

Finished runs are kept as JSON and not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import Seed, claim_output_folder, compare, require_distinct
from dair_hf.experiments.plots import Series, mean_series, plot_curves, save_figure
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import Result, Run
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import read_json, write_text
from dair_hf.settings import Positive, Range, Settings
from reproduction.linear_toy import LinearToy, consistency_gap, da_findings, dair_findings, sample_linear
from reproduction.logistic_toy import PAPER_ITERATIONS, logistic_accuracy, sample_logistic, train_logistic
from reproduction.records import markdown_table

TOYS = {
    "": LinearToy(),
    "wide_": LinearToy(theta=(0.6, -0.5, 0.3), shortcut=(1.0, 0.5), x_std=2.0, noise_std=1.5, augmented_scale=0.4),
}
NOTE = "The shortcut is 0 at test; the best possible RMSE is 0.5. By lambda, and the logistic toy: lambdas.md."
COLUMNS = [
    Column("w1", "w1"),
    Column("w2", "w2"),
    Column("rmse", "test RMSE"),
    Column("distance", "distance to (1, 0)"),
]


@dataclass
class TheoryConfig(Settings):
    """Sizes, seeds and lambdas of this recipe.

    Raises:
        DataError: Too few rows, no seed or lambda, or a lambda that is not positive.

    Example:
        >>> TheoryConfig(output_dir="out").lambdas[-1]
        10000.0
    """

    output_dir: str = field(metadata={"help": "Folder of records, tables and plots."})
    seeds: list[Seed] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "Seeds of the samples."})
    rows: Annotated[int, Range(low=100)] = field(
        default=10_000, metadata={"help": "Rows of the linear toy, >= 100. Released: 10,000."}
    )
    logistic_rows: Annotated[int, Range(low=1_000)] = field(
        default=10_000, metadata={"help": "Rows of the logistic toy, >= 1,000; not stated in the paper."}
    )
    dair_lambda: Positive = field(
        default=100.0, metadata={"help": "Lambda of the linear toy in the comparison, pair units, > 0. Paper: 100."}
    )
    lambdas: list[Positive] = field(
        default_factory=lambda: [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0, 10_000.0],
        metadata={"help": "Lambdas of the linear toy in the table and the plots, pair units, each > 0."},
    )

    def check(self) -> None:
        """Refuse duplicates."""
        require_distinct("seeds", self.seeds)
        require_distinct("lambdas", [f"{value:g}" for value in self.lambdas])  # as printed in names of metrics


def solve_linear(run: Run) -> dict[str, float]:
    """Solve the linear toys with DA-ERM, or with DAIR for each lambda."""
    metrics: dict[str, float] = {}
    for prefix, toy in TOYS.items():
        rows = sample_linear(toy, run.args.rows, run.seed)
        if run.method == "da":
            plain_rows = sample_linear(toy, run.args.rows, run.seed, exact_moments=False)
            values = {**da_findings(toy, rows), "error_plain_rows": da_findings(toy, plain_rows)["error"]}
        else:
            values = dair_findings(toy, rows, run.args.dair_lambda)
            for value in run.args.lambdas:
                at_lambda = dair_findings(toy, rows, value)
                values |= {f"{name}_lambda_{value:g}": finding for name, finding in at_lambda.items()}
        metrics |= {prefix + name: value for name, value in values.items()}
    return metrics


def train_logistic_toy(run: Run) -> dict[str, Any]:
    """Train the logistic toy: iterations of Adam and accuracy at test for each lambda."""
    rows = sample_logistic(run.args.logistic_rows, run.seed)
    path = train_logistic(rows, list(PAPER_ITERATIONS))
    quantities = {
        "iterations_paper": PAPER_ITERATIONS.values(),
        "iterations": path.iterations(1e-7),
        "iterations_squared": path.iterations(10**-3.5),  # squared norm below 1e-7
        "accuracy": logistic_accuracy(path, rows),
    }
    return {
        f"{quantity}_lambda_{value:g}": finding
        for quantity, findings in quantities.items()
        for value, finding in zip(PAPER_ITERATIONS, findings, strict=True)
    }


def execute(run: Run, bar: tqdm) -> Result:
    """Execute one run."""
    start = time.perf_counter()
    metrics = solve_linear(run) | (train_logistic_toy(run) if run.method == "dair" else {})
    bar.update()
    return Result(metrics, {"all": time.perf_counter() - start})


def by_lambda(
    records: Sequence[Mapping[str, Any]], quantity: str, lambdas: Sequence[float], log: bool = False
) -> Series:
    """Return mean and standard deviation over the seeds of a metric, or of its decimal logarithm, for each lambda."""
    values = {x: [record["metrics"][f"{quantity}_lambda_{x:g}"] for record in records] for x in lambdas}
    return mean_series({x: np.log10(sample).tolist() if log else sample for x, sample in values.items()})


def draw(folder: Path, da: Mapping[str, Any], records: Sequence[Mapping[str, Any]], lambdas: Sequence[float]) -> None:
    """Draw the four plots, from the records of DAIR and one of DA-ERM; a point that is undefined is left out."""
    from matplotlib.figure import Figure  # optional

    weights = {f"{key}, DAIR": by_lambda(records, key, lambdas) for key in ("w1", "w2")}
    weights |= {f"{key}, DA-ERM": (lambdas, [da["metrics"][key]] * len(lambdas), None) for key in ("w1", "w2")}
    plot_curves(folder / "weights.png", "Linear toy: DAIR tends to (1, 0)", "lambda", "weight", weights, log_x=True)
    labels = {"mean R_sq at the optimum": "consistency", "bound": "bound"}
    bound = {label: by_lambda(records, key, lambdas, log=True) for label, key in labels.items()}
    plot_curves(folder / "bound.png", "Linear toy: R_sq and its bound", "lambda", "log10, squared units", bound, True)
    labels = {"norm < 1e-7": "iterations", "squared norm < 1e-7": "iterations_squared", "paper": "iterations_paper"}
    steps = {label: by_lambda(records, key, list(PAPER_ITERATIONS)) for label, key in labels.items()}
    reached = {label: curve for label, curve in steps.items() if curve[0]}
    plot_curves(folder / "iterations.png", "Logistic toy: Adam until convergence", "lambda", "steps", reached, True)
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    axes = figure.add_subplot(title="R_l1 - R_sq", xlabel="loss of the original", ylabel="loss of the partner")
    gap = consistency_gap(torch.linspace(0, 10, 101, dtype=torch.float64)).numpy()
    figure.colorbar(axes.imshow(gap, origin="lower", extent=(0, 10, 0, 10)))
    save_figure(figure, folder / "gap.png")


def lambda_table(
    records: Sequence[Mapping[str, Any]], title: str, lambdas: Sequence[float], quantities: Sequence[str]
) -> str:
    """Return a Markdown table of the means over the seeds for each lambda; "-" where one is undefined."""
    rows = []
    for value in lambdas:
        means = [by_lambda(records, quantity, [value])[1] for quantity in quantities]
        rows.append([f"{value:g}", *(f"{mean[0]:.4g}" if mean else "-" for mean in means)])
    return "\n".join([f"# {title}", "", *markdown_table(["lambda", *quantities], rows), ""])


def main() -> None:
    """Solve the toys for each unfinished seed; write tables and plots."""
    (config,) = parse_arguments([TheoryConfig])
    folder, lambdas = claim_output_folder(config), sorted(config.lambdas)
    runs = [
        Run(method, seed, replace(config, seeds=[seed], output_dir=str(folder / "runs" / f"{method}_seed{seed}")))
        for seed in config.seeds
        for method in ("da", "dair")
    ]
    with tqdm(total=len(runs), desc="Solving", unit="run") as bar:
        compare(runs, lambda run: execute(run, bar), folder, "Linear toy", COLUMNS, {}, {}, [NOTE])
    records = [read_json(folder / f"{run.name}.json") for run in runs]
    dair = [record for record in records if record["method"] == "dair"]
    draw(folder, records[0], dair, lambdas)
    tables = lambda_table(dair, "Linear toy", lambdas, ("w1", "w2", "rmse", "consistency", "bound"))
    quantities = ("iterations_paper", "iterations", "iterations_squared", "accuracy")
    tables += "\n" + lambda_table(dair, "Logistic toy", list(PAPER_ITERATIONS), quantities)
    write_text(folder / "lambdas.md", tables)
    print(f"\n{tables}")


if __name__ == "__main__":
    run_recipe(main)
