"""What DAIRTrainer looks at before it starts: the model's loss, its decoder and dropout, settings that clash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import (
    LOSS_MAPPING,
    ForCausalLMLoss,
    ForMaskedLMLoss,
    ForSequenceClassificationLoss,
    ForTokenClassification,
)
from transformers.utils.generic import find_labels

from dair_hf.config import DAIRConfig
from dair_hf.data.collator import LABEL_COLUMNS, LABELS, TARGET_PREFIXES, VIEW_MASK, RowRules, flatten_views
from dair_hf.data.sampling import EpochPairs
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.losses.forwards import evaluating
from dair_hf.losses.packing import ATTENTION_FOR_PACKING
from dair_hf.losses.per_sample import (
    IGNORE_INDEX,
    SAMPLE_LOSSES,
    SampleLoss,
    causal_nll,
    huber,
    seq2seq_nll,
    squared_error,
)
from dair_hf.training.forward import PairLoss

LANGUAGE_LOSSES = ("seq2seq", "causal")
# Losses that models of transformers compute from `labels`; the others are a choice beside the model's own loss.
MODEL_LOSSES = (*LANGUAGE_LOSSES, "token_classification", "classification", "multi_label", "squared")
CLASS_LOSSES = ("classification", "token_classification", "soft_score")  # the largest logit is the answer
PROBLEM_LOSSES = {
    "regression": "squared",
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
}
ROWS_COMPARED = 2  # whose full logits are computed once before training
TOKENS_COMPARED = 64  # of each of these rows with `chunked_loss`, which is set where full logits need too much memory


def base_model_of(model: Any) -> Any:
    """The model inside adapters and compilation."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def derived_sample_loss(model: Any) -> str | None:
    """The name in `SAMPLE_LOSSES` of the loss that a model of transformers computes from its labels.

    It follows from the loss function that transformers holds for the class (`loss_type`, also of a parent class), from
    `problem_type` and `num_labels` of a classifier, and from `is_encoder_decoder` of a model that generates.

    Args:
        model: The model, possibly with adapters.

    Returns:
        The name; None where transformers does not tell, and for a module that is no `PreTrainedModel`.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> derived_sample_loss(GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1)))
        'causal'
    """
    base = base_model_of(model)
    if not isinstance(base, PreTrainedModel):
        return None
    config = base.config
    kinds = [getattr(base, "loss_type", None), *(kind.__name__ for kind in type(base).__mro__)]
    found = [LOSS_MAPPING[name] for kind in kinds for name in LOSS_MAPPING if name in (kind or "")]
    loss = found[0] if found else None
    if loss is ForSequenceClassificationLoss:
        # As transformers: the type of the labels decides where the configuration does not.
        undecided = "squared" if config.num_labels == 1 else "classification"
        return PROBLEM_LOSSES.get(config.problem_type, undecided)
    if loss is ForTokenClassification:
        return "token_classification"
    if loss in (ForCausalLMLoss, ForMaskedLMLoss) or (loss is None and can_generate(base)):
        unshifted = "token_classification" if loss is ForMaskedLMLoss else "causal"
        return "seq2seq" if getattr(config, "is_encoder_decoder", False) else unshifted
    return None


def can_generate(model: Any) -> bool:
    """Whether a model writes answers token by token."""
    base = base_model_of(model)
    asked = getattr(base, "can_generate", None)
    return bool(asked()) if callable(asked) else hasattr(base, "generate")


def resolve_sample_loss(sample_loss: str | SampleLoss | None, model: Any) -> tuple[SampleLoss, str | None]:
    """The loss of a row and its name.

    Args:
        sample_loss: A name of `SAMPLE_LOSSES`, a callable, or None: the model's own (`derived_sample_loss`).
        model: The model.

    Returns:
        The callable, and its name; None for a callable of the user's.

    Raises:
        DataError: There is no such name, or the model does not tell its loss.
    """
    if callable(sample_loss):
        return sample_loss, None
    name = derived_sample_loss(model) if sample_loss is None else sample_loss
    remedy = f"use one of {', '.join(SAMPLE_LOSSES)}, or pass a callable (outputs, labels) -> [rows]"
    if name is None:
        raise DataError(f"sample_loss: the loss of {type(base_model_of(model)).__name__} cannot be derived; {remedy}")
    if name not in SAMPLE_LOSSES:
        raise DataError(f"sample_loss={name!r} is unknown; {remedy}")
    return SAMPLE_LOSSES[name], name


def compare_with_own_loss(model: nn.Module, batch: Mapping[str, Any], pair_loss: PairLoss, name: str) -> None:
    """Refuse a sample loss whose mean over a few rows is not the loss that the model itself computes for them.

    The originals with the most targets are run twice without dropout: as in training, and by the model with its labels
    (mean over targets). With `chunked_loss` only `TOKENS_COMPARED` tokens of each row are run, from the first target
    on, where all inputs are tokens. The two must agree to 1e-4, or to 2e-2 where the model runs in half precision:
    logits are often widened after it. Random numbers that a model draws are drawn again by what follows.

    Args:
        model: The model.
        batch: A batch of `PairCollator`, on the model's device.
        pair_loss: Runs and judges the rows.
        name: Name of the sample loss.

    Raises:
        DataError: The two differ, or the model cannot compute its own loss from these labels.
    """
    kind = type(base_model_of(model))
    if LABELS not in find_labels(kind) or LABELS not in batch:
        return
    rows = pair_loss.target_counts(batch)[:, 0].argsort(descending=True, stable=True)[:ROWS_COMPARED]
    part = {column: values[rows, :1] for column, values in batch.items() if isinstance(values, Tensor)}
    part[VIEW_MASK] = torch.ones_like(part[VIEW_MASK])
    if pair_loss.chunked is not None:
        part = _few_tokens(part, model, pair_loss.shifts_labels)
    rtol = _tolerance(model, pair_loss.args)
    labels = part[LABELS][:, 0]
    described = f"labels {list(labels.shape)} {str(labels.dtype).removeprefix('torch.')}"
    with torch.no_grad(), evaluating(model, labels.device):
        outputs, error = _attempted(lambda: model(**flatten_views(part, part[VIEW_MASK].cpu().numpy())))
        if error:
            raise DataError(
                f"{kind.__name__} cannot compute its own loss from {described}: {error}; give the labels that the "
                "model takes, or pass sample_loss as a callable (outputs, labels) -> [rows]"
            )
        found, error = _attempted(lambda: pair_loss(model, part, with_partners=False))
    own = getattr(outputs, "loss", None)
    if not isinstance(own, Tensor) or own.numel() != 1 or not torch.isfinite(own):
        return
    if found is None:
        says = f"cannot be computed from {described} ({error})"
    elif not found.targets.any() or _is_close(mean := found.terms.original.sum() / found.targets.sum(), own, rtol):
        return
    else:
        says = f"is {mean:.6g} on average over the targets of {len(labels)} rows"
    fits = [other for other in MODEL_LOSSES if other != name and _fits(other, outputs, labels, own, rtol)]
    remedy = f"sample_loss={fits[0]!r} gives it" if fits else "it may hold further terms"
    raise DataError(
        f"sample_loss={name!r} {says}, but {kind.__name__} itself computes a loss of {own:.6g}; {remedy}. To train "
        "this loss all the same pass the function: from dair_hf.losses.per_sample import "
        f"{SAMPLE_LOSSES[name].__name__}"
    )


def _attempted(run: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `run` returns, or None and its error in one line."""
    try:
        return run(), None
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error):
            raise  # it says nothing about the labels, and `auto_find_batch_size` waits for it
        return None, " ".join(str(error).split())[:200]


def _few_tokens(part: dict[str, Tensor], model: nn.Module, shifts_labels: bool) -> dict[str, Tensor]:
    """A few tokens of rows `[N, 1, ...]`: those of the targets, and of the inputs where these stand beside them."""
    labels = part[LABELS]
    of_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    beside = [name for name in part if name != VIEW_MASK and (not of_decoder or name.startswith(TARGET_PREFIXES))]
    if any(part[name].shape != labels.shape for name in beside):
        return part  # images, or a mask of pairs of tokens, which cannot be cut with them
    # Where labels are shifted position t predicts label t + 1.
    has_target = (labels[..., int(shifts_labels) :] != IGNORE_INDEX).flatten(0, 1).any(0)
    begin = int(has_target.int().argmax()) if len(has_target) else 0
    return {**part, **{name: part[name][..., begin : begin + TOKENS_COMPARED].contiguous() for name in beside}}


def _tolerance(model: nn.Module, args: DAIRConfig) -> float:
    """Relative difference of two losses that rounding explains, by what the model computes in."""
    halves = (torch.float16, torch.bfloat16)
    is_half = args.mixed_precision != "no" or any(value.dtype in halves for value in model.parameters())
    return 2e-2 if is_half else 1e-4


def _is_close(mean: Tensor, own: Tensor, rtol: float) -> bool:
    return torch.allclose(mean.double().cpu(), own.double().cpu(), rtol=rtol, atol=1e-6)


def _fits(name: str, outputs: Any, labels: Tensor, own: Tensor, rtol: float) -> bool:
    sample_loss = SAMPLE_LOSSES[name]
    judged = labels[:, 1:] if getattr(sample_loss, "shifts_labels", False) and labels.ndim > 1 else labels
    targets = len(labels) if labels.is_floating_point() else (judged != IGNORE_INDEX).sum()
    losses, _ = _attempted(lambda: sample_loss(outputs, labels))  # labels may be of another shape
    return losses is not None and losses.shape == labels.shape[:1] and _is_close(losses.sum() / targets, own, rtol)


def row_rules(model: Any, kind: str | None, checks_labels: bool) -> RowRules:
    """What a model asks of its rows: labels of each view beside its tokens, ids within its vocabulary and classes.

    Args:
        model: The model.
        kind: Name of the loss of a row.
        checks_labels: Whether labels are what the model's own loss takes.

    Returns:
        The rules; limits only where the model tells them.
    """
    base: Any = base_model_of(model)
    config: Any = getattr(base, "config", None)
    limits: dict[str, int] = {}
    # Models of more than text may have ids beyond their vocabulary, which stand for images.
    if hasattr(config, "get_text_config") and config.get_text_config() is config:
        embeddings, _ = _attempted(getattr(base, "get_input_embeddings", lambda: None))
        if isinstance(embeddings, nn.Embedding):
            limits["input_ids"] = embeddings.num_embeddings
        if checks_labels and kind in (*LANGUAGE_LOSSES, "token_classification", "classification"):
            head, _ = _attempted(base.get_output_embeddings)
            classes = head.out_features if isinstance(head, nn.Linear) else config.num_labels
            limits.update(dict.fromkeys(LABEL_COLUMNS, classes))
    return RowRules(kind in ("causal", "token_classification"), limits)


def decoder_inputs_of(model: Any) -> Callable[..., Tensor] | None:
    """How an encoder-decoder shifts its labels to decoder inputs; None for every other model."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    return getattr(base_model_of(model), "prepare_decoder_input_ids_from_labels", None)


def dropout_rates(model: Any) -> dict[str, float]:
    """The dropout that is on while a model trains: name -> rate, of its layers and of rates its modules hold."""
    rates: dict[str, float] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.setdefault(path.rsplit(".", 1)[-1], module.p)
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                rates.setdefault(name, value)
    return {name: rate for name, rate in rates.items() if rate > 0}


def refuse_unsupported(
    args: DAIRConfig, sample_loss: SampleLoss, objective: Any = None, augmenter: Any = None, model: Any = None
) -> None:
    """Refuse settings of the model and the objective that cannot be combined; the message names both and the remedy.

    Raises:
        DataError: For the first such combination.
    """
    if args.uses_features and sample_loss in (squared_error, huber):
        raise DataError(
            f"regularizer={args.regularizer!r} and sample_loss={sample_loss.__name__} cannot hold together: a "
            "regression has no output distribution to compare; use a regularizer of the losses, sq or l1"
        )
    if objective is not None:
        for name, is_set in (
            (f"gradient_accumulation_steps={args.gradient_accumulation_steps}", args.gradient_accumulation_steps > 1),
            (f"{args.world_size} processes", args.world_size > 1),
            (f"normalization={args.normalization!r}", args.normalization != "pair"),
            (f"regularizer={args.regularizer!r} with method='dair'", args.uses_features),
        ):
            if is_set:
                raise DataError(
                    f"objective={type(objective).__name__} and {name} cannot hold together: it is a function of one "
                    "whole batch; use one process, a larger per_device_train_batch_size, normalization='pair' and a "
                    "regularizer of the losses"
                )
    _refuse_unsupported_chunks(args, sample_loss, objective)
    _refuse_unsupported_cache(args, model)
    _refuse_unsupported_packing(args, sample_loss, model)
    _refuse_unsupported_sharding(args, augmenter, model)


def refuse_unsupported_launch(
    args: DAIRConfig, kwargs: Mapping[str, Any], train_dataset: Any, augmenter: Any = None
) -> None:
    """Refuse, before processes and loaders are set up, settings that would part pairs or repeat rows.

    Raises:
        DataError: For the first such setting.
    """
    for name in ("fsdp", "deepspeed"):
        if augmenter is not None and (value := getattr(args, name, None)):
            raise DataError(
                f"augmenter and {name}={value!r} cannot hold together: partners are made with the whole model on each "
                "rank; use DDP, or make the partners beforehand"
            )
    if args.n_gpu > 1:
        raise DataError(
            f"{args.n_gpu} GPUs are visible to one process, which would enter torch.nn.DataParallel and split pairs "
            "apart; start with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    if args.dataloader_persistent_workers and isinstance(train_dataset, (EpochPairs, TensorPairs)):
        raise DataError(
            "dataloader_persistent_workers=True would keep showing the first epoch's partners of "
            f"{type(train_dataset).__name__}; leave it at its default, False"
        )
    launcher = args.accelerator_config
    if launcher.dispatch_batches:
        raise DataError(
            "accelerator_config dispatch_batches=True joins batches, which differ in length and number of views here; "
            "leave it unset: every process then reads its own batches"
        )
    launcher.dispatch_batches = False  # None would mean True for a stream
    if args.world_size > 1 and not launcher.even_batches:
        raise DataError(
            f"accelerator_config even_batches=False on {args.world_size} processes leaves some without a batch in the "
            "last step, which then waits for ever; leave it unset: rows repeated to fill up count nothing"
        )
    if kwargs.get("compute_loss_func") is not None:
        raise DataError("compute_loss_func reduces over the batch, which DAIR does itself; pass `sample_loss` instead")


def _refuse_unsupported_chunks(args: DAIRConfig, sample_loss: SampleLoss, objective: Any) -> None:
    if not args.chunked_loss:
        return
    name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for other, is_set in (
        (f"sample_loss={name}, which is none of tokens,", sample_loss not in (seq2seq_nll, causal_nll)),
        (f"regularizer={args.regularizer!r}, which compares logits,", args.uses_features),
        ("an objective of the whole batch, which may ask for logits,", objective is not None),
        (f"fsdp={args.fsdp!r}, which takes the projection apart between its uses,", bool(args.fsdp)),
        (f"deepspeed={args.deepspeed!r}, which takes the projection apart between its uses,", bool(args.deepspeed)),
    ):
        if is_set:
            raise DataError(f"chunked_loss=True and {other} cannot hold together; set chunked_loss=False")


def _refuse_unsupported_cache(args: DAIRConfig, model: Any) -> None:
    if args.gradient_cache is None:
        return
    remedy = "the same update comes from a smaller per_device_train_batch_size and gradient_accumulation_steps"
    if value := args.deepspeed:
        raise DataError(f"gradient_cache={args.gradient_cache} and deepspeed={value!r} cannot hold together; {remedy}")
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise DataError(
                f"gradient_cache={args.gradient_cache} and the batch norm {path!r} cannot hold together: its "
                "statistics would be those of a part of the batch; set gradient_cache=None"
            )


def _refuse_unsupported_packing(args: DAIRConfig, sample_loss: SampleLoss, model: Any) -> None:
    if not args.pair_packing:
        return
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for other, is_set in (
        (f"sample_loss={name}, which is not that of a decoder-only model,", sample_loss is not causal_nll),
        (f"attn_implementation={attention!r}, which would mask all by all,", attention not in ATTENTION_FOR_PACKING),
        ("the CPU, where these kernels have no backward pass,", args.device.type == "cpu"),
    ):
        if is_set:
            raise DataError(
                f"pair_packing=True and {other} cannot hold together: packing needs a decoder-only model on a GPU with "
                f"attn_implementation one of {', '.join(ATTENTION_FOR_PACKING)}; elsewhere pair_group_by_length or "
                "max_tokens_per_batch saves most of the padding"
            )


def _refuse_unsupported_sharding(args: DAIRConfig, augmenter: Any, model: Any) -> None:
    """What needs whole weights, or other numbers of forwards on the ranks, of a model sharded while it was loaded."""
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
                f"{name} and a model loaded with distributed_config cannot hold together: its weights are spread over "
                f"the ranks; leave {name.split('=')[0]} at its default, or load the model whole and use DDP"
            )
