"""What holds for every test: no network, no telemetry, no cache outside the test's own folders."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# These libraries read their settings once, at import: so before the first of them is imported. HF_HOME is one folder
# for the whole run, because the modules that `evaluate` loads are found through a single entry of sys.path.
_HF_HOME = tempfile.mkdtemp(prefix="dair_hf_tests_")
atexit.register(shutil.rmtree, _HF_HOME, ignore_errors=True)
os.environ.update(
    HF_HOME=_HF_HOME,
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_EVALUATE_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_UPDATE_CHECK="1",
    DO_NOT_TRACK="1",
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="agg",
)
for _name in ("HF_TOKEN", "HF_ENDPOINT", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_MODULES_CACHE"):
    os.environ.pop(_name, None)

pytest_plugins = ["tests.fixtures.hub_server"]


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test data caches of its own, in this process and in those it starts."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets_cache"))
    monkeypatch.setenv("HF_METRICS_CACHE", str(tmp_path / "metrics_cache"))
    # Not imported for this alone (seconds): whoever imports one of them later reads the variables above.
    if "datasets" in sys.modules:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets_cache")
    if "evaluate" in sys.modules:
        monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", tmp_path / "metrics_cache")


@pytest.fixture
def real_data() -> Path:
    """The folder of the public data sets; tests that use it carry the marker `realdata`."""
    folder = os.environ.get("DAIR_DATA")
    if not folder:
        pytest.skip("DAIR_DATA is not set: no public data sets at hand")
    return Path(folder)
