"""Bad settings of experiments: each is refused, and the message names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dair_hf.errors import DataError
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import ComparisonConfig
from dair_hf.experiments.search import SearchConfig
from tests.experiments.test_arguments import TYPES, write_settings

BAD_SETTINGS: list[tuple[Any, dict[str, Any]]] = [
    (ComparisonConfig, {"methods": ["erm", "mixup"]}),
    (ComparisonConfig, {"methods": ["da", "da"]}),
    (ComparisonConfig, {"lambdas": {"q": 1.0}}),
    (ComparisonConfig, {"lambdas": {"erm": 3.0, "kl": 1.0}}),
    (ComparisonConfig, {"lambdas": {"kl": 1.0}, "lambda_sweep": [1.0]}),
    (ComparisonConfig, {"seeds": [1, 1]}),
    (ComparisonConfig, {"lambda_sweep": [1.0, 1.0]}),
    (SearchConfig, {"search_lambdas": [1.0, 1.00000001]}),  # one file name
    (SearchConfig, {"search_lambdas": ["auto", 1]}),
    (SearchConfig, {"search_seeds": [3, 3]}),
]


@pytest.mark.parametrize(("kind", "settings"), BAD_SETTINGS)
def test_bad_settings_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(settings))):
        kind(**settings)


BAD_FILES: list[tuple[str, str]] = [
    ("step: 3\n", "'step'"),
    ("1: 3\n", "field 1"),
    ("steps: 1\nsteps: 2\n", "line 2, column 1"),
    ("place: !!python/object:os.system x\n", "line 1, column 8"),
    ("steps: many\n", "steps"),
    ("kind: z\n", "kind"),
    ("weights: 3\n", "weights"),
    # Values that would otherwise be read as text.
    ("place: [a, b]\n", "place"),
    ("steps:\n", "steps"),
    ("place: no\n", "place"),
    ("weights: {bad: 1}\n", "weights: bad is refused"),
]


@pytest.mark.parametrize(("text", "named"), BAD_FILES, ids=[repr(text)[:24] for text, _ in BAD_FILES])
def test_bad_files_are_refused(tmp_path: Path, text: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=named) as refused:
        parse_arguments(TYPES, ["--config", write_settings(tmp_path, text)])
    assert ("settings.yaml" in str(refused.value)) == ("bad" not in text)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--config nowhere.yaml", "nowhere.yaml"),
        ("--stepz 3", "--stepz.*'steps'"),
        ("--step 3", "--step"),  # not an abbreviation
        ("demo.yaml --steps 4", "demo.yaml"),
        ("--steps 3 4", "option 4"),
        ("--steps null", "--steps"),
        ("--weights [1]", "expected a mapping"),
    ],
)
def test_bad_command_lines_are_refused(options: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        parse_arguments(TYPES, options.split())
