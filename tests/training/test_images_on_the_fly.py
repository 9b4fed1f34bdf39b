"""Images as people have them: an Image column, partners made by a transform, a torch data set."""

from __future__ import annotations

import multiprocessing
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import ViTConfig, ViTForImageClassification, set_seed
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.evaluation.answers import same_classes
from tests.fixtures.paths import ROOT

Rows = dict[str, list[Any]]
PROCESSOR = ViTImageProcessorPil(size={"height": 8, "width": 8})


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8))


def pictures(rows: int = 10) -> datasets.Dataset:
    table = {"image": [picture(row) for row in range(rows)], "label": [row % 2 for row in range(rows)]}
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["even", "odd"])}
    return datasets.Dataset.from_dict(table, features=datasets.Features(features))


def trainer(folder: Path, data: Any, **settings: Any) -> DAIRTrainer:
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=2, **sizes))
    args = DAIRConfig(str(folder), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, max_steps=2,
                      per_device_train_batch_size=4, per_device_eval_batch_size=4, **settings)  # fmt: skip
    return DAIRTrainer(model, args, train_dataset=data, eval_dataset=data, processing_class=PROCESSOR)


def answers(model: Any, images: list[Image.Image]) -> np.ndarray:
    """The classes of images, one by one."""
    model.eval()
    with torch.no_grad():
        logits = [model(**PROCESSOR(image.convert("RGB"), return_tensors="pt")).logits[0] for image in images]
    return torch.stack(logits).argmax(-1).numpy()


def as_image(rows: Rows) -> Rows:
    return {**rows, "augmented_image": [ImageOps.mirror(image) for image in rows["image"]]}


def as_pixels(rows: Rows) -> Rows:
    def pixels(images: list[Image.Image]) -> list[torch.Tensor]:
        return list(PROCESSOR(images, return_tensors="pt")["pixel_values"])

    mirrored = [ImageOps.mirror(image) for image in rows["image"]]
    return {"pixel_values": pixels(rows["image"]), "augmented_pixel_values": pixels(mirrored), "labels": rows["label"]}


class TorchImages(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> dict[str, Any]:
        image = picture(row)
        return {"image": image, "augmented_image": ImageOps.mirror(image), "label": row % 2, "path": f"{row}.png"}


def stored(data: datasets.Dataset) -> datasets.Dataset:
    return data.add_column("augmented_image", [{"bytes": None, "path": None}] * len(data)).map(
        lambda row: {"augmented_image": ImageOps.mirror(row["image"])},
        features=datasets.Features({**data.features, "augmented_image": datasets.Image()}),
    )


DATA: dict[str, Callable[[], Any]] = {
    "image columns": lambda: stored(pictures()),
    "transform to images": lambda: pictures().with_transform(as_image),
    "transform to pixels": lambda: pictures().with_transform(as_pixels),
    "torch data set": TorchImages,
}


@pytest.mark.parametrize("kind", DATA)
def test_images_are_trained_and_evaluated_without_further_settings(tmp_path: Path, kind: str) -> None:
    made = trainer(tmp_path, DATA[kind]())
    before = [value.clone() for value in made.model.parameters()]
    made.train()
    assert any(not torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))
    images, labels = [picture(row) for row in range(10)], np.arange(10) % 2
    right = [answers(made.model, views) == labels for views in (images, list(map(ImageOps.mirror, images)))]
    pairs = made.evaluate_pairs()
    assert pairs["original_accuracy"] == right[0].mean() and pairs["augmented_accuracy"] == right[1].mean()
    assert pairs["cm_numerator"] == (right[0] & right[1]).sum() and pairs["pairs"] == 10
    metrics = made.evaluate()
    assert metrics["eval_both_correct"] == pairs["both_correct"] and metrics["eval_loss"] > 0


class RandomPartners:
    """A transform with random partners that counts its rows and keeps what it made."""

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    def __call__(self, rows: Rows) -> Rows:
        partners = [np.random.default_rng().random((3, 8, 8), dtype=np.float32) for _ in rows["image"]]
        self.made += partners
        pixels = [np.full((3, 8, 8), label, dtype=np.float32) for label in rows["label"]]
        return {"pixel_values": pixels, "augmented_pixel_values": partners, "labels": rows["label"]}


@pytest.mark.parametrize("call", ["evaluate", "evaluate_pairs", "pair_report"])
def test_a_random_transform_runs_once_a_row_and_its_partners_are_scored(tmp_path: Path, call: str) -> None:
    transform = RandomPartners()
    data = pictures().with_transform(transform)
    made = trainer(tmp_path, data)
    transform.made.clear()  # of the features of the data set
    if call == "pair_report":
        pytest.importorskip("plotly")
        found = made.pair_report(folder=tmp_path / "report", evaluator=same_classes)
        losses = dict(zip(found.pairs["row_id"], found.pairs["loss_augmented"], strict=True))
    else:
        metrics = made.evaluate() if call == "evaluate" else made.evaluate_pairs()
    assert len(transform.made) == 10
    with torch.no_grad():
        logits = made.model(pixel_values=torch.from_numpy(np.stack(transform.made))).logits
    if call == "pair_report":
        wanted = torch.nn.functional.cross_entropy(logits, torch.arange(10) % 2, reduction="none")
        assert [losses[str(row)] for row in range(10)] == pytest.approx(wanted.tolist(), rel=1e-4)
    else:
        key = "eval_augmented_accuracy" if call == "evaluate" else "augmented_accuracy"
        assert metrics[key] == (logits.argmax(-1).numpy() == np.arange(10) % 2).mean()


def test_partners_from_global_random_numbers_are_the_same_in_every_evaluation(tmp_path: Path) -> None:
    seen = []

    def noisy(rows: Rows) -> Rows:
        noise = [np.random.rand(3, 8, 8).astype(np.float32) + torch.rand(3, 8, 8).numpy() for _ in rows["label"]]
        seen.append(noise)
        return {"pixel_values": noise, "augmented_pixel_values": noise, "labels": rows["label"]}

    made = trainer(tmp_path, pictures().with_transform(noisy))
    np.random.seed(3)
    wanted = np.random.rand()
    np.random.seed(3)
    first, second = made.evaluate(), made.evaluate()
    assert first["eval_loss"] == second["eval_loss"]
    assert all(np.array_equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))
    assert np.random.rand() == wanted  # the random numbers of the program go on


def test_workers_make_the_rows(tmp_path: Path) -> None:
    metrics = trainer(tmp_path, TorchImages(), dataloader_num_workers=2).evaluate()
    assert metrics["eval_both_correct"] == trainer(tmp_path, TorchImages()).evaluate()["eval_both_correct"]


def test_labels_that_a_transform_makes_are_scored(tmp_path: Path) -> None:
    data = pictures().rename_column("label", "labels")

    def other_label(rows: Rows) -> Rows:
        return {**as_pixels({**rows, "label": rows["labels"]}), "labels": [1 - label for label in rows["labels"]]}

    def other_name(rows: Rows) -> Rows:
        made = other_label(rows)
        return {**made, "label": made.pop("labels")}

    found = [
        trainer(tmp_path, data.with_transform(made)).evaluate()["eval_original_accuracy"]
        for made in (other_label, other_name)
    ]
    plain = trainer(tmp_path, data.with_transform(lambda rows: as_pixels({**rows, "label": rows["labels"]})))
    assert found == [1 - plain.evaluate()["eval_original_accuracy"]] * 2


def test_persistent_workers_do_not_mix_evaluation_sets(tmp_path: Path) -> None:
    losses = []
    for persistent in (False, True):
        made = trainer(tmp_path, pictures().with_transform(as_pixels))
        made.args.dataloader_num_workers, made.args.dataloader_persistent_workers = 1, persistent
        made.eval_dataset = {"a": [TorchImages()[row] for row in range(4)], "b": [TorchImages()[row] for row in (4, 5)]}
        metrics = made.evaluate()
        rows = pictures().map(as_pixels, batched=True, remove_columns=["image", "label"])
        stored = (made.evaluate(rows.select(chosen)) for chosen in ([0, 1], [2, 3]))
        losses.append([metrics["eval_a_loss"], metrics["eval_b_loss"], *(found["eval_loss"] for found in stored)])
        assert len(multiprocessing.active_children()) <= 2  # those of the named sets
    assert losses[0] == losses[1] and losses[0][0] != losses[0][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_page_runs_with_albumentations_and_repeats_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks for a newer version at its import
    pytest.importorskip("albumentations")
    page = (ROOT / "docs" / "images_and_tables.md").read_text(encoding="utf-8")
    data, partners, albumentations, training = re.findall(
        r"^```py(?:thon)?\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )[:4]
    (tmp_path / "page.py").write_text("\n".join([data, partners, albumentations, training]))
    monkeypatch.chdir(tmp_path)
    made = runpy.run_path(str(tmp_path / "page.py"))
    assert made["augment"].__code__.co_names[0] == "flip" and made["metrics"]["eval_both_correct"] > 0.7
    losses = [made["trainer"].evaluate()["eval_loss_augmented"] for _ in range(2)]
    assert losses[0] == losses[1] == made["metrics"]["eval_loss_augmented"]
