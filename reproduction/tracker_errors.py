"""Errors of dialog state trackers by turn and by slot, from the predictions that `recipes/multiwoz_simpletod.py` keeps.

    python -m reproduction.tracker_errors outputs/multiwoz21_small --output results/multiwoz21_errors

Each run has one JSON file with the counts of originals and first partners; `reproduction.ledger` makes the table. As in
the accuracy of the paper, a turn without a partner counts as two identical views. A slot of a turn is missed (only gold
fills it), extra (only the prediction does) or wrong. It is new if the turn before had this slot right or is none. Other
errors are carried over, as this tracker reads its own previous state.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dair_hf.dialog.rows import state_from_row
from dair_hf.errors import DataError
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, write_json
from dair_hf.io.records import PREDICTIONS_FILE, read_predictions
from dair_hf.metrics.state.belief_text import read_belief
from dair_hf.metrics.state.conventions import resolve_convention
from dair_hf.metrics.state.matching import _filled_slots, compare_states
from reproduction.records import markdown_table

FOLDER = "multiwoz21_errors"
VIEWS = {"original": "known names", "augmented": "unseen names"}
KINDS = ("missed", "extra", "wrong")
SLOTS = 12  # with the most errors, in the table
# Column -> first and last number of its turns.
TURNS = {"turn 1": (0, 0), "2": (1, 1), "3": (2, 2), "4 to 5": (3, 4), "6 to 9": (5, 8), "later": (9, math.inf)}


def errors_of(predictions: Path, preset: str) -> dict[str, dict[str, Any]]:
    """Return the counts of each view of a predictions file.

    `turns` and `right` have one number for each number of a turn. `after_right` counts the turns after a correct turn,
    and how many of them are right. `slots` has the errors of each slot: missed, extra, wrong, and how many of all are
    new.
    """
    counts: dict[str, dict[str, Any]] = {
        view: {"turns": Counter(), "right": Counter(), "after_right": [0, 0], "slots": defaultdict(Counter)}
        for view in VIEWS
    }
    for view, dialogue in _dialogues(predictions, preset):
        found, before = counts[view], None
        for turn, errors in dialogue:
            found["turns"][turn] += 1
            found["right"][turn] += not errors
            if before == {}:
                found["after_right"][0] += 1
                found["after_right"][1] += not errors
            for slot, kind in errors.items():
                found["slots"][slot].update([kind] if slot in (before or {}) else [kind, "new"])
            before = errors
    return counts


def _dialogues(path: Path, preset: str) -> Iterator[tuple[str, list[tuple[int, dict[str, str]]]]]:
    """Yield view, and number and errors (slot -> kind) of each turn, for each dialogue."""
    _, convention = resolve_convention(preset)
    found: dict[str, dict[str, dict[int, dict[str, str]]]] = defaultdict(lambda: {view: {} for view in VIEWS})
    for row in read_predictions(path):
        name, _, turn = str(row["row_id"]).rpartition("/")
        belief = read_belief(row["prediction"])
        compared = compare_states(belief, state_from_row(row["reference"]), convention)
        wrong = [slot for slot, score in compared.scores.items() if score < 1]
        predicted = _filled_slots(belief.state, convention, is_gold=False)
        errors = {slot: "wrong" if slot in predicted else "missed" for slot in wrong}
        errors |= {slot: "extra" for slot in wrong if slot not in compared.gold_slots}
        found[name].setdefault(row["variant"], {})[int(turn)] = errors
    for views in found.values():
        for view in VIEWS:
            yield view, sorted((views["original"] | views[view]).items())


def errors_table(results: Path) -> str:
    """Return the tables of errors in Markdown, by turn and by slot: means over the seeds of a method.

    Raises:
        FileNotFoundError: No errors are stored.
    """
    found = [read_json(path) for path in sorted((results / FOLDER).glob("*_seed*.json"))]
    if not found:
        raise FileNotFoundError(results / FOLDER)
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in found:
        by_method[run["method"]].append(run)
    header = ["names", "method", "seeds", *TURNS, "after a right turn", *KINDS, "new"]
    lines: list[Sequence[object]] = []
    for view, title in VIEWS.items():
        for method, runs in by_method.items():
            rows = [_row(run[view]) for run in runs]
            means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
            digits = [3] * (len(TURNS) + 1) + [1] * (len(KINDS) + 1)
            cells = [f"{mean:.{digit}f}" for mean, digit in zip(means, digits, strict=True)]
            lines.append([title, method, len(runs), *cells])
    rates = {method: _slot_errors([run["original"] for run in runs]) for method, runs in by_method.items()}
    total = sum(rates.values(), Counter[str]())
    slots = [
        [slot, *(f"{of_method[slot]:.1f}" for of_method in rates.values())] for slot, _ in total.most_common(SLOTS)
    ]
    by_slot = markdown_table(["errors in 100 turns, known names", *by_method], slots)
    return "\n".join([*markdown_table(header, lines), "", *by_slot])


def _slot_errors(runs: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return the errors of each slot in 100 turns, mean over runs."""
    rates = Counter[str]()
    for run in runs:
        turns = len(runs) * sum(run["turns"].values())
        for slot, kinds in run["slots"].items():
            rates[slot] += 100 * sum(kinds.get(kind, 0) for kind in KINDS) / turns
    return rates


def _row(errors: dict[str, Any]) -> list[float]:
    """Return the JGA by number of the turn and behind a right turn, then errors of slots in 100 turns."""
    turns = sum(errors["turns"].values())
    by_turn = []
    for first, last in TURNS.values():
        numbers = [number for number in errors["turns"] if first <= int(number) <= last]
        right, of = (sum(errors[key].get(number, 0) for number in numbers) for key in ("right", "turns"))
        by_turn.append(right / of if of else math.nan)
    total = Counter[str]()
    for slot in errors["slots"].values():
        total.update(slot)
    after, right = errors["after_right"]
    return [*by_turn, right / after if after else math.nan, *(100 * total[kind] / turns for kind in (*KINDS, "new"))]


def main(argv: Sequence[str] | None = None) -> None:
    """Count the errors of all finished runs of a folder."""
    parser = argparse.ArgumentParser(description="Count the errors of dialog state trackers by turn and by slot.")
    parser.add_argument("folder", type=Path, help="output folder of multiwoz_simpletod.py")
    parser.add_argument("--output", type=Path, required=True, help="folder for one JSON file a run")
    options = parser.parse_args(argv)
    paths = sorted(options.folder.glob("*_seed*.json"))
    if not paths:
        raise DataError(f"{options.folder}: holds no record of a run")
    for path in paths:
        record = read_json(path)
        predictions = options.folder / "runs" / record["name"] / PREDICTIONS_FILE
        errors = errors_of(predictions, record["config"]["data"]["preset"])
        write_json(options.output / path.name, {"method": record["method"], **errors})
        print(f"Written: {options.output / path.name}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
