"""Read MultiWOZ 2.1 or 2.2 or WOZ 2.0 and save it as rows.

    python data_scripts/prepare_multiwoz.py --source multiwoz21 --split dev test --output data/multiwoz21
    python data_scripts/prepare_multiwoz.py --download --version 2.2 --source downloads/mwz22 --output data/mwz22
    python data_scripts/prepare_multiwoz.py --download --version woz2 --source downloads/woz2 --output data/woz2

The output is a folder with one data set per split, for `--data_dir` of `recipes/multiwoz_simpletod.py` and for
`datasets.load_from_disk`, and `report.json` with everything that was skipped or normalized. It appears only when it is
complete.

`--download` fetches a pinned revision of the public repositories. Files with a known checksum are verified. The
checksums of the others are printed and stored in `checksums.json` on first use, and verified on later runs. To verify
every file, pass the `checksums.json` of a download that you trust as `--checksums`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from datasets import Dataset, DatasetDict
from downloads import DIALOG_HOST, dialog_files
from sources import download_sources, parse_source, source_parser

from dair_hf.dialog.readers.dialogues import ReadReport, summary_table
from dair_hf.dialog.readers.files import SPLITS
from dair_hf.dialog.readers.multiwoz import read_multiwoz, splits_in
from dair_hf.dialog.readers.woz2 import read_woz2, woz2_files
from dair_hf.io.archives import Source
from dair_hf.io.commands import exit_status
from dair_hf.io.files import atomic_folder, write_json
from dair_hf.io.prepared import save_splits


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = source_parser(__doc__, "folder to write", DIALOG_HOST)
    parser.add_argument("--split", nargs="+", default=[], help="train, dev (or val), test; default: all that exist")
    parser.add_argument(
        "--version", choices=("2.1", "2.2", "woz2"), help="woz2: WOZ 2.0; default: detected; with --download 2.2"
    )
    return parse_source(parser, argv)


def prepare(args: argparse.Namespace) -> None:
    """Read and write."""
    data, reports = DatasetDict(), {}
    with atomic_folder(args.output, [args.source], args.overwrite) as folder:
        if args.download:
            _download(args)
        source = Source(args.source)
        woz2 = woz2_files(source) if args.version in (None, "woz2") else {}
        splits = list(dict.fromkeys(woz2.values())) if woz2 else splits_in(source)
        for split in args.split or splits or ["all"]:
            rows, reports[split] = _read(args, None if split == "all" else split, bool(woz2))
            data[split] = rows
        save_splits(folder, "woz2" if woz2 else "multiwoz", {"": data})
        write_json(folder / "report.json", {split: dataclasses.asdict(report) for split, report in reports.items()})
    print(summary_table(reports))
    print(f"written: {Path(args.output)}")


def _download(args: argparse.Namespace) -> None:
    version = args.version or "2.2"
    for split in [SPLITS.get(split, split) for split in args.split] or [None]:
        download_sources(args, dialog_files(version, split, args.host))


def _read(args: argparse.Namespace, split: str | None, is_woz2: bool) -> tuple[Dataset, ReadReport]:
    if is_woz2 or args.version == "woz2":
        return read_woz2(args.source, split)
    return read_multiwoz(args.source, split)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
