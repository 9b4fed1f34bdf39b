"""Settings of every test: no network, no telemetry, no cache outside the test's own folders."""

from __future__ import annotations

import atexit
import gc
import logging
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

# The public data sets are seen by the tests marked `realdata` and by nobody else: a test that forgets the marker fails
# also where the variable is set. The second name is for the worker processes of xdist.
_DATA, _ASIDE = "DAIR_DATA", "DAIR_DATA_OF_MARKED_TESTS"
if _DATA in os.environ:
    os.environ[_ASIDE] = os.environ.pop(_DATA)

pytest_plugins = ["tests.fixtures.hub_server"]


@pytest.fixture(autouse=True)
def _levels_of_logs() -> None:
    """Set back what a recipe, which owns its process, set for the tests before."""
    logging.getLogger("dair_hf").setLevel(logging.NOTSET)
    logging.getLogger("transformers").setLevel(logging.WARNING)


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: accelerate starts a full one in every training."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need the public data sets where these are not at hand."""
    if item.get_closest_marker("realdata") and not os.environ.get(_ASIDE):
        pytest.skip(f"{_DATA} is not set: no public data sets at hand")


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
def real_data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the public data sets, in the environment as well; for tests marked `realdata`."""
    if request.node.get_closest_marker("realdata") is None:
        pytest.fail("a test that reads the public data sets needs the marker `realdata`")
    monkeypatch.setenv(_DATA, os.environ[_ASIDE])
    return Path(os.environ[_ASIDE])
