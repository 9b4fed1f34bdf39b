"""Collect the hotel, restaurant, attraction and town names of Schema-Guided Dialogue into a bank for swapping.

    python data_scripts/prepare_sgd_entities.py --source sgd --output data/sgd_names.json
    python data_scripts/prepare_sgd_entities.py --download --source downloads/sgd --output data/sgd_names.json

The bank is JSON: split -> kind -> sorted names. A name that an earlier split has, whatever its case or kind there, is
removed from the later ones, so that names swapped in for testing were never swapped in for training. Downloads are
pinned and recorded as in prepare_multiwoz.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dair_hf.dialog.readers.sgd import KINDS, SPLITS, build_bank, read_entity_names
from dair_hf.dialog.readers.sources import HOST, sgd_files
from dair_hf.errors import DataError
from dair_hf.io.archives import download, with_checksums
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, require_output_file, write_json


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="folder or archive; with --download where to keep the files")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file, where it is there already")
    parser.add_argument("--split", nargs="+", default=list(SPLITS), choices=SPLITS, help="default: all three")
    parser.add_argument("--download", action="store_true", help="fetch the files first")
    parser.add_argument("--checksums", help="with --download: JSON of file name -> SHA-256; nothing else is accepted")
    parser.add_argument("--host", default=HOST, help="with --download: a mirror with the same paths")
    args = parser.parse_args(argv)
    if args.checksums and not args.download:
        parser.error("--checksums goes with --download")
    return args


def prepare(args: argparse.Namespace) -> None:
    """Read, make the splits disjoint, write."""
    require_output_file(args.output, [args.source, *filter(None, [args.checksums])], args.overwrite)
    if args.download:
        files = [file for split in args.split for file in sgd_files(split, args.host)]
        known = read_json(args.checksums) if args.checksums else None
        for name, sha256 in download(with_checksums(files, known), args.source).items():
            print(f"trusted on first use: {sha256}  {name}")
    names = {split: read_entity_names(args.source, split) for split in args.split}
    bank, counts = build_bank(names)
    for split, kinds in bank.items():
        if not any(kinds.values()):
            raise DataError(f"{args.source}: split {split!r} has no name of its own; check that the splits differ")
    removed = {
        split: {kind: sorted(set(names[split][kind]) - set(unique)) for kind, unique in kinds.items()}
        for split, kinds in bank.items()
    }
    write_json(args.output, {**bank, "removed": removed})
    print(f"{'split':<8}" + "".join(f"{kind:>12}" for kind in KINDS) + f"{'removed':>12}")
    for split, kinds in bank.items():
        print(f"{split:<8}" + "".join(f"{len(kinds[kind]):>12}" for kind in KINDS) + f"{counts[split]:>12}")
    print(f"written: {Path(args.output)}")


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
