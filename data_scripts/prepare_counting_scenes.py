"""Draw counting scenes: images with questions, and edits that remove objects, in the formats of VQA v2 and its edits.

    python data_scripts/prepare_counting_scenes.py --output data/scenes_cv
    python data_scripts/prepare_counting_scenes.py --edit iv --output data/scenes_iv

The output is a folder for `--scene_folder` of `recipes/vqa_saaa.py`, which draws the same scenes if it is not given. It
appears only when it is complete, and the same options draw the same files.

The splits are train, familiar (other scenes of the same kind), validation and test. Each has `questions.json`,
`annotations.json` and `images`, and `edits` with the same three. In train and familiar, answers can be guessed in two
ways; in the other two splits they cannot. The command reads the files again and prints a table of their content.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from dair_hf.experiments.arguments import SettingsParser
from dair_hf.io.commands import align, exit_status
from dair_hf.io.files import require_output_folder
from dair_hf.vqa.scenes.files import SPLITS, SceneConfig, read_scenes, write_scenes


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that shows defaults and keeps the lines of the description."""


def parse(argv: list[str] | None) -> tuple[SceneConfig, str, bool]:
    """Return the scene settings, the output folder, and whether it may be replaced."""
    parser = SettingsParser([SceneConfig], description=__doc__, formatter_class=_HelpFormatter)
    parser.add_argument("--output", required=True, default=argparse.SUPPRESS, help="folder to write, new or empty")
    parser.add_argument("--overwrite", action="store_true", help="replace what this command wrote there before")
    config, other = parser.parse_settings(sys.argv[1:] if argv is None else argv)
    return config, other.output, other.overwrite


def count(folder: Path, split: str) -> dict[str, Counter[str]]:
    """Count the questions of one split by type and by answer, and its edits by question."""
    (rows, _), (edits, _) = read_scenes(folder, split)
    return {
        "questions": Counter(rows["question_type"][:]),
        "answers": Counter(answers[0] for answers in rows["answers"][:]),
        "edits": Counter(map(str, edits["question_id"][:])),
    }


def table(counts: Mapping[str, Mapping[str, Counter[str]]]) -> str:
    """Format the results of `count`, one column per split."""
    lines = [["", *counts]]
    for heading in ("questions", "answers"):
        counters = [split[heading] for split in counts.values()]
        lines.append([heading, *(str(counter.total()) for counter in counters)])
        # Numbers in numerical order, then words.
        names = sorted(set().union(*counters), key=lambda name: (int(name) if name.isdigit() else sys.maxsize, name))
        lines += [[f"  {name}", *(str(counter[name]) for counter in counters)] for name in names]
    lines.append(["edits", *(str(split["edits"].total()) for split in counts.values())])
    shares = [100 * len(split["edits"]) / split["questions"].total() for split in counts.values()]
    lines.append(["questions with an edit", *(f"{share:.1f} %" for share in shares)])
    return "\n".join(align(lines))


def prepare(config: SceneConfig, output: str, overwrite: bool) -> None:
    """Draw, write, read again, count."""
    require_output_folder(output, overwrite=overwrite)
    folder = write_scenes(config, output, overwrite=True)
    print(table({split: count(folder, split) for split in SPLITS}))
    print(f"written: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return exit_status(lambda: prepare(*parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
