# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[vqa]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Visual question answering under edited images: remove what is asked about, and the answer must change.

Command (no data, no network; about ten minutes on two cores; writes outputs/counting_scenes_cv):

    accelerate launch recipes/vqa_saaa.py --config recipes/configs/counting_scenes_cv.yaml

- `counting_scenes_iv.yaml` removes what is not asked about, so the answer must stay.
- `cv_vqa.yaml` and `iv_vqa.yaml` are the paper's setting on VQA v2 with the edits of CV-VQA and IV-VQA.
- `vilt_lora.yaml` fine-tunes a current model.

The header of each configuration states the expected results, time and hardware. Data are the raw files (`--questions`,
`--images`, `--edits`, `--edited_images`) or, with `--questions` alone, the folder written by
`data_scripts/prepare_vqa.py`. Scenes are drawn, or read from the folder written by
`data_scripts/prepare_counting_scenes.py` (`--scene_folder`).

Steps: read or draw questions, images and edits; compute image features with a frozen backbone and store them on disk;
train SAAA ("Show, Ask, Attend, and Answer") with every method from the same weights; write accuracy, CM and answer
flips as a table, with plots if lambda is swept. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from accelerate import PartialState
from torch import nn
from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.checkpoints import train_base_once
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    compare,
    fingerprint,
    lambda_note,
    runs_of,
    train_evaluate_save,
)
from dair_hf.experiments.plots import plot_sweep
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import finished_records
from dair_hf.io.commands import run_recipe
from dair_hf.io.file_values import FileValueCache
from dair_hf.io.files import write_json
from dair_hf.modeling import ModelConfig, load_pretrained
from dair_hf.vqa.data import VQAConfig, load_vqa
from dair_hf.vqa.pairs import edit_pairs
from dair_hf.vqa.readers.reading import report_table
from dair_hf.vqa.scenes.backbone import CellClassifier, cell_classification, scene_network
from dair_hf.vqa.scenes.files import SceneConfig
from dair_hf.vqa.task import NetworkConfig, VQATask, evaluate_edits, prepare_task

COLUMNS = [
    Column("vqa_accuracy", "accuracy"),
    Column("familiar_vqa_accuracy", "accuracy, as in training"),
    Column("cm", "CM"),
    Column("both_correct", "both right"),
    Column("flipped", "flipped"),
    Column("pos_to_neg", "pos->neg"),
    Column("neg_to_pos", "neg->pos"),
    Column("neg_to_neg_flipped", "neg->neg"),
]
# All runs share the backbone, so none of their settings may change its training.
BACKBONE = {
    "method": "erm", "seed": 0, "num_train_epochs": 3, "per_device_train_batch_size": 50, "learning_rate": 4e-3,
    "lr_scheduler_type": "linear", "weight_decay": 0.0, "max_grad_norm": 1.0,
}  # fmt: skip


def scene_backbone(count: int, args: DAIRConfig) -> nn.Module:
    """Train a small ResNet to name the object in each cell of random scenes, once for all runs."""
    steps = BACKBONE["num_train_epochs"] * math.ceil(count / BACKBONE["per_device_train_batch_size"])
    training = {**BACKBONE, "warmup_steps": min(100, steps // 3)}
    name = fingerprint(scene_network(), count, training, args.world_size)
    folder = Path(args.output_dir).parent / f"scene_backbone_{name}"
    base_args = DAIRConfig(
        f"{folder}_training", **training, save_strategy="no", logging_steps=100, report_to="none",
        use_cpu=args.use_cpu, disable_tqdm=args.disable_tqdm,
    )  # fmt: skip

    def make_trainer() -> DAIRTrainer:
        set_seed(base_args.seed)
        model, rows = cell_classification(count)
        return DAIRTrainer(model, base_args, train_dataset=rows, sample_loss="seq2seq")

    return load_pretrained(CellClassifier, train_base_once(folder, make_trainer), "the backbone").backbone.eval()


def train_and_evaluate(run: Run, task: VQATask) -> Result:
    """Train and evaluate one run from the initial weights of its seed."""
    set_seed(run.seed)
    data = task.data
    pairs = edit_pairs(data.train, data.train_edits, run.seed) if run.args.uses_partners else data.train
    trainer = DAIRTrainer(
        task.make_model(run.seed),
        run.args,
        task.collator,
        pairs,
        processing_class=task.processing_class,
        sample_loss=task.sample_loss,
    )
    return train_evaluate_save(
        trainer, lambda trained: evaluate_edits(trained.evaluate_pairs, task, run.predictions_file)
    )


def main() -> None:
    """Train all unfinished runs and write the table."""
    types = [VQAConfig, SceneConfig, NetworkConfig, ModelConfig, ComparisonConfig, DAIRConfig]
    config, scenes, network, model, comparison, args = parse_arguments(types)
    network.check_model(model)
    folder = claim_output_folder(args)
    scene_folder = folder.parent / f"counting_scenes_{fingerprint(scenes)}"
    data = load_vqa(config, scenes, scene_folder, folder.parent / "verified_images.json")
    runs = list(runs_of(comparison, args))
    settings = {"data": config, "scenes": scenes, "network": network, "model": model}
    # The features are also found by these hashes.
    cache = network.features_folder if network.network == "saaa" else folder.parent
    files = data.fingerprints(FileValueCache.of_contents(cache))
    finished_records(folder, runs, settings, files)  # refuses a folder of other settings before writing to it
    reports = {name: asdict(report) for name, report in data.reports.items()}
    if PartialState().is_main_process:
        print(report_table(data.reports))
        write_json(folder / "data.json", reports)
    needs_backbone = config.source == "scenes" and network.network == "saaa" and network.backbone is None
    backbone = scene_backbone(network.backbone_scenes, args) if needs_backbone else None
    task = prepare_task(network, model, config, data, backbone, args.device)
    if PartialState().is_main_process:
        write_json(folder / "data.json", {**reports, "without an answer in the vocabulary": task.unknown_answers})
    table = compare(
        runs,
        lambda run: train_and_evaluate(run, task),
        folder,
        f"Answers under edited images, {data.name}",
        [column for column in COLUMNS if data.familiar is not None or not column.key.startswith("familiar")],
        settings,
        files,
        [f"Shares of all (question, edit) pairs; {lambda_note(comparison, args)}."],
    )
    if table:
        plot_sweep(folder, runs, data.name, {"vqa_accuracy": "accuracy", "cm": "CM", "flipped": "flipped"})


if __name__ == "__main__":
    run_recipe(main)
