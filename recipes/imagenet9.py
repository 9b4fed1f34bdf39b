"""ImageNet-9: a classifier that looks at the foreground, whatever it stands on (section 8 of the paper).

Run (pictures are drawn: nothing to download; two minutes a run on two cores):

    accelerate launch recipes/imagenet9.py --config recipes/configs/backgrounds.yaml

The paper's setting, ResNet-50 on ImageNet-9, is `imagenet9.yaml`: it needs the public files of Xiao et al. (2021) and a
GPU. Its header says where they are and what to expect. Drawn pictures stand in for them: nine shapes, or digits or
objects (`--foreground digits --foreground_source FOLDER`), on stripes that nearly always give the class away.

What happens: originals in which the background tells the class, partners with the same foreground on the background of
any picture. Every method is judged on the eight variants of the background challenge; an arrow down marks those in
which nothing of the foreground is left. Finished runs are kept as JSON and not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.arguments import parse_arguments, run_recipe
from dair_hf.comparison import ComparisonConfig, Result, Run, compare, fingerprint, runs_of, train_and_measure
from dair_hf.files import write_json
from dair_hf.report import Column
from dair_hf.tensor_pairs import tensor_fingerprint
from dair_hf.vision import backgrounds, imagenet9
from dair_hf.vision.networks import NetworkConfig, make_network
from dair_hf.vision.pictures import PictureCollator
from dair_hf.vision.settings import require_choice
from dair_hf.vision.variants import CLASSES, VARIANTS, evaluate_variants

SOURCES = ("drawn", "imagenet9")
CHANNELS = 3


@dataclass
class SourceConfig:
    """Which pictures.

    Raises:
        DataError: An unknown source.
    """

    source: str = field(
        default="drawn",
        metadata={"help": "drawn: the stand-in; imagenet9: the folders of the public data.", "choices": SOURCES},
    )

    def __post_init__(self) -> None:
        require_choice("source", self.source, SOURCES)


class Data(NamedTuple):
    """What a run trains and is judged on.

    Attributes:
        name: Of the data.
        train: (seed, whether partners are wanted) -> training rows.
        tests: Variant -> test rows.
        collator: Makes batches of rows; None where the rows are tensors.
        content: Name -> what identifies the rows.
    """

    name: str
    train: Callable[[int, bool], Any]
    tests: Mapping[str, Any]
    collator: PictureCollator | None
    content: dict[str, str]


def drawn_data(config: backgrounds.BackgroundsConfig, split: str) -> Data:
    """The stand-in."""
    things = backgrounds.load_foregrounds(config)

    def train(seed: int, partners: bool) -> Any:
        pairs = backgrounds.train_pairs(things, config, seed)
        return pairs if partners else pairs.originals()

    content = {name: tensor_fingerprint(found.pictures) for name, found in things.items()}
    return Data(
        f"{config.foreground} on stripes", train, backgrounds.evaluation_sets(things, config, split), None, content
    )


def public_data(config: imagenet9.ImageNet9Config, folder: Path) -> Data:
    """ImageNet-9; what it lacks is written to `missing.json`."""
    data = imagenet9.load_imagenet9(config)
    if data.missing:
        write_json(folder / "missing.json", data.missing)
    content = {name: fingerprint(rows["row_id"][:]) for name, rows in {"train": data.train, **data.tests}.items()}

    def train(seed: int, partners: bool) -> Any:
        return imagenet9.train_pairs(data, config, seed, partners)

    return Data("ImageNet-9", train, data.tests, PictureCollator(config.input_size), content)


def train_and_evaluate(run: Run, data: Data, network: NetworkConfig) -> Result:
    """One run from the same weights as all others of its seed."""
    set_seed(run.seed)
    trainer = DAIRTrainer(
        make_network(network, CHANNELS, CLASSES),
        run.args,
        data.collator,
        data.train(run.seed, run.args.uses_partners),
        sample_loss="classification",
    )
    return train_and_measure(trainer, lambda trained: evaluate_variants(trained.evaluate_pairs, data.tests, data.name))


def main() -> None:
    """Train all runs that are not finished and print the table."""
    types = [
        SourceConfig, backgrounds.BackgroundsConfig, imagenet9.ImageNet9Config, NetworkConfig, ComparisonConfig,
        DAIRConfig,
    ]  # fmt: skip
    source, drawn, public, network, comparison, args = parse_arguments(types)
    folder = Path(args.output_dir)
    is_public = source.source == "imagenet9"
    data = public_data(public, folder) if is_public else drawn_data(drawn, public.evaluate_on)
    columns = [Column(f"accuracy_{variant}", shown.heading) for variant, shown in VARIANTS.items()]
    compare(
        list(runs_of(comparison, args)),
        partial(train_and_evaluate, data=data, network=network),
        folder,
        f"Background challenge, {data.name}",
        [column for column in columns if column.key.removeprefix("accuracy_") in data.tests]
        + [Column("background_gap", "gap"), Column("cm", "CM", ("cm_numerator", "cm_denominator"))],
        {"source": source, "data": public if is_public else drawn, "network": network, "split": public.evaluate_on},
        data.content,
        [f"Accuracy on each variant, {public.evaluate_on}; gap: M-Same minus M-Rand; CM: M-Rand given Original."],
    )


if __name__ == "__main__":
    run_recipe(main)
