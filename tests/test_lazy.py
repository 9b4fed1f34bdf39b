"""`import dair_hf` is cheap, and makes every public module reachable."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import dair_hf
from tests.fixtures import tiny
from tests.fixtures.launching import forked

PROGRAM = """
import json, sys
import dair_hf
heavy = sorted({"torch", "transformers", "datasets", "numpy"}.intersection(sys.modules))
print(json.dumps([heavy, dair_hf.metrics.joint_goal_accuracy]))
"""
USE = """
import dair_hf
print(*dair_hf.dialog.demo.make_names("train"), dair_hf.DAIRConfig.__name__, dair_hf.augment.images.__name__)
"""


def test_public_names_and_submodules_are_imported_on_first_use() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=tiny.child_environment(), capture_output=True, text=True, check=True
    )
    heavy, path = json.loads(process.stdout)
    assert heavy == [] and path.endswith("dair_hf/metrics/joint_goal_accuracy")
    *slots, config, module = forked("-c", USE).stdout.split()
    assert sorted(slots) == ["attraction-name", "hotel-name", "restaurant-name"]
    assert (config, module) == ("DAIRConfig", "dair_hf.augment.images")


@pytest.mark.parametrize("package", [dair_hf, dair_hf.vision, dair_hf.metrics], ids=lambda package: package.__name__)
def test_other_names_raise_attribute_errors(package: object) -> None:
    name = package.__name__  # type: ignore[attr-defined]
    for missing in ("no_such_name", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module '{name}' has no attribute '{missing}'"):
            getattr(package, missing)
