"""Collect the hotel, restaurant, attraction and town names of Schema-Guided Dialogue in a JSON file.

    python data_scripts/prepare_sgd_entities.py --source sgd --output data/sgd_names.json
    python data_scripts/prepare_sgd_entities.py --download --source downloads/sgd --output data/sgd_names.json

The file holds split -> kind -> sorted names, for `--sgd_dir` of `recipes/multiwoz_simpletod.py` and for
`dair_hf.dialog.renaming.entities.load_bank`. A name belongs to the first split that has it, in any case or kind,
so that no name of a test was seen in training. Names taken from later splits are under `removed`. Downloads are
pinned and verified as in prepare_multiwoz.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from downloads import DIALOG_HOST, dialog_files
from sources import download_sources, parse_source, source_parser

from dair_hf.dialog.readers.sgd import KINDS, build_bank, read_entity_names
from dair_hf.dialog.renaming.entities import REMOVED
from dair_hf.errors import DataError
from dair_hf.io.commands import align, exit_status
from dair_hf.io.files import read_json, require_output_file, write_json

SPLITS = ("train", "dev", "test")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = source_parser(__doc__, "JSON file to write", DIALOG_HOST)
    parser.add_argument("--split", nargs="+", default=[*SPLITS], choices=SPLITS, help="default: all three")
    return parse_source(parser, argv)


def is_bank(content: Any) -> bool:
    """Return whether the content of a JSON file was written by this command, in any version."""
    if not isinstance(content, dict) or not content or not content.keys() <= {*SPLITS, REMOVED}:
        return False
    return all(
        isinstance(kinds, dict) and kinds.keys() == set(KINDS) for split, kinds in content.items() if split != REMOVED
    )


def prepare(args: argparse.Namespace) -> None:
    """Read, make the splits disjoint, write."""
    require_output_file(
        args.output,
        [args.source, *filter(None, [args.checksums])],
        args.overwrite,
        lambda path: is_bank(read_json(path)),
    )
    if args.download:
        download_sources(args, [file for split in args.split for file in dialog_files("sgd", split, args.host)])
    names = {split: read_entity_names(args.source, split) for split in args.split}
    bank, removed = build_bank(names)
    for split, kinds in bank.items():
        if not any(kinds.values()):
            raise DataError(f"{args.source}: split {split!r} has no name of its own; check that the splits differ")
    write_json(args.output, {**bank, REMOVED: removed})
    counts = [
        [split, *(len(kinds[kind]) for kind in KINDS), sum(map(len, removed[split].values()))]
        for split, kinds in bank.items()
    ]
    print("\n".join(align([["split", *KINDS, REMOVED], *counts])))
    print(f"written: {Path(args.output)}")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
