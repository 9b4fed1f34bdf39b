r"""Read VQA v2 and its edited images (IV-VQA, CV-VQA) and write them as rows and edits for `datasets.load_from_disk`.

    python data_scripts/prepare_vqa.py --source vqa --images coco/train2014 coco/val2014 \
        --edits cv_vqa --edited_images cv_vqa/Images --output data/cv_vqa
    python data_scripts/prepare_vqa.py --download --source downloads/vqa --images coco --output data/vqa

`--source` holds the questions and annotations of VQA v2 under their public names, as JSON or in the archives as they
are published; with `--download` they are fetched into it. The images are those of COCO, the edits those of their
authors: both are found in folders of yours. The rows hold the paths of the images, which must stay where they are.

The output is a folder that appears when it is whole: `rows` and, with `--edits`, `edits`, each with one data set per
split, and `report.json` with the id of every question and edit that was left out, and why. The test splits have no
public answers, and no edits. Checksums are printed and recorded in `checksums.json` on first use, and held against it
ever after.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from datasets import DatasetDict

from dair_hf.io.archives import download, with_checksums
from dair_hf.io.commands import exit_status
from dair_hf.io.files import read_json, write_json
from dair_hf.io.folders import atomic_folder
from dair_hf.io.prepared import save_splits
from dair_hf.vqa.readers.images import ImageFolder
from dair_hf.vqa.readers.reading import read_edits, read_vqa
from dair_hf.vqa.readers.records import splits_in
from dair_hf.vqa.readers.report import VQAReport, summary_table
from dair_hf.vqa.readers.sources import HOST, vqa_files


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="folder or archive; with --download where to keep the files")
    parser.add_argument("--images", nargs="+", required=True, help="folders of the images")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace what this command wrote there before")
    parser.add_argument(
        "--split", nargs="+", default=[], help="train, val, test, test-dev; default: all there are; download: train val"
    )
    parser.add_argument("--edits", help="folder or archive with questions and annotations of the edited images")
    parser.add_argument("--edited_images", nargs="+", help="folders of the edited images; needed by --edits")
    parser.add_argument("--strict", action="store_true", help="refuse the data where anything would be left out")
    parser.add_argument(
        "--skip_verify", action="store_true", help="do not decode the images; a damaged one then stops the training"
    )
    parser.add_argument("--download", action="store_true", help="fetch questions and annotations first")
    parser.add_argument("--checksums", help="with --download: JSON of file name -> SHA-256; nothing else is accepted")
    parser.add_argument("--host", default=HOST, help="with --download: a mirror with the same paths")
    args = parser.parse_args(argv)
    if bool(args.edits) != bool(args.edited_images):
        parser.error("--edits and --edited_images go together")
    if args.checksums and not args.download:
        parser.error("--checksums goes with --download")
    return args


def fetch(args: argparse.Namespace) -> None:
    """Download what the command line asks for, and say what was trusted on first use."""
    wanted = ["test" if split == "test-dev" else split for split in args.split or ("train", "val")]
    files = {file.name: file for split in wanted for file in vqa_files(split, args.host)}
    known = read_json(args.checksums) if args.checksums else None
    for name, sha256 in download(with_checksums(files.values(), known), args.source).items():
        print(f"trusted on first use: {sha256}  {name}")


def prepare(args: argparse.Namespace) -> None:
    """Read, verify, write."""
    sources = [args.source, *args.images, *([args.edits, *args.edited_images] if args.edits else [])]
    with atomic_folder(args.output, sources, args.overwrite) as folder:
        if args.download:
            fetch(args)
        reports = read_and_save(args, folder)
    for name, by_split in reports.items():
        if by_split:
            print(f"{name}\n{summary_table(by_split)}\n")
    print(f"written: {Path(args.output)}")


def read_and_save(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, VQAReport]]:
    """Save rows, edits and the report below `folder`; the reports of rows and edits, by split."""
    images = ImageFolder(*args.images)
    edited_images = ImageFolder(*args.edited_images) if args.edits else None
    data = {"rows": DatasetDict(), "edits": DatasetDict()}
    reports: dict[str, dict[str, VQAReport]] = {"rows": {}, "edits": {}}
    options = {"strict": args.strict, "verify": not args.skip_verify}
    for split in args.split or splits_in(args.source) or ["all"]:
        source = {**options, "split": None if split == "all" else split}
        answered = not split.startswith("test")
        rows, report = read_vqa(args.source, args.source if answered else None, images, **source)
        data["rows"][split], reports["rows"][split] = rows, report
        if edited_images is not None and answered:
            edits, report = read_edits(rows, args.edits, args.edits, edited_images, **source)
            data["edits"][split], reports["edits"][split] = edits, report
    save_splits(folder, "vqa", {name: splits for name, splits in data.items() if splits})
    found = {name: {split: report.to_dict() for split, report in by.items()} for name, by in reports.items()}
    write_json(folder / "report.json", found)
    return reports


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    return exit_status(lambda: prepare(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
