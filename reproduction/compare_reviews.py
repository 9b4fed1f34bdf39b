"""What `dair-hf compare` finds on 500 movie reviews with MiniLM: the table in the README.

Run: python -m reproduction.compare_reviews --cad path/to/cad.zip --output_dir outputs/compare_reviews
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from datasets import Dataset

from dair_hf.commands.main import run
from dair_hf.io.commands import exit_status
from dair_hf.io.files import atomic_path
from dair_hf.text.counterfactual import read_sentiment

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
REVIEWS = 500


def main() -> int:
    """Write the pairs of shuffled training reviews, and compare the methods on them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cad", required=True, help="counterfactually augmented data: folder or zip")
    parser.add_argument("--output_dir", type=Path, required=True, help="as in `dair-hf compare --output`")
    options = parser.parse_args()
    pairs = options.output_dir.with_suffix(".jsonl")
    reviews: Dataset = read_sentiment(options.cad, "train").shuffle(seed=0).select(range(REVIEWS))
    with atomic_path(pairs) as path:
        reviews.to_json(path)
    return run(["compare", MODEL, str(pairs), "--output", str(options.output_dir)])


if __name__ == "__main__":
    sys.exit(exit_status(main))
