"""Cross-entropy of a projection in chunks against that of all logits: values, gradients, precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dair_hf.losses.chunked import _projected_nll as projected_nll

M, D, V = 7, 5, 11


def parts(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    states, weight, bias = (torch.randn(*shape, generator=drawn).to(dtype) for shape in ((M, D), (V, D), (V,)))
    return states, weight, bias, torch.randint(0, V, (M,), generator=drawn)


def oracle(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, cap: float | None) -> Tensor:
    logits = nn.functional.linear(states, weight, bias)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    return nn.functional.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize("rows", [1, 3, 50])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_are_those_of_all_logits(rows: int, cap: float | None, has_bias: bool) -> None:
    states, weight, bias, targets = parts()
    weights = torch.linspace(-1, 2, M, dtype=torch.float64)  # different weights per row, also negative ones
    found = []
    for run in (lambda *a: projected_nll(*a, rows, cap), lambda *a: oracle(*a, cap)):
        leaves = [value.clone().requires_grad_() for value in (states, weight, bias)]
        losses = run(leaves[0], leaves[1], leaves[2] if has_bias else None, targets)
        (losses * weights).sum().backward()
        found.append([losses.detach(), *(leaf.grad for leaf in leaves[: 3 if has_bias else 2])])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


def test_gradients_agree_with_finite_differences() -> None:
    states, weight, bias, targets = parts()
    leaves = tuple(value.requires_grad_() for value in (states, weight, bias))
    assert torch.autograd.gradcheck(lambda *a: projected_nll(*a, targets, 3, 2.0), leaves)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_required_gradients_are_computed(wanted: tuple[bool, ...]) -> None:
    leaves = [value.requires_grad_(want) for value, want in zip(parts()[:3], wanted, strict=True)]
    projected_nll(*leaves, parts()[3], 2).sum().backward()
    assert tuple(leaf.grad is not None for leaf in leaves) == wanted


def test_no_rows() -> None:
    states, weight, bias, targets = (value[:0] if value.shape[0] == M else value for value in parts())
    losses = projected_nll(states.requires_grad_(), weight.requires_grad_(), bias, targets, 2)
    assert losses.shape == (0,) and losses.dtype == torch.float64
    losses.sum().backward()
    assert states.grad is not None and weight.grad is not None and not weight.grad.any()


def test_huge_logits_stay_finite() -> None:
    states, weight, bias, targets = parts()
    found = projected_nll(1e4 * states, weight, bias, targets, 2)
    torch.testing.assert_close(found, oracle(1e4 * states, weight, bias, targets, None))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_half_precision_is_summed_in_float32(kept: torch.dtype) -> None:
    """bfloat16 weights, or bfloat16 by autocast: float32 losses, gradients in the type of their tensors."""
    states, weight, bias, targets = parts(dtype=kept)
    leaves = [states.requires_grad_(), weight.requires_grad_()]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kept == torch.float32):
        losses = projected_nll(*leaves, bias, targets, 2)
    losses.sum().backward()
    assert losses.dtype == torch.float32
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = oracle(*exact, bias.double(), targets, None)
    expected.sum().backward()
    torch.testing.assert_close(losses.double(), expected, rtol=0.02, atol=0.05)
    for leaf, right in zip(leaves, exact, strict=True):
        assert leaf.grad is not None and leaf.grad.dtype == kept
        torch.testing.assert_close(leaf.grad.double(), right.grad, rtol=0.05, atol=0.05)
