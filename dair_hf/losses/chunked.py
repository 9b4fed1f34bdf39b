"""Sequence losses without the logits of a whole batch: hidden states to losses, a few target tokens at a time.

The logits of a batch, `[N, T, V]`, are often the largest tensor of a step, and a loss holds several of that size. Here
the output projection is kept from running inside the model. The hidden states it would have seen are cut to those that
have a target, and each chunk of them goes through projection and cross-entropy by itself: its logits exist once in the
forward pass and once, computed again, in the backward pass (`projection.projected_nll`; under activation checkpointing
where the projection is more than a linear layer, such as one with adapters). Values and gradients are those of the full
logits, up to the order of sums; the projection is computed once more than without.

A model may change its logits after the projection. A bias outside the projection and a soft cap are known here; that
nothing else happens is verified on the first batch, where the losses of two rows are computed both ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX, causal_nll, full_precision, seq2seq_nll
from dair_hf.losses.projection import projected_nll

LOGITS_AT_ONCE = 2**24  # entries of a chunk: 64 MiB in float32
BIAS = "final_logits_bias"  # what BART and its kin add to the logits, outside the projection
SOFT_CAP = "final_logit_softcapping"
VERIFIED_ROWS = 2  # enough to see a wrong formula, and little memory beside a batch
LARGE_LOGIT = 100.0


class ChunkedLoss:
    """Losses of rows, `[N]`, from a model whose logits are a linear layer of its hidden states.

    BART's bias and Gemma's soft cap are applied; a model that changes its logits in another way is refused at the first
    batch. A projection that is tied to the embeddings, frozen, or adapted by LoRA is run as it is.

    Args:
        model: The model, without wrappers of engines.
        shifts_labels: Whether position t is judged by label t + 1, as in decoder-only models.
        tokens: Target tokens whose logits are held at once; None: as many as `LOGITS_AT_ONCE` allows.

    Raises:
        DataError: The model has no linear output projection, or changes its logits in a way that is not known.

    Example:
        >>> loss = ChunkedLoss(model, shifts_labels=False)  # doctest: +SKIP
        >>> outputs, losses = loss(model, {"input_ids": ids, "decoder_input_ids": shifted}, labels)  # doctest: +SKIP
        >>> losses.shape  # doctest: +SKIP
        torch.Size([32])
    """

    def __init__(self, model: nn.Module, shifts_labels: bool, tokens: int | None = None) -> None:
        find: Any = getattr(model, "get_output_embeddings", None)
        head = None if find is None else find()
        weight = getattr(head, "weight", None)
        if not isinstance(head, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} has no linear layer that makes its logits "
                "(get_output_embeddings); set chunked_loss=False"
            )
        if tokens is not None and tokens < 1:
            raise DataError(f"chunked_loss: tokens={tokens} must be at least 1")
        self.model = model
        self.head: nn.Module = head
        self.verified = False
        self.shifts_labels = shifts_labels
        self.tokens = max(1, LOGITS_AT_ONCE // len(weight)) if tokens is None else tokens
        self.soft_cap = _soft_cap(model)
        self.bias_owner = next(
            (part for part in model.modules() if isinstance(getattr(part, BIAS, None), Tensor)), None
        )

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> tuple[Any, Tensor]:
        """Run the model and compute the losses of the rows; the first batch with a target is verified before.

        Args:
            model: The model, in whatever an engine wrapped it.
            inputs: Its inputs, without labels, `[N, ...]`.
            labels: `[N, T]` token ids, -100 where there is no target.

        Returns:
            Its outputs, whose `logits` are a stand-in `[N, T, 1]`, and the losses `[N]`, nats per sequence; 0,
            connected to the graph, for a row without target.

        Raises:
            DataError: The model changes its logits in a way that is not known, or does not use its projection once.
        """
        if not self.verified:
            self._verify(inputs, labels)
        return self._run(model, inputs, labels)

    def _run(
        self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, scale: float = 1.0
    ) -> tuple[Any, Tensor]:
        with self._without_head() as seen:
            outputs = model(**inputs)
        if len(seen) != 1:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} used its output projection {len(seen)} times in a forward, "
                "where once is expected; set chunked_loss=False"
            )
        hidden = seen[0]
        if scale != 1.0:
            hidden = hidden * scale
        if self.shifts_labels:
            hidden, labels = hidden[:, :-1], labels[:, 1:]
        rows, places = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
        states, targets = hidden[rows, places], labels[rows, places]
        # A sum over nothing that still leads back to the model, for rows, and batches, without target.
        losses = full_precision(hidden[..., :0]).sum((1, 2))
        found = self._token_losses(states, targets)
        return outputs, losses.index_add(0, rows, found)

    def _token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """`-log p(target)` of hidden states `[M, d]`: `[M]`."""
        head: Any = self.head
        added = None if self.bias_owner is None else getattr(self.bias_owner, BIAS)[0]
        if type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks:
            bias = added if head.bias is None else head.bias if added is None else head.bias + added
            return projected_nll(states, head.weight, bias, targets, self.tokens, self.soft_cap)

        def judge(part: slice) -> Tensor:
            logits = head(states[part])
            logits = logits if added is None else logits + added.to(logits.dtype)
            if self.soft_cap is not None:
                logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
            return functional.cross_entropy(full_precision(logits), targets[part], reduction="none")

        starts = range(0, len(states), self.tokens)
        parts = [slice(start, start + self.tokens) for start in starts]
        if torch.is_grad_enabled():
            found = [checkpoint(judge, part, use_reentrant=False) for part in parts]
        else:
            found = [judge(part) for part in parts]
        return torch.cat(found) if found else full_precision(states[:, :0]).sum(1)

    @contextlib.contextmanager
    def _without_head(self) -> Iterator[list[Tensor]]:
        """While inside, the projection hands out one stand-in a position, and what it was given is kept."""
        seen: list[Tensor] = []

        def stand_in(hidden: Tensor) -> Tensor:
            seen.append(hidden)
            found: Tensor = _StandIn.apply(hidden, *self.head.parameters())
            return found

        bias = None if self.bias_owner is None else self.bias_owner._buffers[BIAS]
        self.head.forward = stand_in
        try:
            if self.bias_owner is not None and bias is not None:
                self.bias_owner._buffers[BIAS] = bias.new_zeros(1, 1)  # the whole one would make all logits of it
            yield seen
        finally:
            del self.head.forward
            if self.bias_owner is not None:
                self.bias_owner._buffers[BIAS] = bias

    def _verify(self, inputs: Mapping[str, Any], labels: Tensor) -> None:
        """Compare the losses of two rows with those of the model's own logits; without dropout or gradients.

        Twice: as they are, and with hidden states so long that logits reach 100. A soft cap hardly shows in the small
        logits of an untrained model, a bias hardly in large ones.
        """
        judged = labels[:, 1:] if self.shifts_labels else labels
        rows = (judged != IGNORE_INDEX).any(1).nonzero()[:VERIFIED_ROWS, 0]
        if len(rows) == 0:
            return
        part = {name: values[rows] if isinstance(values, Tensor) else values for name, values in inputs.items()}
        tokens = (judged[rows] != IGNORE_INDEX).sum(1)
        scale, refusal = 1.0, None
        with torch.no_grad(), evaluation_mode(self.model, labels.device):
            for _ in range(2):
                expected, projected = self._losses_of_full_logits(part, labels[rows], scale)
                _, found = self._run(self.model, part, labels[rows], scale=scale)
                # Both round the same projection, each in its own order: by a unit of its type or two for every target.
                largest = projected.abs().max().item()
                rounding = 2 * torch.finfo(projected.dtype).eps * largest * tokens
                relative = 1e-10 if expected.dtype == torch.float64 else 1e-5
                agrees = (found - expected).abs() <= relative * expected.abs() + rounding
                if bool((expected.isfinite() & ~agrees).any()):
                    refusal = self._refusal(expected, found, largest)
                scale = LARGE_LOGIT / largest if largest > 0 else 1.0
        if refusal is not None:
            raise refusal
        self.verified = True

    def _losses_of_full_logits(self, inputs: Mapping[str, Any], labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Losses of rows from the model's own logits, and what its projection made; hidden states times `scale`."""
        sample_loss = causal_nll if self.shifts_labels else seq2seq_nll
        seen: list[Tensor] = []
        hooks = (
            self.head.register_forward_pre_hook(lambda head, args: (args[0] * scale, *args[1:])),
            self.head.register_forward_hook(lambda head, args, projected: seen.append(projected)),
        )
        try:
            logits = self.model(**inputs).logits
        finally:
            for hook in hooks:
                hook.remove()
        return sample_loss(SimpleNamespace(logits=logits), labels), seen[-1] if seen else logits

    def _refusal(self, expected: Tensor, found: Tensor, largest: float) -> DataError:
        full, chunks = (", ".join(f"{value:.6g}" for value in values.tolist()) for values in (expected, found))
        return DataError(
            f"chunked_loss=True and {type(self.model).__name__}{_logit_settings(self.model)} cannot be combined: where "
            f"its output projection reaches {largest:.4g}, losses of rows are {full} from the model's own logits and "
            f"{chunks} in chunks. The model changes its logits after the projection in a way that is not known here; "
            "set chunked_loss=False"
        )


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put a model into evaluation mode; on exit its modes and the random state are as before."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


class _StandIn(torch.autograd.Function):
    """One zero a position that leads back to all that the logits would: DDP looks there for what a step uses."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.inputs = 1 + len(parameters)
        return hidden.new_zeros(*hidden.shape[:-1], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.inputs


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _soft_cap(model: nn.Module) -> float | None:
    found = getattr(_text_config(model), SOFT_CAP, None)
    return None if found is None else float(found)


def _logit_settings(model: nn.Module) -> str:
    """Settings of a model's configuration that speak of logits and are not known here, for an error."""
    config = _text_config(model)
    found = [
        f"{name}={value}"
        for name, value in (vars(config) if config is not None else {}).items()
        if "logit" in name and name != SOFT_CAP and type(value) in (int, float)
    ]
    return f" with {' and '.join(found)}" if found else ""
