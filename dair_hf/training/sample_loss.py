"""Sample loss of a model: derived from its class, resolved from a name, compared with the loss the model computes."""

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
from dair_hf.errors import DataError
from dair_hf.losses.chunked import evaluation_mode
from dair_hf.losses.per_sample import (
    IGNORE_INDEX,
    SAMPLE_LOSSES,
    SampleLoss,
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
    with torch.no_grad(), evaluation_mode(model, labels.device):
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
