"""The code of the documentation runs as it stands, page by page, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> str:
    return "\n\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, script.name], cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    code = code_of(page)
    assert code, f"{page.name} holds no code"
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_readme_example_runs_on_a_local_model(tmp_path: Path) -> None:
    """The README loads a model of the Hub; here the same code gets a folder with a tiny one."""
    from tests.fixtures.readme_model import save_tiny_t5

    code = code_of(ROOT / "README.md")
    assert code.count('"google-t5/t5-small"') == 1
    save_tiny_t5(tmp_path / "tiny")
    done = run(code.replace("google-t5/t5-small", str(tmp_path / "tiny")), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'cm'" in done.stdout


def test_a_broken_page_is_noticed(tmp_path: Path) -> None:
    assert run("import dair_hf\ndair_hf.no_such_name", tmp_path).returncode != 0
