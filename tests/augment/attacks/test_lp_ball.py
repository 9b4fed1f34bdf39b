"""Lp balls: bounds in exact fractions, projections against numpy, distribution of random starts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from dair_hf.augment.attacks.attack_loss import LpBall, round_inwards


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One row with all bytes over 255 and values of every magnitude."""
    drawn = torch.rand(300, generator=generator(), dtype=torch.float64) ** 6
    values = torch.cat([torch.arange(256, dtype=torch.float64) / 255, drawn, torch.tensor([0.0, 1.0])])
    return values.to(dtype)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [8 / 255, 0.1, 0.3, 1 / 3, 0.25, 1e-3, 1e-9, 2.0])
@pytest.mark.parametrize("center", ["pixels", "normalized"])
def test_linf_bounds_are_exact_and_tight(dtype: torch.dtype, epsilon: float, center: str) -> None:
    x = pixels(dtype) if center == "pixels" else (pixels(dtype) - 0.4) / 0.21
    ball = LpBall.around(x, "linf", epsilon)
    for edge, outwards in ((ball.low, -math.inf), (ball.high, math.inf)):
        further = torch.nextafter(edge, torch.full_like(edge, outwards))
        for here, reached, beyond in zip(x[0].tolist(), edge[0].tolist(), further[0].tolist(), strict=True):
            assert abs(Fraction(reached) - Fraction(here)) <= Fraction(epsilon)
            # The bound is rounded down to the dtype; no more than that may be missing.
            least = Fraction(epsilon) * (1 - Fraction(torch.finfo(dtype).eps))
            assert abs(Fraction(beyond) - Fraction(here)) > least
        # The comparison that users write, in this dtype and in a wider one.
        assert bool(((edge - x).abs() <= epsilon).all())
        assert float((edge.double() - x.double()).abs().max()) <= epsilon


def test_the_range_clips_the_ball_but_never_the_input() -> None:
    x = torch.tensor([[0.0, 0.02, 0.5, 0.99, 1.0]])
    ball = LpBall.around(x, "linf", 0.1, lower=0.0, upper=1.0)
    expected = [0.0, 0.0, 0.4, 0.89, 0.9], [0.1, 0.12, 0.6, 1.0, 1.0]
    np.testing.assert_allclose(ball.low[0], expected[0], atol=1e-7)
    np.testing.assert_allclose(ball.high[0], expected[1], atol=1e-7)
    assert bool((ball.low >= 0).all() and (ball.high <= 1).all())
    outside = LpBall.around(torch.tensor([[1.5, -0.5]]), "linf", 0.1, lower=0.0, upper=1.0)
    np.testing.assert_allclose(outside.low[0], [1.4, -0.5])
    np.testing.assert_allclose(outside.high[0], [1.5, -0.4])
    assert math.isinf(LpBall.around(x, "l2", 0.1).high.max().item())


def test_l2_projection_matches_numpy() -> None:
    x = torch.rand(6, 3, 4, 4, generator=generator())
    lengths = torch.tensor([0.0, 0.1, 0.49, 0.6, 3.0, 30.0]).view(-1, 1, 1, 1)
    step = torch.randn(x.shape, generator=generator(1))
    point = x + lengths * step / step.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    found = LpBall.around(x, "l2", 0.5, lower=0.0, upper=1.0).project(point)
    x64 = x.double().numpy()
    offset = np.clip(point.double().numpy(), 0.0, 1.0) - x64
    length = np.sqrt((offset**2).sum(axis=(1, 2, 3), keepdims=True))
    expected = x64 + offset * np.minimum(1.0, 0.5 / np.maximum(length, 1e-12))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert torch.equal(found[0], x[0])
    assert np.abs(expected - x64).max() > 0.05


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (2, 3, 224, 224), (64, 2)])
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 1e-3, 1e-6])
def test_l2_bounds_hold_in_float64_and_in_float32(shape: tuple[int, ...], epsilon: float) -> None:
    x = torch.rand(shape, generator=generator())
    ball = LpBall.around(x, "l2", epsilon, lower=0.0, upper=1.0)
    found = ball.project(x + torch.randn(shape, generator=generator(1)))
    exact = (found.double() - x.double()).flatten(1).norm(dim=1)
    assert exact.max().item() <= epsilon
    assert (found - x).flatten(1).norm(dim=1).max().item() <= epsilon
    assert bool((found >= 0).all() and (found <= 1).all())
    if epsilon == 0.5:
        assert exact.max().item() > 0.49999


def test_a_step_follows_the_sign_or_the_gradient() -> None:
    x, gradient = torch.zeros(1, 1, 1, 3), torch.tensor([[[[3.0, -4.0, 0.0]]]])
    linf = LpBall.around(x, "linf", 1.0).step(x, gradient, 0.25)
    assert linf.flatten().tolist() == [0.25, -0.25, 0.0]
    l2 = LpBall.around(x, "l2", 1.0).step(x, gradient, 0.25)
    np.testing.assert_allclose(l2.flatten(), [0.15, -0.2, 0.0], atol=1e-7)


def test_linf_starts_are_uniform_in_the_box() -> None:
    x = torch.full((500, 1, 4, 4), 0.5)
    found = LpBall.around(x, "linf", 0.2).sample(generator()) - x
    share = ((found / 0.2).flatten().double().numpy() + 1) / 2
    assert share.min() >= 0 and share.max() <= 1
    histogram = np.histogram(share, bins=10, range=(0, 1))[0]
    # 800 expected in each; 4.5 standard deviations are 121.
    assert np.abs(histogram - 800).max() < 121


def test_l2_starts_are_uniform_in_the_ball() -> None:
    x = torch.zeros(8000, 5)
    found = LpBall.around(x, "l2", 2.0).sample(generator()).double().numpy()
    radius = np.sqrt((found**2).sum(1)) / 2
    assert radius.max() <= 1
    # A share r^5 of the volume lies within radius r.
    histogram = np.histogram(radius**5, bins=10, range=(0, 1))[0]
    assert np.abs(histogram - 800).max() < 121
    # Mean 0 and the covariance r^2 / (d + 2) of a ball.
    assert np.abs(found.mean(0)).max() < 0.05
    np.testing.assert_allclose(np.cov(found.T), np.eye(5) * 4 / 7, atol=0.04)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_depend_on_the_generator_only(norm: str) -> None:
    x = torch.rand(3, 1, 4, 4, generator=generator())
    ball = LpBall.around(x, norm, 0.2, lower=0.0, upper=1.0)
    assert torch.equal(ball.sample(generator(5)), ball.sample(generator(5)))
    assert not torch.equal(ball.sample(generator(5)), ball.sample(generator(6)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_round_inwards_in_half_precision(dtype: torch.dtype) -> None:
    center = torch.rand(5000, generator=generator()).to(dtype)
    offset = (torch.rand(5000, generator=generator(1)) - 0.5) * 0.1
    rounded = (center.float() + offset).to(dtype)
    found = round_inwards(rounded, center, offset)
    assert bool(((rounded.float() - center.float()).abs() > offset.abs()).any()), "nothing was rounded outwards"
    assert bool(((found.float() - center.float()).abs() <= offset.abs()).all())
    back = (found.float() - rounded.float()).abs()
    assert bool((back <= torch.finfo(dtype).eps).all())  # at most one step of the dtype
    assert bool((back[(rounded.float() - center.float()).abs() <= offset.abs()] == 0).all())
