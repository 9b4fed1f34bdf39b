"""A download that fails, from a loopback server; those that succeed are tests of the commands."""

from __future__ import annotations

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from dair_hf.errors import DataError
from data_scripts.downloads import RemoteFile, download
from tests.data_scripts.scripts import serving


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", "10000")
        self.end_headers()
        self.wfile.write(bytes(500 if self.path == "/truncated" else 10000))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Handler) as host:
        yield host


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        (RemoteFile("x", "/a", "0" * 64), "checksum mismatch"),
        (RemoteFile("x", "/truncated"), "received 500 of 10000 bytes"),
        (RemoteFile("x", "/a", None, 77), "received 10000 of 77 bytes"),
        (RemoteFile("x", "/missing"), "download failed.*404"),
    ],
)
def test_failed_download_leaves_nothing(tmp_path: Path, server: str, remote: RemoteFile, message: str) -> None:
    folder = tmp_path / "down"
    with pytest.raises(DataError, match=message):
        download([RemoteFile(remote.name, server + remote.url, remote.sha256, remote.size)], folder)
    assert list(folder.iterdir()) == []
