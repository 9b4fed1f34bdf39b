"""Draw counting scenes: pictures with questions, and edits that remove things, in the formats of VQA v2 and its edits.

    python data_scripts/prepare_counting_scenes.py --output data/scenes_cv
    python data_scripts/prepare_counting_scenes.py --edit iv --sprites digits --sprite_folder mnist --output digits_iv

Shapes need no data; digits and objects are those of MNIST and CIFAR-10, from parquet files of yours. The output is a
folder that appears when it is whole, with the splits train, familiar (like train, but other scenes), validation and
test: each has `questions.json`, `annotations.json` and `images`, and `edits` with the same three. In train and familiar
two things give answers away, as often as `--co_occurrence` and `--language_prior` say; in the other two nothing does.
The same options draw the same files. What was written is read again for the table that is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dair_hf.experiments.arguments import SettingsParser
from dair_hf.io.commands import exit_status
from dair_hf.io.folders import require_output_folder
from dair_hf.vqa.readers.reading import read_edits, read_vqa
from dair_hf.vqa.scenes.files import SPLITS, SceneConfig, scene_files, write_scenes


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the lines of the description as they are."""


def parse(argv: list[str] | None) -> tuple[SceneConfig, str, bool]:
    """The command line: what to draw, where to, and whether scenes that are there may be replaced.

    Raises:
        DataError: A value out of range.
    """
    parser = SettingsParser([SceneConfig], description=__doc__, formatter_class=_HelpFormatter)
    parser.add_argument("--output", required=True, default=argparse.SUPPRESS, help="folder to write, new or empty")
    parser.add_argument("--overwrite", action="store_true", help="replace what this command wrote there before")
    config, other = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    return config, other.output, other.overwrite


def count(folder: Path, split: str) -> dict[str, Counter[str]]:
    """Read one split and count its questions by type and by answer, its edits, and the questions that have any.

    Raises:
        DataError: Not all of it can be used.
    """
    files = scene_files(folder, split)
    rows, _ = read_vqa(files.questions, files.annotations, files.images, strict=True)
    edits, _ = read_edits(rows, files.edits, files.edits, files.edits / "images", strict=True)
    return {
        "questions": Counter(rows["question_type"][:]),
        "answers": Counter(answers[0] for answers in rows["answers"][:]),
        "edits": Counter(map(str, edits["question_id"][:])),
    }


def table(counts: Mapping[str, Mapping[str, Counter[str]]]) -> str:
    """What `count` found, one column a split."""
    lines = [["", *counts]]
    for what in ("questions", "answers"):
        found = [split[what] for split in counts.values()]
        lines.append([what, *(str(counter.total()) for counter in found)])
        # Numbers by their size, then words.
        for name in sorted(set().union(*found), key=lambda name: (int(name) if name.isdigit() else sys.maxsize, name)):
            lines.append([f"  {name}", *(str(counter[name]) for counter in found)])
    lines.append(["edits", *(str(split["edits"].total()) for split in counts.values())])
    shares = [100 * len(split["edits"]) / split["questions"].total() for split in counts.values()]
    lines.append(["questions with an edit", *(f"{share:.1f} %" for share in shares)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{line[0]:<{widths[0]}}"
        + "".join(f"{cell:>{2 + width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    )


def prepare(config: SceneConfig, output: str, overwrite: bool) -> None:
    """Draw, write, read again, count."""
    require_output_folder(output, overwrite=overwrite)
    folder = write_scenes(config, output, overwrite=True)
    print(table({split: count(folder, split) for split in SPLITS}))
    print(f"written: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    return exit_status(lambda: prepare(*parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
