"""Adversarial embeddings of text: projected gradient descent around the embedding of each token.

Source: Miyato et al., 2017; Zhu et al., 2020 ("FreeLB").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.attack_loss import AttackLoss, frozen
from dair_hf.augment.attacks.lp_ball import LpBall, round_inwards
from dair_hf.augment.attacks.pgd import Attack, check_inputs, pgd
from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import full_precision

INPUT_IDS, INPUTS_EMBEDS, ATTENTION_MASK = "input_ids", "inputs_embeds", "attention_mask"
DECODER_INPUTS = "decoder_input_ids"


def perturb_embeddings(
    model: nn.Module, batch: Mapping[str, Any], attack: Attack, generator: torch.Generator | None = None
) -> Tensor:
    """Return adversarial input embeddings of each text.

    The norm is taken per token: `||e~_t - e_t||_2 <= epsilon` for "l2", each entry on its own for "linf". Tokens hidden
    by the attention mask stay unchanged, bit for bit. State of the model and exactness of the bounds are as in
    `adversarial.perturb`. Embeddings have no range, so the attack must have none (`lower=None, upper=None`). Epsilon is
    in units of the embeddings, whose entries differ between models by orders of magnitude.
    """
    _check(model, batch, attack)
    ids: Tensor = batch[INPUT_IDS]
    others = {name: values for name, values in batch.items() if name not in (INPUT_IDS, LABELS)}
    labels = batch.get(LABELS)
    make_decoder_inputs = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if make_decoder_inputs is not None and labels is not None and DECODER_INPUTS not in others:
        others[DECODER_INPUTS] = make_decoder_inputs(labels=labels)
    with frozen(model, ids.device):
        with torch.no_grad():
            embeddings: Tensor = model.get_input_embeddings()(ids)  # type: ignore[operator]
        check_inputs(embeddings, attack, generator, INPUTS_EMBEDS)
        if attack.epsilon == 0 or len(ids) == 0:
            return embeddings
        attention_mask = batch.get(ATTENTION_MASK)
        mask = (torch.ones_like(ids) if attention_mask is None else attention_mask).bool()[..., None]
        center = full_precision(embeddings)

        def forward(point: Tensor) -> Any:
            return model(inputs_embeds=point.to(embeddings.dtype), **others)

        ball = LpBall.around(center, attack.norm, attack.epsilon, (2,), mask=mask)
        loss = AttackLoss(forward, labels, attack.loss, center, INPUTS_EMBEDS)
        point = pgd(loss, ball, attack, generator, [str(row) for row in range(len(ids))])
    perturbed = round_inwards(point.to(embeddings.dtype), embeddings, point - center)
    return torch.where(mask, perturbed, embeddings)  # keeps the signed zeros of padding, too


def _check(model: nn.Module, batch: Mapping[str, Any], attack: Attack) -> None:
    ids = batch.get(INPUT_IDS)
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        found = list(ids.shape) if isinstance(ids, Tensor) else f"only {sorted(batch)}"
        raise DataError(f"perturb_embeddings: the batch needs 'input_ids' [N, T]; found {found}")
    mask = batch.get(ATTENTION_MASK)
    if mask is not None and mask.shape != ids.shape:
        raise DataError(
            f"perturb_embeddings: attention_mask has shape {list(mask.shape)}, input_ids {list(ids.shape)}; it must "
            "mask tokens, so give it the same shape"
        )
    if attack.lower is not None or attack.upper is not None or attack.mean is not None:
        raise DataError(
            "perturb_embeddings: embeddings have no range and no channels; pass Attack(..., lower=None, upper=None) "
            "without mean and std"
        )
    if not hasattr(model, "get_input_embeddings"):
        raise DataError(f"perturb_embeddings: {type(model).__name__} has no get_input_embeddings(); pass a text model")
