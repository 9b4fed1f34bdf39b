"""Run commands of `data_scripts/` in this process, with a local server in place of the public ones."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from data_scripts.downloads import RemoteFile
from tests.fixtures.paths import ROOT

FOLDER = ROOT / "data_scripts"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_script(name: str, *arguments: object) -> Done:
    """Run a command; importing the libraries again in a new process would take seconds."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "path", [str(FOLDER), *sys.path]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = runpy.run_path(str(FOLDER / name), run_name=name)["main"]([str(argument) for argument in arguments])
    return Done(code, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP and yield the host."""
    with serving(functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))) as host:
        yield host


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[str]:
    """Run a server and yield its host."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def mirror_path(folder: Path, file: RemoteFile) -> Path:
    """Return the place of a file of the host "http://mirror" in a served folder, and create its parents."""
    path = folder / file.url.removeprefix("http://mirror/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
