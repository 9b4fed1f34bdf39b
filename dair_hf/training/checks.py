"""Checks before training of what would train nonsense in silence, hang, or fail only after an epoch."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.data.checks import columns_of
from dair_hf.data.collator import PADDING_ROW, ROW_ID
from dair_hf.data.held_rows import is_transformed
from dair_hf.data.row_rules import LABEL_COLUMNS
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.data.texts.forms import FORMS, INPUT_IDS
from dair_hf.data.view_columns import VIEWS, parse_column
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import SampleLoss, causal_nll, huber, multi_label, seq2seq_nll, squared_error
from dair_hf.training.sample_loss import refuse_virtual_tokens
from dair_hf.training.train_metrics import SMALL_IS_BETTER, evaluated_terms

TOKEN_LOSSES = (seq2seq_nll, causal_nll)


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


def check_best_metric(args: DAIRConfig, evaluator: Any, eval_dataset: Any, makes_metrics: bool) -> None:
    """Set the direction of the metric that chooses the best checkpoint; refuse one that is a CM or cannot exist."""
    if args.metric_for_best_model is None:
        return
    from dair_hf.evaluation.statistics import is_cm

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
    args: DAIRConfig, sample_loss: SampleLoss, objective: Any = None, model: Any = None, augmenter: Any = None
) -> None:
    """Refuse settings that would silently train something else with these arguments of the trainer, or hang."""
    modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    norms = [path for path, module in modules.items() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    runs_several = args.forward_mode == "separate" or args.pair_dropout == "shared" or args.chunked_loss
    runs_several |= args.share_prefixes is not None or args.gradient_cache is not None
    is_sharded = getattr(model, "is_distributed_loading_by_transformers", False) or is_deepspeed_zero3_enabled()
    is_sharded |= AcceleratorState().distributed_type == DistributedType.FSDP
    loss = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for problem, is_true in (
        # Neither a regression nor several classes at once have one distribution over classes.
        (f"regularizer={args.regularizer!r} and {loss}",
         args.uses_features and sample_loss in (squared_error, huber, multi_label)),
        ("an objective of the whole batch and several batches a step",
         objective is not None and args.gradient_accumulation_steps * args.world_size > 1),
        ("an objective of the whole batch and settings of DAIR's objective, which it does not read (regularizer, "
         "normalization, view_weights, lambda_warmup_steps, dair_lambda=auto)",
         objective is not None and (
             (args.uses_regularizer and args.regularizer != "sq") or args.normalization != "pair"
             or args.dair_lambda == AUTO or bool(args.lambda_warmup_steps) or args.view_weights is not None
         )),
        # Only there does the prefix of a row not depend on the rest of it.
        (f"share_prefixes and sample_loss={loss} instead of causal",
         args.share_prefixes is not None and sample_loss is not causal_nll),
        ("share_prefixes and an augmenter, whose partners are in no tree",
         args.share_prefixes is not None and augmenter is not None and args.uses_partners),
        (f"chunked_loss and {loss}, regularizer={args.regularizer!r} or an objective, which use logits",
         args.chunked_loss and (sample_loss not in TOKEN_LOSSES or args.uses_features or objective is not None)),
        # Its statistics would cover parts of the batch, twice.
        (f"gradient_cache and batch norm ({', '.join(norms[:1])})", args.gradient_cache is not None and bool(norms)),
        # Ranks would run different numbers of forwards, or of projections of chunks, and wait for each other.
        ("forward_mode='separate', pair_dropout='shared', share_prefixes, gradient_cache or chunked_loss, and a model "
         "sharded by FSDP or ZeRO-3", is_sharded and runs_several),
    ):  # fmt: skip
        if is_true:
            raise DataError(f"{problem} cannot be combined")
    refuse_virtual_tokens(model)


def refuse_unsupported_launch(
    args: DAIRConfig, train_dataset: Any, compute_loss_func: Any = None, model: Any = None
) -> None:
    """Refuse settings that would split pairs, repeat rows or hang, and losses that are no losses of rows."""
    if compute_loss_func is not None or args.label_smoothing_factor:
        raise DataError(
            "compute_loss_func, label_smoothing_factor: expected None and 0, since the objective needs the losses of "
            "rows; pass sample_loss instead"
        )
    config = model.config.get_text_config() if isinstance(model, PreTrainedModel | PeftModel) else None
    if getattr(config, "output_router_logits", False) and getattr(config, "router_aux_loss_coef", 0):
        raise DataError(
            "output_router_logits=True in the model's configuration: expected False, since the losses of rows do not "
            "contain the loss of the router"
        )
    if args.n_gpu > 1:
        raise DataError(
            f"expected one GPU per process, since torch.nn.DataParallel would split pairs, got {args.n_gpu}; start "
            "with `accelerate launch`, or set CUDA_VISIBLE_DEVICES"
        )
    parallelism = args.parallelism_config
    if parallelism is None and os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "").lower() == "true":
        parallelism = ParallelismConfig()  # as `accelerate launch` set it
    if parallelism is not None and (parallelism.cp_size > 1 or parallelism.sp_size > 1):
        raise DataError(
            "parallelism_config: expected cp_size=1 and sp_size=1, since both split dimension 1 of a batch, the views "
            f"of pairs, got {parallelism.cp_size} and {parallelism.sp_size}"
        )
    if args.dataloader_persistent_workers and isinstance(train_dataset, (EpochPairs, TensorPairs)):
        raise DataError(
            "dataloader_persistent_workers=True: expected False with partners that change in every epoch, since "
            f"workers would repeat the first epoch of {type(train_dataset).__name__}"
        )
    args.accelerator_config.dispatch_batches = False  # None would mean True for a stream
    if args.world_size > 1 and not args.accelerator_config.even_batches:
        raise DataError("accelerator_config even_batches=False: expected True, since other ranks would wait forever")


def require_columns(args: DAIRConfig, model: Any, data: Any, known: Collection[str], name: str) -> None:
    """Refuse data without the column of `share_prefixes`, or without any input of the model among `known` columns."""
    if isinstance(data, TensorPairs):
        columns = list(data.views[0]) if isinstance(data.views[0], Mapping) else None
    else:
        columns = columns_of(data)
    if not columns or is_transformed(data):
        return
    if args.share_prefixes is not None and args.share_prefixes not in columns:
        raise DataError(f"share_prefixes={args.share_prefixes!r}: expected this column in {name}, got {columns}")
    main_input, others = getattr(model, "main_input_name", None), {*LABEL_COLUMNS, ROW_ID, PADDING_ROW}
    if args.remove_unused_columns and main_input in known:
        # The model would fail within, at None.
        if not any(column in known and parse_column(column)[1] not in others for column in columns):
            texts = f", or texts as {'; '.join(map(str, FORMS))}" if main_input == INPUT_IDS else ""
            expected = f"inputs of {type(model).__name__}, such as {main_input}{texts}"
            raise DataError(f"{name}: expected {expected}, got the columns {columns}")
