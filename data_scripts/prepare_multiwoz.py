"""Read MultiWOZ 2.1 or 2.2 and write it as validated rows, ready for `datasets.load_from_disk`.

    python data_scripts/prepare_multiwoz.py --source multiwoz21 --split dev test --output data/multiwoz21
    python data_scripts/prepare_multiwoz.py --download --version 2.2 --source downloads/mwz22 --output data/mwz22

The output is a folder with one data set per split and `report.json`; it appears when it is whole. With `--download`
the files come from the public repositories at a pinned revision into the folder `--source`. The checksums of some
files are known; the others are printed and recorded in `checksums.json` on first use, and held against it ever after.
To have every file verified, pass the `checksums.json` of a download that you trust as `--checksums`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from datasets import DatasetDict

from dair_hf.dialog.readers.multiwoz import read_multiwoz, splits_in
from dair_hf.dialog.readers.report import summary_table
from dair_hf.dialog.readers.sources import HOST, multiwoz_files
from dair_hf.dialog.text.rows import validate_rows
from dair_hf.io.archives import Source, download, with_checksums
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, write_json
from dair_hf.io.folders import atomic_folder
from dair_hf.io.prepared import save_splits


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", required=True, help="folder, archive or file; with --download where to keep the files"
    )
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace what this command wrote there before")
    parser.add_argument("--split", nargs="+", default=[], help="train, dev (or val), test; default: all there are")
    parser.add_argument("--version", choices=("2.1", "2.2"), help="default: told by the files; with --download 2.2")
    parser.add_argument("--download", action="store_true", help="fetch the files first")
    parser.add_argument("--checksums", help="with --download: JSON of file name -> SHA-256; nothing else is accepted")
    parser.add_argument("--host", default=HOST, help="with --download: a mirror with the same paths")
    args = parser.parse_args(argv)
    if args.checksums and not args.download:
        parser.error("--checksums goes with --download")
    return args


def fetch(args: argparse.Namespace) -> None:
    """Download what the command line asks for, and say what was trusted on first use."""
    wanted = [{"val": "dev", "validation": "dev"}.get(split, split) for split in args.split] or [None]
    files = {file.name: file for split in wanted for file in multiwoz_files(args.version or "2.2", split, args.host)}
    known = read_json(args.checksums) if args.checksums else None
    trusted = download(with_checksums(files.values(), known), args.source)
    for name, sha256 in trusted.items():
        print(f"trusted on first use: {sha256}  {name}")


def prepare(args: argparse.Namespace) -> None:
    """Read, validate, write."""
    data, reports = DatasetDict(), {}
    with atomic_folder(args.output, [args.source], args.overwrite) as folder:
        if args.download:
            fetch(args)
        for split in args.split or splits_in(Source(args.source)) or ["all"]:
            rows, reports[split] = read_multiwoz(args.source, None if split == "all" else split, args.version)
            validate_rows(rows, f"{args.source}, split {split}")
            data[split] = rows
        save_splits(folder, "multiwoz", {"": data})
        write_json(folder / "report.json", {split: dataclasses.asdict(report) for split, report in reports.items()})
    print(summary_table(reports))
    print(f"written: {Path(args.output)}")


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
