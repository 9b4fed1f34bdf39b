"""Adversarial embeddings: an attack on what a text model reads, after its words have become vectors.

Words cannot be moved a little, their embeddings can: projected gradient ascent within a ball about the embedding of
each token (Miyato et al., 2017; Zhu et al., 2020, "FreeLB").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.ascent import ascend, require_usable
from dair_hf.augment.attacks.attack import Attack
from dair_hf.augment.attacks.ball import Ball, rounded_inwards
from dair_hf.augment.attacks.input_loss import InputLoss, undisturbed
from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import full_precision

INPUT_IDS, INPUTS_EMBEDS, ATTENTION_MASK = "input_ids", "inputs_embeds", "attention_mask"
DECODER_INPUTS = "decoder_input_ids"


def perturb_embeddings(
    model: nn.Module, batch: Mapping[str, Any], attack: Attack, generator: torch.Generator | None = None
) -> Tensor:
    """The worst embeddings that the attack finds near those of each text.

    The norm is that of each token's perturbation: "l2", `||e~_t - e_t||_2 <= epsilon`; "linf", each entry of it on its
    own. Tokens that the attention mask hides stay what they are, bit for bit. The model is treated as in
    `adversarial.perturb`, and bounds are kept as there. Embeddings have no range, so the attack has none either
    (`lower=None, upper=None`); epsilon is in units of the embeddings, whose entries differ between models by orders of
    magnitude: look at theirs first.

    Args:
        model: A model of the Hugging Face library that takes `inputs_embeds` in place of `input_ids`.
        batch: Its inputs, `[N, ...]` each: `input_ids` `[N, T]`, `labels`, and what else it takes. An encoder-decoder
            gets decoder inputs from its labels where the batch has none.
        attack: The settings. `loss="cross_entropy"` is for texts with one class each; for sequences name the sample
            loss that the model is trained with, "seq2seq" or "causal".
        generator: On the device of the batch; draws the random starts.

    Returns:
        `inputs_embeds`, `[N, T, D]`, detached, of the type of the model's embeddings; with `epsilon=0` those.

    Raises:
        DataError: A batch without `input_ids` or a mask of another shape; an attack with a range; a model without
            embeddings; and as `adversarial.perturb`.
        NonFiniteLossError: A gradient is NaN or infinite.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = BertForSequenceClassification(config)
        >>> batch = {"input_ids": torch.tensor([[5, 6]]), "labels": torch.tensor([1])}
        >>> attack = Attack("l2", epsilon=0.5, step_size=0.25, steps=2, random_start=False, lower=None, upper=None)
        >>> attacked = perturb_embeddings(model, batch, attack)
        >>> moved = (attacked - model.get_input_embeddings()(batch["input_ids"])).norm(dim=-1)
        >>> moved.shape, bool((moved > 0).all() and (moved <= 0.5).all())
        (torch.Size([1, 2]), True)
    """
    _check(model, batch, attack)
    ids: Tensor = batch[INPUT_IDS]
    others = {name: values for name, values in batch.items() if name not in (INPUT_IDS, LABELS)}
    labels = batch.get(LABELS)
    make_decoder_inputs = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if make_decoder_inputs is not None and labels is not None and DECODER_INPUTS not in others:
        others[DECODER_INPUTS] = make_decoder_inputs(labels=labels)
    with undisturbed(model, ids.device):
        with torch.no_grad():
            embeddings: Tensor = model.get_input_embeddings()(ids)  # type: ignore[operator]
        require_usable(embeddings, attack, generator, INPUTS_EMBEDS)
        if attack.epsilon == 0 or len(ids) == 0:
            return embeddings
        mask = batch.get(ATTENTION_MASK)
        movable = (torch.ones_like(ids) if mask is None else mask).bool()[..., None]
        center = full_precision(embeddings)

        def forward(point: Tensor) -> Any:
            return model(inputs_embeds=point.to(embeddings.dtype), **others)

        ball = Ball.around(center, attack.norm, attack.epsilon, (2,), movable=movable)
        loss = InputLoss(forward, labels, attack.loss, center, INPUTS_EMBEDS)
        found = ascend(loss, ball, attack, generator, [str(row) for row in range(len(ids))])
    moved = rounded_inwards(found.to(embeddings.dtype), embeddings, found - center)
    return torch.where(movable, moved, embeddings)  # signed zeros of the padding as well


def _check(model: nn.Module, batch: Mapping[str, Any], attack: Attack) -> None:
    ids = batch.get(INPUT_IDS)
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        found = list(ids.shape) if isinstance(ids, Tensor) else f"only {sorted(batch)}"
        raise DataError(f"perturb_embeddings: the batch needs 'input_ids' [N, T]; found {found}")
    mask = batch.get(ATTENTION_MASK)
    if mask is not None and mask.shape != ids.shape:
        raise DataError(
            f"perturb_embeddings: attention_mask is {list(mask.shape)}, input_ids {list(ids.shape)}; which tokens may "
            "change is read from a mask of the same shape"
        )
    if attack.lower is not None or attack.upper is not None or attack.mean is not None:
        raise DataError(
            "perturb_embeddings: embeddings have no range and no channels; pass Attack(..., lower=None, upper=None) "
            "without mean and std"
        )
    if not hasattr(model, "get_input_embeddings"):
        raise DataError(f"perturb_embeddings: {type(model).__name__} has no get_input_embeddings(); give a text model")
