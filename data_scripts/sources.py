"""Options and downloads shared by the commands that read public data."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from downloads import RemoteFile, download

from dair_hf.errors import DataError, explained
from dair_hf.io.files import read_json
from dair_hf.io.prepared import is_prepared


def source_parser(description: str | None, output: str, host: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands share.

    Args:
        description: Text of `--help`.
        output: Help of `--output`.
        host: Server to download from.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", required=True, help="folder, archive or file; with --download, the folder to store downloads in"
    )
    parser.add_argument("--output", required=True, help=output)
    parser.add_argument("--overwrite", action="store_true", help="replace what this command wrote there before")
    parser.add_argument("--download", action="store_true", help="download the files first")
    parser.add_argument("--checksums", help="with --download: JSON of file name -> SHA-256; refuse all other files")
    parser.add_argument("--host", default=host, help="with --download: a mirror with the same paths")
    return parser


def parse_source(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        DataError: The source is a folder that a command wrote.
    """
    args = parser.parse_args(argv)
    if args.checksums and not args.download:
        parser.error("--checksums goes with --download")
    if is_prepared(args.source):
        raise DataError(f"{args.source}: is already prepared; give it to a recipe, or name the raw files as --source")
    return args


def download_sources(args: argparse.Namespace, files: Iterable[RemoteFile]) -> None:
    """Download files into `--source`; print the checksum of every file that is trusted on first use."""
    known = read_json(args.checksums) if args.checksums else None
    unique = {file.name: file for file in files}
    for name, sha256 in download(_with_checksums(unique.values(), known), args.source).items():
        print(f"trusted on first use: {sha256}  {name}")


def _with_checksums(files: Iterable[RemoteFile], checksums: Any) -> list[RemoteFile]:
    """Return the files with checksums provided by the user; unchanged for None."""
    if checksums is None:
        return list(files)
    with explained("checksums: expected name -> SHA-256 of every file", KeyError, TypeError, AttributeError):
        return [replace(remote, sha256=checksums[remote.name].lower()) for remote in files]
