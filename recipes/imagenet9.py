# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vision]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""ImageNet-9: a classifier that looks at the foreground, regardless of the background (section 8 of the paper).

Command (draws its images, no download; two minutes a run on two cores):

    accelerate launch recipes/imagenet9.py --config recipes/configs/backgrounds.yaml

The drawn images are nine shapes on stripes that nearly always reveal the class. `imagenet9.yaml` is the paper's
setting, ResNet-50 on ImageNet-9; it needs a GPU and the public files of Xiao et al. (2021). The header of each
configuration states the expected results, time and hardware.

Steps: train on originals whose background reveals the class, and on partners with the same foreground on the
background of a random image; evaluate every method on the eight variants of the background challenge. An arrow down
marks variants without any foreground, where low accuracy is good. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from functools import partial

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    compare,
    lambda_note,
    runs_of,
    train_evaluate_save,
)
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import finished_records
from dair_hf.io.commands import run_recipe
from dair_hf.io.file_values import FileValueCache
from dair_hf.vision.backgrounds.challenge import Challenge, ChallengeConfig, load_challenge
from dair_hf.vision.backgrounds.drawn import BackgroundsConfig
from dair_hf.vision.backgrounds.imagenet9 import ImageNet9Config
from dair_hf.vision.backgrounds.variants import CLASSES, VARIANTS, evaluate_variants
from dair_hf.vision.networks import ImageNetworkConfig, make_network

CHANNELS = 3
PAIRED = [
    Column("background_gap", "gap"),
    Column("cm", "CM"),
    Column("both_correct", "both right"),
]


def train_and_evaluate(run: Run, data: Challenge, network: ImageNetworkConfig) -> Result:
    """Train and evaluate one run from the initial weights of its seed."""
    set_seed(run.seed)
    trainer = DAIRTrainer(
        make_network(network, CHANNELS, CLASSES),
        run.args,
        data.collator,
        data.train(run.seed, run.args.uses_partners),
        sample_loss="classification",
    )
    return train_evaluate_save(
        trainer, lambda trained: evaluate_variants(trained.evaluate_pairs, data.tests, data.name)
    )


def main() -> None:
    """Train all unfinished runs and write the table."""
    types = [ChallengeConfig, BackgroundsConfig, ImageNet9Config, ImageNetworkConfig, ComparisonConfig, DAIRConfig]
    source, drawn, public, network, comparison, args = parse_arguments(types)
    folder = claim_output_folder(args)
    data = load_challenge(source, drawn, public, FileValueCache.of_contents(folder.parent))
    runs = list(runs_of(comparison, args))
    settings = {"source": source, "data": data.config, "network": network, "split": public.evaluate_on}
    finished_records(folder, runs, settings, data.content)  # refuses a folder of other settings before writing to it
    compare(
        runs,
        partial(train_and_evaluate, data=data, network=network),
        folder,
        f"Background challenge, {data.name}",
        [Column(f"accuracy_{name}", shown.heading) for name, shown in VARIANTS.items() if name in data.tests] + PAIRED,
        settings,
        data.content,
        [
            f"Accuracy on each variant, {public.evaluate_on}; gap: M-Same minus M-Rand; CM: M-Rand given Original, "
            f"both right: M-Rand and Original; {lambda_note(comparison, args)}."
        ],
    )


if __name__ == "__main__":
    run_recipe(main)
