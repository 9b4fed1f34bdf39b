r"""Read VQA v2 and its edited images (IV-VQA, CV-VQA), validate them, and save them as rows and edits.

    python data_scripts/prepare_vqa.py --source vqa --images coco/train2014 coco/val2014 \
        --edits cv_vqa --edited_images cv_vqa/Images --output data/cv_vqa
    python data_scripts/prepare_vqa.py --download --source downloads/vqa --images coco --output data/vqa

`--source` holds the questions and annotations of VQA v2 under their public names, as JSON or in the published archives;
`--download` fetches them. Images (COCO) and edits (from the authors of IV-VQA and CV-VQA) are read from your folders.
The rows hold the absolute paths of the images, so the images must stay in place.

The output is a folder for `--questions` of `recipes/vqa_saaa.py`: `rows` and, with `--edits`, `edits`, each with one
data set per split for `datasets.load_from_disk`, and `report.json` with the id of every question and edit that was left
out, and why. It appears only when it is complete. The test splits have no public answers and no edits. Checksums are
printed and stored in `checksums.json` on first use, and verified on later runs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from downloads import VQA_HOST, vqa_files
from sources import download_sources, parse_source, source_parser

from dair_hf.io.commands import exit_status
from dair_hf.io.files import atomic_folder, write_json
from dair_hf.io.prepared import save_splits
from dair_hf.vqa.readers.images import ImageFolder
from dair_hf.vqa.readers.reading import VQAReport, read_edits, read_vqa, report_table
from dair_hf.vqa.readers.records import vqa_splits


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = source_parser(__doc__, "folder to write", VQA_HOST)
    parser.add_argument("--images", nargs="+", required=True, help="folders of the images")
    parser.add_argument(
        "--split",
        nargs="+",
        default=[],
        help="train, val, test, test-dev; default: all that exist, with --download train and val",
    )
    parser.add_argument("--edits", help="folder or archive with questions and annotations of the edited images")
    parser.add_argument("--edited_images", nargs="+", help="folders of the edited images; required by --edits")
    parser.add_argument("--strict", action="store_true", help="refuse data that cannot be used completely")
    parser.add_argument(
        "--skip_verify", action="store_true", help="do not decode the images; a damaged image will stop training"
    )
    args = parse_source(parser, argv)
    if bool(args.edits) != bool(args.edited_images):
        parser.error("--edits and --edited_images go together")
    return args


def prepare(args: argparse.Namespace) -> None:
    """Read, validate, write."""
    sources = [args.source, *args.images, *([args.edits, *args.edited_images] if args.edits else [])]
    with atomic_folder(args.output, sources, args.overwrite) as folder:
        if args.download:
            splits = ["test" if split == "test-dev" else split for split in args.split or ("train", "val")]
            download_sources(args, [file for split in splits for file in vqa_files(split, args.host)])
        reports = read_and_save(args, folder)
    for name, by_split in reports.items():
        if by_split:
            print(f"{name}\n{report_table(by_split)}\n")
    print(f"written: {Path(args.output)}")


def read_and_save(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, VQAReport]]:
    """Save rows, edits and reports; return the reports of "rows" and "edits" by split."""
    images = ImageFolder(*args.images)
    edited_images = ImageFolder(*args.edited_images) if args.edits else None
    data = {"rows": DatasetDict(), "edits": DatasetDict()}
    reports: dict[str, dict[str, VQAReport]] = {"rows": {}, "edits": {}}
    for split in args.split or vqa_splits(args.source) or ["all"]:
        options: dict[str, Any] = {"strict": args.strict, "verify": not args.skip_verify}
        options["split"] = None if split == "all" else split
        has_answers = not split.startswith("test")
        annotations = args.source if has_answers else None
        data["rows"][split], reports["rows"][split] = read_vqa(args.source, annotations, images, **options)
        if edited_images is not None and has_answers:
            data["edits"][split], reports["edits"][split] = read_edits(
                data["rows"][split], args.edits, args.edits, edited_images, **options
            )
    save_splits(folder, "vqa", {name: splits for name, splits in data.items() if splits})
    write_json(
        folder / "report.json",
        {name: {split: asdict(report) for split, report in by_split.items()} for name, by_split in reports.items()},
    )
    return reports


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
