"""Sample loss of a model: derived from its class, resolved from a name, compared with the model's own loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from peft import PeftType
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

from dair_hf.data.collator import LABELS, VIEW_MASK, flatten_views
from dair_hf.data.row_rules import LABEL_COLUMNS, TARGET_PREFIXES, RowRules
from dair_hf.errors import DataError
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.losses.per_sample import IGNORE_INDEX, SAMPLE_LOSSES, SampleLoss
from dair_hf.training.forward.pair_loss import PairLoss

LANGUAGE_LOSSES = ("seq2seq", "causal")
# Losses that models of transformers compute from `labels`.
MODEL_LOSSES = (*LANGUAGE_LOSSES, "token_classification", "classification", "multi_label", "squared")
CLASS_LOSSES = ("classification", "token_classification", "soft_score")  # the largest logit is the prediction
PROBLEM_LOSSES = {
    "regression": "squared",
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
}
PER_POSITION = ("causal", "token_classification")  # losses of models with one output per token of the input
LENGTH_KEEPING = (PeftType.PREFIX_TUNING, PeftType.CARTRIDGE)  # adapters that add keys and values, but no outputs
LAST_TOKEN_HEAD = "score"  # name in transformers of a head that reads the last token before the padding
ROWS_COMPARED = 2  # rows whose full logits are computed once before training
TOKENS_COMPARED = 64  # tokens of each of them with `chunked_loss`, since full logits may not fit into memory


def base_model_of(model: Any) -> Any:
    """Return the model without adapters and compilation."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def derived_sample_loss(model: Any) -> str | None:
    """Derive the name in `SAMPLE_LOSSES` of the loss that a model of transformers computes from its labels.

    It depends on the loss function of the class in transformers (`loss_type`, also of a parent class), on
    `problem_type` and `num_labels` of a classifier, and on `is_encoder_decoder` of a model that generates. None for
    other models.
    """
    base = base_model_of(model)
    if not isinstance(base, PreTrainedModel):
        return None
    config = base.config
    kinds = [getattr(base, "loss_type", None), *(kind.__name__ for kind in type(base).__mro__)]
    loss = next((LOSS_MAPPING[name] for kind in kinds for name in LOSS_MAPPING if name in (kind or "")), None)
    if loss is ForSequenceClassificationLoss:
        default = "squared" if config.num_labels == 1 else "classification"
        return PROBLEM_LOSSES.get(config.problem_type, default)
    if loss is ForTokenClassification:
        return "token_classification"
    if loss in (ForCausalLMLoss, ForMaskedLMLoss) or (loss is None and can_generate(base)):
        if getattr(config, "is_encoder_decoder", False):
            return "seq2seq"
        return "token_classification" if loss is ForMaskedLMLoss else "causal"
    return None


def can_generate(model: Any) -> bool:
    """Return whether a model generates answers."""
    base = base_model_of(model)
    method = getattr(base, "can_generate", None)
    return bool(method()) if callable(method) else hasattr(base, "generate")


def refuse_virtual_tokens(model: Any) -> None:
    """Refuse adapters that put virtual tokens before the tokens of a decoder-only model or a classifier of tokens.

    Their outputs are longer than the labels. Prefix tuning adds keys and values only.
    """
    adapter: Any = getattr(model, "active_peft_config", None)
    if not getattr(adapter, "is_prompt_learning", False) or adapter.peft_type in LENGTH_KEEPING:
        return
    base = base_model_of(model)
    if getattr(base.config, "is_encoder_decoder", False):
        return
    if derived_sample_loss(base) in PER_POSITION or hasattr(base, LAST_TOKEN_HEAD):
        kind = getattr(adapter.peft_type, "value", adapter.peft_type)
        raise DataError(
            f"{kind}: virtual tokens move the outputs of {type(base).__name__} away from their labels; use prefix "
            "tuning (peft.PrefixTuningConfig) or LoRA (peft.LoraConfig)"
        )


def resolve_sample_loss(
    sample_loss: str | SampleLoss | None, model: Any, columns: Collection[str] | None = None
) -> tuple[SampleLoss, str | None]:
    """Return a sample loss and its name; `columns` of the data are for the message."""
    if callable(sample_loss):
        return sample_loss, None
    name = derived_sample_loss(model) if sample_loss is None else sample_loss
    if name not in SAMPLE_LOSSES:
        data = f" with the columns {columns}" if columns else ""
        raise DataError(
            f"sample_loss={name!r} of {type(base_model_of(model)).__name__}{data}: expected one of "
            f"{', '.join(SAMPLE_LOSSES)}, or a callable (outputs, labels) -> [rows]; with the columns text and label, "
            "the name of an encoder is loaded as a classifier, unless the data are a stream"
        )
    return SAMPLE_LOSSES[name], name


def compare_with_own_loss(model: nn.Module, batch: Mapping[str, Any], pair_loss: PairLoss, name: str) -> None:
    """Refuse a sample loss whose mean over a few rows differs from the loss that the model computes for them.

    The originals with the most targets are run twice without dropout: as in training, and by the model with its labels.
    The random state is restored.
    """
    model_class = type(base_model_of(model))
    if LABELS not in find_labels(model_class) or LABELS not in batch:
        return
    rows = pair_loss.target_rule.counts(batch)[:, 0].argsort(descending=True, stable=True)[:ROWS_COMPARED]
    few = {column: values[rows, :1] for column, values in batch.items() if isinstance(values, Tensor)}
    few[VIEW_MASK] = torch.ones_like(few[VIEW_MASK])
    if pair_loss.chunked is not None:
        few = _cut_tokens(few, model)
    few[LABELS] = pair_loss.target_rule.labels(few)
    with torch.no_grad(), evaluation_mode(model, few[LABELS].device):
        own = getattr(model(**flatten_views(few, few[VIEW_MASK].cpu().numpy())), "loss", None)
        result = pair_loss(model, few, with_partners=False)
    targets = result.targets.sum()
    if not isinstance(own, Tensor) or own.numel() != 1 or not torch.isfinite(own) or not targets:
        return
    mean = result.terms.original.sum() / targets
    halves = (torch.float16, torch.bfloat16)
    is_half = pair_loss.args.mixed_precision != "no" or any(value.dtype in halves for value in model.parameters())
    if torch.allclose(mean.cpu().double(), own.cpu().double(), rtol=2e-2 if is_half else 1e-4, atol=1e-6):
        return
    raise DataError(
        f"sample_loss={name!r}: expected {own:.6g} per target, as {model_class.__name__} computes from its labels, got "
        f"{mean:.6g}; set another one, or to train this loss anyway pass the function "
        f"dair_hf.losses.per_sample.{SAMPLE_LOSSES[name].__name__}"
    )


def _cut_tokens(batch: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Cut the targets of a batch `[N, 1, ...]` to a few tokens, and the inputs of a decoder-only model with them."""
    labels = batch[LABELS]
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    columns = [name for name in batch if name != VIEW_MASK]
    if is_encoder_decoder:
        columns = [name for name in columns if name.startswith(TARGET_PREFIXES)]
    if any(batch[name].shape != labels.shape for name in columns):
        return batch  # images, or a mask of pairs of tokens, cannot be cut like tokens
    has_target = (labels != IGNORE_INDEX).flatten(0, 1).any(0)
    begin = max(int(has_target.int().argmax()) - 1, 0) if len(has_target) else 0  # with the token that predicts it
    return {**batch, **{name: batch[name][..., begin : begin + TOKENS_COMPARED].contiguous() for name in columns}}


def row_rules(model: Any, loss_name: str | None, checks_labels: bool) -> RowRules:
    """Return the requirements on rows: labels per token, ids within the vocabulary and the classes, range of labels.

    `checks_labels` tells whether labels are for the model's own loss.
    """
    base: Any = base_model_of(model)
    config: Any = getattr(base, "config", None)
    limits: dict[str, int] = {}
    # In multimodal models, ids beyond the vocabulary may stand for images.
    if hasattr(config, "get_text_config") and config.get_text_config() is config:
        embeddings = head = None
        with contextlib.suppress(NotImplementedError):
            embeddings = base.get_input_embeddings()
        if isinstance(embeddings, nn.Embedding):
            limits["input_ids"] = embeddings.num_embeddings
        if checks_labels and loss_name in (*LANGUAGE_LOSSES, "token_classification", "classification"):
            with contextlib.suppress(NotImplementedError):
                head = base.get_output_embeddings()
            # Adapters may wrap the head.
            of_model = config.vocab_size if loss_name in LANGUAGE_LOSSES else config.num_labels
            classes = head.out_features if isinstance(head, nn.Linear) else of_model
            limits.update(dict.fromkeys(LABEL_COLUMNS, classes))
    # Beyond these labels the loss is negative.
    takes_probabilities = loss_name == "binary" or (loss_name == "multi_label" and checks_labels)
    is_encoder_decoder = getattr(config, "is_encoder_decoder", False)  # with such a loss, the loss itself is refused
    per_token = loss_name in PER_POSITION and not is_encoder_decoder
    return RowRules(per_token, per_token and checks_labels, limits, (0.0, 1.0) if takes_probabilities else None)


def decoder_inputs_of(model: Any) -> Callable[..., Tensor] | None:
    """Return the function of an encoder-decoder that shifts labels into decoder inputs; None for other models."""
    config: Any = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return None
    own = getattr(base_model_of(model), "prepare_decoder_input_ids_from_labels", None)
    start = getattr(config, "decoder_start_token_id", None)
    if own is not None or start is None or derived_sample_loss(model) != "seq2seq":
        return own
    from transformers.models.bart.modeling_bart import shift_tokens_right

    return lambda labels: shift_tokens_right(labels, config.pad_token_id, start)  # as NLLB and Whisper do in their loss
