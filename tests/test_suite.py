"""The suite's own rules: which tests see the public data sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.fixtures.paths import ROOT

TESTS = """
import os
import pytest

def test_without_marker():
    os.environ["DAIR_DATA"]

def test_fixture_without_marker(real_data):
    pass

@pytest.mark.realdata
def test_marked(real_data):
    assert str(real_data) == os.environ["DAIR_DATA"] == "/some/where"

@pytest.mark.realdata
def test_marked_without_fixture():
    assert "DAIR_DATA" not in os.environ
"""


def test_the_marker_alone_decides_who_sees_the_data(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    # A worker of xdist has the environment of a process that has read conftest.py already.
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.conftest", "-n", "1", "--rootdir", tmp_path]
    environment = {**os.environ, "DAIR_DATA": "/some/where", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, tmp_path], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "KeyError: 'DAIR_DATA'" in done.stdout, done.stdout + done.stderr
    assert "a test that reads the public data sets needs the marker `realdata`" in done.stdout
    assert " 1 failed, 2 passed, " in done.stdout and " 1 error in " in done.stdout


@pytest.mark.parametrize("data", [None, "", "/some/where"])
def test_marked_tests_are_skipped_without_the_data(data: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAIR_DATA_OF_MARKED_TESTS", raising=False)
    if data is not None:
        monkeypatch.setenv("DAIR_DATA_OF_MARKED_TESTS", data)
    marked = SimpleNamespace(get_closest_marker=lambda name: name == "realdata")
    unmarked = SimpleNamespace(get_closest_marker=lambda name: None)
    conftest.pytest_runtest_setup(unmarked)  # type: ignore[arg-type]
    if data:
        conftest.pytest_runtest_setup(marked)  # type: ignore[arg-type]
    else:
        with pytest.raises(pytest.skip.Exception, match="DAIR_DATA"):
            conftest.pytest_runtest_setup(marked)  # type: ignore[arg-type]
