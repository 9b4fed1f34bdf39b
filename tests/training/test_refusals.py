"""Bad inputs of the trainer: what would train nonsense in silence, hang, or fail only after an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from accelerate.parallelism_config import ParallelismConfig
from transformers import LlamaForCausalLM, ViTConfig, ViTForImageClassification

from dair_hf import DAIRTrainer, DataError, EpochPairs, PairEvaluator, TensorPairs
from dair_hf.training import checks
from dair_hf.training.environments import AggregatedDAIR, EnvironmentConfig, VREx
from tests.fixtures import points, tiny


def of_language(**settings: Any) -> Callable[[Path], DAIRTrainer]:
    return lambda folder: tiny.trainer(folder, "gpt2", tiny.pairs("gpt2", 4), **settings)


def of_points(**settings: Any) -> Callable[[Path], DAIRTrainer]:
    return lambda folder: points.trainer(folder, points.pairs(8), **settings)


def of_classes(**settings: Any) -> Callable[[Path], DAIRTrainer]:
    def make(folder: Path) -> DAIRTrainer:
        names = {"sample_loss", "objective"} & settings.keys()
        given = {"sample_loss": "classification", **{name: settings[name] for name in names}}
        args = tiny.config(folder, **{name: value for name, value in settings.items() if name not in names})
        model = tiny.NormedClassifier(tiny.NormedConfig())
        return DAIRTrainer(model, args, train_dataset=tiny.classified_pairs(), **given)

    return make


def mean(outputs: Any, step: int) -> torch.Tensor:
    """Return the mean loss of the originals, an objective of a whole batch."""
    loss: torch.Tensor = outputs.terms.original.mean()
    return loss


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (of_language(sample_loss="nll"), "sample_loss='nll'"),
        (lambda folder: of_language()(folder).hyperparameter_search(), "compute_objective"),
        (of_language(compute_loss_func=len), "compute_loss_func"),
        (of_language(accelerator_config={"even_batches": False}), "even_batches"),
        (of_language(parallelism_config=ParallelismConfig(cp_size=2)), "cp_size"),
        (of_language(parallelism_config=ParallelismConfig(sp_size=2)), "sp_size"),
        (of_language(chunked_loss=True, regularizer="kl"), "chunked_loss"),
        (of_language(chunked_loss=True, objective=mean), "chunked_loss"),
        (of_classes(chunked_loss=True), "chunked_loss"),
        (of_classes(method="da", gradient_cache=2, objective=VREx(1.0)), "gradient_cache"),
        (of_classes(predict_with_generate=True), "predict_with_generate"),
        *((of_classes(regularizer="kl", sample_loss=loss), "regularizer='kl'") for loss in ("squared", "multi_label")),
        (of_points(objective=mean, gradient_accumulation_steps=2), "objective"),
        *(
            (of_points(objective=mean, **ignored), "objective")
            for ignored in (
                {"normalization": "token"},
                {"view_weights": [0.2, 0.8]},
                {"dair_lambda": "auto"},
                {"regularizer": "l1"},
            )
        ),
        (lambda folder: AggregatedDAIR(torch.mean, "irm"), "method='irm'"),
        (lambda folder: AggregatedDAIR(torch.mean, "dair", 1.0, "row"), "consistency='row'"),
        (lambda folder: EnvironmentConfig(irm_penalty=0.0), "irm_penalty"),
        (lambda folder: EnvironmentConfig(penalty_anneal_steps=-1), "penalty_anneal_steps"),
    ],
)
def test_settings_are_refused_before_training(
    tmp_path: Path, make: Callable[[Path], Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named == "even_batches":
        monkeypatch.setattr("dair_hf.config.DAIRConfig.world_size", 2)
    with pytest.raises(DataError, match=named):
        make(tmp_path)


DROPS = {"lr_drop_epochs": [1.0], "lr_scheduler_type": "constant"}
HALF_LIFE = {"lr_half_life_steps": 5, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"view_weights": [0.5]}, "view_weights"),
        ({"view_weights": [0.0, 0.0]}, "view_weights"),
        ({"view_weights": [0.5, 0.5], "method": "trades", "regularizer": "kl"}, "view_weights"),
        ({"dair_lambda": "-1"}, "dair_lambda"),
        ({"dair_lambda": "auto", "method": "mart", "regularizer": "kl"}, "dair_lambda"),
        ({**DROPS, "lr_scheduler_type": "linear"}, "lr_scheduler_type"),
        ({**DROPS, "warmup_steps": 3}, "warmup_steps=3"),
        ({**DROPS, **HALF_LIFE}, "lr_half_life_steps=5"),
        ({**HALF_LIFE, "lr_scheduler_type": "cosine"}, "lr_scheduler_type"),
        ({**HALF_LIFE, "warmup_steps": 3}, "warmup_steps=3"),
    ],
)
def test_values_without_a_meaning_are_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=named):
        tiny.config(tmp_path, **settings)


def test_parallelism_of_the_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")  # as `accelerate launch` does
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    with pytest.raises(DataError, match="parallelism_config"):
        of_language()(tmp_path)


def test_several_gpus_in_one_process_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dair_hf.config.DAIRConfig.n_gpu", 2)
    with pytest.raises(DataError, match="accelerate launch"):
        of_language()(tmp_path)


@pytest.mark.parametrize(
    "data", [EpochPairs(lambda epoch: tiny.pairs("gpt2", 5)), points.pairs(8)], ids=["drawn", "tensors"]
)
def test_workers_that_would_repeat_the_first_epoch_are_refused(tmp_path: Path, data: Any) -> None:
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    with pytest.raises(DataError, match="dataloader_persistent_workers"):
        if isinstance(data, TensorPairs):
            points.trainer(tmp_path, data, **settings)
        else:
            tiny.trainer(tmp_path, "gpt2", data, **settings)


SHARDED: dict[str, tuple[Any, str, Any]] = {
    "transformers": (LlamaForCausalLM, "is_distributed_loading_by_transformers", True),  # a property
    "zero3": (checks, "is_deepspeed_zero3_enabled", lambda: True),
    "fsdp": (checks, "AcceleratorState", lambda: SimpleNamespace(distributed_type="FSDP")),
}


@pytest.mark.parametrize("engine", SHARDED)
@pytest.mark.parametrize(
    "settings",
    [
        {"forward_mode": "separate"},
        {"pair_dropout": "shared"},
        {"share_prefixes": "row_id"},
        {"gradient_cache": 2},
        {"chunked_loss": True},
    ],
    ids=str,
)
def test_several_forwards_of_a_sharded_model_are_refused(
    tmp_path: Path, settings: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.trainer(tmp_path, "llama", None, **settings)
    monkeypatch.setattr(*SHARDED[engine])
    with pytest.raises(DataError, match="sharded"):
        tiny.trainer(tmp_path, "llama", None, **settings)


@pytest.mark.parametrize("name", ["pair_group_by_length", "max_tokens_per_batch"])
def test_an_order_by_length_needs_stored_rows(tmp_path: Path, name: str) -> None:
    made = tiny.trainer(tmp_path, "gpt2", tiny.pairs("gpt2", 4).to_list(), **{name: 60 if "max" in name else True})
    with pytest.raises(DataError, match=name):
        made.train()


@pytest.mark.parametrize("settings", [{"lr_half_life_steps": 2}, {"lr_drop_epochs": [1.0]}])
def test_a_scheduler_next_to_a_schedule_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    built = points.model()
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def made(scheduler: Any) -> DAIRTrainer:
        args = points.trainer(tmp_path, None, lr_scheduler_type="constant", **settings).args
        optimizers = (optimizer, scheduler)
        return DAIRTrainer(built, args, points.stack, points.pairs(8), sample_loss="binary", optimizers=optimizers)

    with pytest.raises(DataError, match="lr_half_life_steps"):
        made(scheduler).train()
    alone = made(None)
    alone.train()
    alone.train()  # the schedule of the first run is not one of the caller
    assert alone.optimizer.param_groups[0]["lr"] < 0.1


@pytest.mark.parametrize("as_tensors", [False, True])
def test_data_without_an_input_of_the_model_are_refused(tmp_path: Path, as_tensors: bool) -> None:
    """The model would fail within, at None."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))
    images, labels = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    views = [{name: images, "labels": labels} for name in ("pixels", "pixel_values")]
    columns = {"image": [[0]] * 4, "labels": [0] * 4, "augmented_image": [[1]] * 4, "augmented_labels": [0] * 4}
    wrong = TensorPairs(views[0], views[0]) if as_tensors else datasets.Dataset.from_dict(columns)
    made = DAIRTrainer(model, tiny.config(tmp_path, max_steps=1), train_dataset=wrong)
    with pytest.raises(DataError, match="pixel_values"):
        made.train()
    with pytest.raises(DataError, match="pixel_values"):
        made.evaluate_pairs(wrong, lambda predictions, references: predictions == references)
    right = DAIRTrainer(model, tiny.config(tmp_path, max_steps=1), train_dataset=TensorPairs(views[1], views[1]))
    right.train()
    assert right.state.global_step == 1


def truncated(data: datasets.Dataset, column: str) -> datasets.Dataset:
    """Remove all targets of a column."""
    return data.map(lambda row: {column: row[column] and [-100] * len(row[column])})


@pytest.mark.parametrize(
    ("column", "settings", "as_stream"),
    [("labels", {"method": "erm"}, True), ("augmented_labels", {}, False), ("augmented_labels", {}, True)],
)
def test_a_run_without_targets_or_pairs_ends_with_its_first_epoch(
    tmp_path: Path, column: str, settings: dict[str, Any], as_stream: bool
) -> None:
    data = truncated(tiny.pairs("gpt2", 6), column)
    made = tiny.trainer(tmp_path, "gpt2", data.to_iterable_dataset() if as_stream else data, max_steps=5, **settings)
    with pytest.raises(DataError, match="train_dataset"):
        made.train()
    assert made.state.global_step == 2
    # A run that ends before all rows were drawn keeps its model.
    short = tiny.trainer(tmp_path, "gpt2", made.train_dataset, max_steps=1, **settings)
    short.train()
    assert short.state.global_step == 1


def test_a_stream_is_not_resumed_after_its_first_pass(tmp_path: Path) -> None:
    rows = points.rows_of(points.pairs(8)).to_iterable_dataset()
    settings = {"per_device_train_batch_size": 4, "max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    settings["lr_scheduler_type"] = "constant"  # others follow the length of the run
    points.trainer(tmp_path, rows, **{**settings, "max_steps": 1}).train()  # a shorter run, which is trained on
    longer = points.trained(points.trainer(tmp_path, rows, **settings), resume=tmp_path / "checkpoint-1")
    whole = points.trained(points.trainer(tmp_path, rows, **settings))
    assert torch.equal(whole, longer)
    for step in (1, 2):  # the second is the last of the first pass
        resumed = points.trained(points.trainer(tmp_path, rows, **settings), resume=tmp_path / f"checkpoint-{step}")
        assert torch.equal(whole, resumed)
    with pytest.raises(DataError, match="ignore_data_skip"):
        points.trainer(tmp_path, rows, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


@pytest.mark.parametrize(
    ("metric", "settings"),
    [
        ("both_correct", {"sample_loss": lambda outputs, labels: outputs.logits[:, 0] ** 2}),
        ("loss", {"eval_dataset": {"a": points.pairs(4), "b": points.pairs(4)}}),
        ("b_loss", {"eval_dataset": {"a": points.pairs(4)}}),
        ("eval_both_corect", {}),
        ("unlearned_share", {"dair_lambda": "auto"}),
        ("unlearned_share", {"method": "da"}),
        ("cm", {}),
        ("eval_cm", {"compute_metrics": lambda prediction: {"cm": 1.0}}),
        ("a_cm_all_rows", {"eval_dataset": {"a": points.pairs(4)}}),
        ("cm_partner_2", {}),
        ("both_correct_low", {}),
    ],
)
def test_a_metric_that_cannot_choose_the_best_model_is_refused_before_the_first_step(
    tmp_path: Path, metric: str, settings: dict[str, Any]
) -> None:
    evaluator = None if "sample_loss" in settings else PairEvaluator(points.correct)
    given = {"data_collator": points.stack, "processing_class": None, "sample_loss": "binary", "evaluator": evaluator}
    given |= {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "eval_dataset": points.pairs(4), **settings}
    made = tiny.trainer(tmp_path, "none", points.pairs(8), built=points.model(), metric_for_best_model=metric, **given)
    with pytest.raises(DataError, match=f"^metric_for_best_model='{metric}'"):
        made.train()
    assert made.state.global_step == 0


def test_evaluations_that_would_be_wrong_are_refused_before_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = of_language(eval_dataset=tiny.pairs("gpt2", 4))(tmp_path)
    monkeypatch.setattr(made.model, "generate", lambda **_: pytest.fail("generated"))

    def same(predictions: list[str], references: list[str]) -> list[bool]:
        return [True] * len(predictions)

    for arguments, named in (
        ({}, "evaluator"),
        ({"evaluator": PairEvaluator(same, clusters="nope")}, "clusters='nope'"),
        ({"evaluator": PairEvaluator(same, references="state")}, "state"),
        ({"evaluator": same, "subsets": {"reverse": [True] * 4}}, "subsets"),
        ({"evaluator": same, "subsets": {"long": [True] * 3}}, "subsets"),
        ({"evaluator": same, "subsets": {"long": [0.5] * 4}}, "subsets"),
    ):
        with pytest.raises(DataError, match=named):
            made.evaluate_pairs(**arguments)
    late = {"eval_strategy": "epoch", "evaluator": PairEvaluator(same, references="state")}
    training = of_language(eval_dataset=tiny.pairs("gpt2", 4), **late)(tmp_path)
    with pytest.raises(DataError, match="state"):
        training.train()
    assert training.state.global_step == 0
    with pytest.raises(DataError, match="clusters"):
        made.evaluate_pairs(tiny.pairs("gpt2", 4).add_column("dialogue_id", ["a", "a", "b", None]), same)
    with pytest.raises(DataError, match="num_beams"):
        of_points()(tmp_path).evaluate_pairs(points.pairs(4), points.correct, num_beams=2)
    logits = of_language(predict_with_generate=False)(tmp_path)
    with pytest.raises(DataError, match="predict_with_generate"):
        logits.evaluate_pairs(tiny.pairs("gpt2", 4), same)


def test_a_stream_without_pairs_is_stopped_before_its_end_and_rare_pairs_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dair_hf.training.trainer.STEPS_WATCHED", 10)
    for pairs in (0, 1):
        rows = points.rows_of(points.pairs(12, has_partner=torch.arange(12) < pairs)).to_iterable_dataset()
        made = points.trainer(tmp_path, rows, per_device_train_batch_size=1, max_steps=12)
        with contextlib.nullcontext() if pairs else pytest.raises(DataError, match="partner"):
            made.train()
        assert made.state.global_step == (12 if pairs else 9)
