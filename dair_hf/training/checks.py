"""Checks before training: settings that cannot be combined, and dropout in use."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from accelerate.parallelism_config import ParallelismConfig
from torch import Tensor, nn
from transformers.utils import logging

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.data.checks import columns_of
from dair_hf.data.collator import PADDING_ROW, ROW_ID
from dair_hf.data.held_rows import is_transformed
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.view_columns import VIEWS, parse_column
from dair_hf.errors import DataError
from dair_hf.evaluation.evaluator import PairEvaluator
from dair_hf.evaluation.statistics import is_cm
from dair_hf.losses.objective import LOSS_REGULARIZERS
from dair_hf.losses.per_sample import SampleLoss, causal_nll, huber, seq2seq_nll, squared_error
from dair_hf.training.sample_loss import refuse_virtual_tokens
from dair_hf.training.train_metrics import SMALL_IS_BETTER, evaluated_terms
from dair_hf.trees.batches import require_column

logger = logging.get_logger(__name__)
# Settings of the objective of `method`, with their defaults, that another objective would ignore.
FOR_SUMS_OVER_PAIRS = {"view_weights": None, "stop_gradient": None, "lambda_warmup_steps": None}


def dropout_rates(model: Any) -> dict[str, float]:
    """Return the dropout rates above 0 of a model, name -> rate: of dropout layers and of attributes of modules."""
    rates: dict[str, float] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.setdefault(path.rsplit(".", 1)[-1], module.p)
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                rates.setdefault(name, value)
    return {name: rate for name, rate in rates.items() if rate > 0}


def require_model(model: Any, augmenter: Any = None) -> None:
    """Refuse a model that is not loaded, and an augmenter that is no function.

    Args:
        model: The model, or None.
        augmenter: The augmenter, or None.

    Raises:
        DataError: One of them is of another kind.

    Example:
        >>> require_model(nn.Linear(1, 1))
    """
    if model is not None and not isinstance(model, nn.Module):
        raise DataError(
            f"model is a {type(model).__name__}, {reprlib.repr(model)}; load it first, for example with "
            "AutoModelForSeq2SeqLM.from_pretrained, or pass a function that returns it as model_init"
        )
    if augmenter is not None and not callable(augmenter):
        raise DataError(
            f"augmenter is a {type(augmenter).__name__}; give a function (model, batch, generator) -> batch with "
            "partners, as `collator.add_partners` returns it"
        )


def require_groups(args: DAIRConfig, train_dataset: Any, eval_dataset: Any) -> None:
    """Refuse data without the column of `share_prefixes`, before columns are removed and not after an epoch."""
    if args.share_prefixes is None:
        return
    data_sets = {"train_dataset": train_dataset}
    if args.eval_strategy != "no":
        evaluated = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
        data_sets |= {f"eval_dataset {name}".strip(): data for name, data in evaluated.items()}
    for name, data in data_sets.items():
        if (columns := columns_of(data)) is not None:
            require_column(args.share_prefixes, args.share_prefixes, columns, name)


def warn_of_unused_target(args: DAIRConfig) -> None:
    """Warn of settings of `dair_lambda="auto"` next to a number; a search may go from one to the other."""
    defaults = DAIRConfig.__dataclass_fields__
    names = [name for name in ("lambda_target", "lambda_max") if getattr(args, name) != defaults[name].default]
    if names and args.dair_lambda != AUTO and args.uses_regularizer:
        given = ", ".join(f"{name}={getattr(args, name):g}" for name in names)
        logger.warning(
            f"{given}: no effect with dair_lambda={args.dair_lambda:g}; set dair_lambda='auto', or leave it out."
        )


def check_best_metric(
    args: DAIRConfig, evaluator: PairEvaluator | None, eval_dataset: Any, makes_metrics: bool
) -> None:
    """Set the direction of the metric that chooses the best checkpoint; refuse one that is a CM or cannot exist."""
    if args.metric_for_best_model is None:
        return
    metric = args.metric_for_best_model.removeprefix("eval_")
    prefixes = [f"{name}_" for name in eval_dataset] if isinstance(eval_dataset, dict) else [""]
    names = [metric.removeprefix(prefix) for prefix in prefixes if metric.startswith(prefix)]
    scores = {f"{view}_{name}" for view in VIEWS for name in (evaluator.scores if evaluator is not None else ())}
    if args.greater_is_better is None:
        if scores.intersection(names) - SMALL_IS_BETTER:
            raise DataError(f"metric_for_best_model={args.metric_for_best_model!r} is a score: set greater_is_better")
        args.greater_is_better = not (metric.endswith("loss") or not SMALL_IS_BETTER.isdisjoint(names))
    if args.eval_strategy == "no":
        return
    known = evaluated_terms(args)
    if evaluator is not None:
        known |= {name for name in evaluator.metric_names() if not name.endswith(("_low", "_high"))} | scores
    # Several partners of a row have numbers.
    exists = makes_metrics or any(re.sub(r"_partner_\d+$", "_partner_1", name) in known for name in names)
    # A model that answers all inputs alike has a CM of 1.
    if not names or not exists or any(map(is_cm, names)):
        candidates = ", ".join(sorted(f"{prefixes[0]}{name}" for name in known if not is_cm(name)))
        raise DataError(
            f"metric_for_best_model={args.metric_for_best_model!r}: expected a metric of the evaluation other than CM, "
            f"such as both_correct with an evaluator; there are {candidates}"
        )


def refuse_unsupported(
    args: DAIRConfig, sample_loss: SampleLoss, objective: Any = None, augmenter: Any = None, model: Any = None
) -> None:
    """Refuse settings of model and objective that cannot be combined."""
    if args.uses_features and sample_loss in (squared_error, huber):
        raise DataError(
            f"regularizer={args.regularizer!r} and sample_loss={sample_loss.__name__} cannot be combined: a "
            "regression has no output distribution to compare; use a regularizer of the losses, "
            f"{' or '.join(LOSS_REGULARIZERS)}"
        )
    if objective is not None:
        for name, is_set in (
            (f"gradient_accumulation_steps={args.gradient_accumulation_steps}", args.gradient_accumulation_steps > 1),
            (f"{args.world_size} processes", args.world_size > 1),
            (f"normalization={args.normalization!r}", args.normalization != "pair"),
            (f"regularizer={args.regularizer!r} with method='dair'", args.uses_features),
            *(
                (f"{name}={getattr(args, name)!r}", args.uses_regularizer and getattr(args, name) != default)
                for name, default in FOR_SUMS_OVER_PAIRS.items()
            ),
            (f"regularizer={args.regularizer!r}", args.uses_regularizer and not isinstance(args.regularizer, str)),
        ):
            if is_set:
                raise DataError(
                    f"objective={type(objective).__name__} and {name} cannot be combined: the objective needs all "
                    "rows of the optimizer step in one batch; use one process, a larger per_device_train_batch_size, "
                    "normalization='pair' and a regularizer of the losses, and give weights to the objective itself"
                )
        if args.dair_lambda == AUTO and args.uses_regularizer:
            raise DataError(
                f"objective={type(objective).__name__} and dair_lambda='auto' cannot be combined: the objective has "
                "a lambda of its own; give it a number, or leave objective unset"
            )
    if args.share_prefixes is not None and sample_loss is not causal_nll:
        name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
        raise DataError(
            f"share_prefixes={args.share_prefixes!r} needs a decoder-only model with sample_loss='causal', not {name}: "
            "only there does the prefix of a row not depend on the rest of it; leave share_prefixes unset"
        )
    refuse_virtual_tokens(model)
    _refuse_unsupported_chunks(args, sample_loss, objective)
    _refuse_unsupported_cache(args, objective, model)
    _refuse_unsupported_sharding(args, augmenter, model)


def refuse_unsupported_launch(
    args: DAIRConfig, kwargs: Mapping[str, Any], train_dataset: Any, augmenter: Any = None
) -> None:
    """Refuse settings that would split pairs or repeat rows, before processes and data loaders are set up."""
    for name in ("fsdp", "deepspeed"):
        if augmenter is not None and (value := getattr(args, name, None)):
            raise DataError(
                f"augmenter and {name}={value!r} cannot be combined: an augmenter needs the whole model on each rank; "
                "use DDP, or make the partners before training"
            )
    if args.n_gpu > 1:
        raise DataError(
            f"{args.n_gpu} GPUs are visible to one process, which would use torch.nn.DataParallel and split pairs; "
            "start with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    parallelism = args.parallelism_config
    if parallelism is None and os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "").lower() == "true":
        parallelism = ParallelismConfig()  # as `accelerate launch` set it
    for name, kind in (("cp_size", "context"), ("sp_size", "sequence")):
        if (size := getattr(parallelism, name, 1)) > 1:
            raise DataError(
                f"parallelism_config with {name}={size} would split the views of pairs over the ranks, since {kind} "
                f"parallelism splits dimension 1 of a batch; set {name}=1"
            )
    if args.dataloader_persistent_workers and isinstance(train_dataset, (EpochPairs, TensorPairs)):
        raise DataError(
            "dataloader_persistent_workers=True would repeat the partners of the first epoch of "
            f"{type(train_dataset).__name__}; leave it at its default, False"
        )
    config = args.accelerator_config
    if config.dispatch_batches:
        raise DataError(
            "accelerator_config dispatch_batches=True joins batches, but batches of pairs differ in length and number "
            "of views; leave it unset, so that every process reads its own batches"
        )
    config.dispatch_batches = False  # None would mean True for a stream
    if args.world_size > 1 and not config.even_batches:
        raise DataError(
            f"accelerator_config even_batches=False leaves some of {args.world_size} processes without a batch in the "
            "last step, so the other ranks would hang; leave it unset: repeated rows are masked"
        )
    refuse_scheduler(args, (kwargs.get("optimizers") or (None, None))[1])
    if kwargs.get("compute_loss_func") is not None:
        raise DataError(
            "compute_loss_func reduces over the batch, but DAIR needs the losses of rows; pass `sample_loss` instead"
        )


def refuse_scheduler(args: DAIRConfig, scheduler: Any) -> None:
    """Refuse a scheduler besides the schedule of the settings, which it would replace."""
    for name in ("lr_drop_epochs", "lr_half_life_steps"):
        if scheduler is not None and (value := getattr(args, name)) is not None:
            raise DataError(
                f"{name}={value} and the scheduler {type(scheduler).__name__} in optimizers=(optimizer, scheduler) "
                "cannot be combined: each is a complete schedule; pass optimizers=(optimizer, None), or leave "
                f"{name} unset"
            )


def _refuse_unsupported_chunks(args: DAIRConfig, sample_loss: SampleLoss, objective: Any) -> None:
    if not args.chunked_loss:
        return
    name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for other, is_set in (
        (f"sample_loss={name}, which is no token loss,", sample_loss not in (seq2seq_nll, causal_nll)),
        (f"regularizer={args.regularizer!r}, which compares logits,", args.uses_features),
        ("an objective of the whole batch, which may use logits,", objective is not None),
        (f"fsdp={args.fsdp!r}, which shards the projection between its uses,", bool(args.fsdp)),
        (f"deepspeed={args.deepspeed!r}, which shards the projection between its uses,", bool(args.deepspeed)),
    ):
        if is_set:
            raise DataError(f"chunked_loss=True and {other} cannot be combined; set chunked_loss=False")


def _refuse_unsupported_cache(args: DAIRConfig, objective: Any, model: Any) -> None:
    if args.gradient_cache is None:
        return
    if objective is None:
        raise DataError(
            f"gradient_cache={args.gradient_cache} needs an `objective` of the whole batch; the objectives of `method` "
            "are sums over pairs, for which a smaller per_device_train_batch_size with gradient_accumulation_steps "
            "gives the same update; set gradient_cache=None"
        )
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise DataError(
                f"gradient_cache={args.gradient_cache} and the batch norm {path!r} cannot be combined: its statistics "
                "would cover a part of the batch only; set gradient_cache=None"
            )


def _refuse_unsupported_sharding(args: DAIRConfig, augmenter: Any, model: Any) -> None:
    """Refuse settings that need whole weights, or different numbers of forwards per rank, for a sharded model."""
    if not getattr(model, "is_distributed_loading_by_transformers", False):
        return
    for name, is_set in (
        ("chunked_loss=True", args.chunked_loss),
        ("forward_mode='separate'", args.forward_mode == "separate"),
        ("pair_dropout='shared'", args.pair_dropout == "shared"),
        ("augmenter", augmenter is not None),
    ):
        if is_set:
            raise DataError(
                f"{name} and a model loaded with distributed_config cannot be combined: its weights are sharded over "
                f"the ranks; leave {name.split('=')[0]} at its default, or load the whole model and use DDP"
            )


def require_scalar(loss: Any, objective: Any) -> Tensor:
    """Return what an objective returned for a batch; refuse anything but one number as a tensor."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    name = getattr(objective, "__name__", type(objective).__name__)
    raise DataError(f"objective={name} returned {found}; return a scalar tensor, such as outputs.terms.original.mean()")


def require_gradient(loss: Tensor, row_losses: Tensor, model: nn.Module, objective: Any, sample_loss: Any) -> None:
    """Refuse a loss from which no gradient reaches the model."""
    if loss.requires_grad:
        return
    if not any(weight.requires_grad for weight in model.parameters()):
        raise DataError("no weight of the model is trained; set requires_grad of some of its parameters to True")
    is_of_objective = objective is not None and row_losses.requires_grad
    if not is_of_objective and getattr(sample_loss, "__module__", type(sample_loss).__module__).startswith("dair_hf."):
        raise DataError(
            f"the outputs of {type(model).__name__} have no gradient, so nothing would be trained; its forward may use "
            "`detach`, `torch.no_grad`, or checkpointing of its own, which needs use_reentrant=False"
        )
    function = objective if is_of_objective else sample_loss
    name = getattr(function, "__name__", type(function).__name__)
    returned = f"objective={name} returned a loss" if is_of_objective else f"sample_loss={name} returned losses"
    raise DataError(
        f"{returned} without a gradient, so nothing would be trained; compute with tensors only, and leave out "
        "`detach`, `item`, `numpy` and `torch.no_grad`"
    )


def require_inputs(model: Any, data: Any, known: Collection[str], name: str) -> None:
    """Refuse data that have no column which a model of transformers reads, beside labels: it would fail within.

    Args:
        model: The model.
        data: The data.
        known: Columns that are read, where they are present.
        name: Name of the data, for the message.

    Raises:
        DataError: There is none.
    """
    if isinstance(data, TensorPairs):
        columns = list(data.views[0]) if isinstance(data.views[0], Mapping) else None
    else:
        columns = columns_of(data)
    main_input, others = getattr(model, "main_input_name", None), {*LABEL_COLUMNS, ROW_ID, PADDING_ROW}
    if not columns or main_input not in known or is_transformed(data):
        return
    if not any(column in known and parse_column(column)[1] not in others for column in columns):
        raise DataError(
            f"{name}: has the columns {', '.join(columns)}, and none of them is an input of {type(model).__name__}, "
            f"such as {main_input}; rename them, or give images in the column 'image' and the image processor of the "
            "model as processing_class"
        )
