"""Running a command of `data_scripts/` in this process, since importing the libraries again takes seconds."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from typing import NamedTuple
from unittest import mock

from tests.fixtures.paths import ROOT

FOLDER = ROOT / "data_scripts"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_script(name: str, *arguments: object) -> Done:
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "path", [str(FOLDER), *sys.path]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = runpy.run_path(str(FOLDER / name), run_name=name)["main"]([str(argument) for argument in arguments])
    return Done(code, stdout.getvalue(), stderr.getvalue())
