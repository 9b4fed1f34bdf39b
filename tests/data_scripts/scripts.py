"""Runs a script of `data_scripts/` in this process: importing the libraries anew for each run takes seconds."""

from __future__ import annotations

import contextlib
import io
import runpy
from typing import NamedTuple

from tests.fixtures.paths import ROOT


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_script(name: str, *arguments: object) -> Done:
    stdout, stderr = io.StringIO(), io.StringIO()
    main = runpy.run_path(str(ROOT / "data_scripts" / name), run_name=name)["main"]
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([str(argument) for argument in arguments])
    return Done(code, stdout.getvalue(), stderr.getvalue())
