"""Counter-based random numbers: an oracle in Python integers, independence of the batch, and statistics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from dair_hf.data.counter_rng import integers, subset, uniform
from dair_hf.errors import DataError


def splitmix64(state: int) -> int:
    """Return `next()` of Vigna's public-domain splitmix64.c, after the addition, in integers of any size."""
    z = state % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def expected(row: int, seed: int, epoch: int, stream: str, place: int) -> float:
    name = hashlib.blake2b(f"{seed}/{epoch}/{place}/{stream}".encode(), digest_size=8).digest()
    start = sum(byte << (8 * position) for position, byte in enumerate(name))
    return (splitmix64(start + row * 0x9E3779B97F4A7C15) >> 11) / 2**53


def test_the_oracle_matches_the_published_sequence() -> None:
    """The first outputs of splitmix64 from state 0, as published with the reference implementation."""
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix64((i + 1) * gamma) for i in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, "a"), (2**40, 39, "rotated/angle"), (-1, 1, "ä")])
def test_draws_are_splitmix64(seed: int, epoch: int, stream: str) -> None:
    rows = [0, 1, 2, 59_999, 2**62, -1, -(2**63)]
    found = uniform(torch.tensor(rows), seed, epoch, stream, count=3)
    assert found.dtype == torch.float64
    assert found.tolist() == [[expected(row, seed, epoch, stream, place) for place in range(3)] for row in rows]


def test_draws_do_not_depend_on_the_batch() -> None:
    rows = torch.arange(1000)
    whole = uniform(rows, 3, 5, "angle", count=2)
    cut = torch.cat([uniform(part, 3, 5, "angle", count=2) for part in rows.split([1, 63, 64, 872])])
    assert torch.equal(whole, cut)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(rows[order], 3, 5, "angle", count=2), whole[order])
    assert torch.equal(uniform(rows, 3, 5, "angle"), whole[:, :1])
    assert uniform(rows[:0], 3, 5, "angle", count=2).shape == (0, 2)


def test_draws_differ_by_seed_epoch_stream_and_number() -> None:
    rows = torch.arange(100)
    kinds = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b"), (1, 1, "a"), (0, 11, "a"), (11, 0, "a")]
    drawn = torch.cat([uniform(rows, *kind, count=2) for kind in kinds], dim=1)
    assert len(set(drawn.flatten().tolist())) == drawn.numel()


def chi_square(numbers: np.ndarray, bins: int) -> float:
    counts = np.bincount((numbers * bins).astype(int), minlength=bins)
    mean = len(numbers) / bins
    return float(((counts - mean) ** 2 / mean).sum())


def by_row(epoch: int, stream: str) -> np.ndarray:
    return uniform(torch.arange(100_000), 7, epoch, stream)[:, 0].numpy()


DRAWN: dict[str, Callable[[], np.ndarray]] = {
    "rows": lambda: by_row(0, "angle"),
    "epochs": lambda: np.array([uniform(torch.tensor([5]), 7, epoch, "angle").item() for epoch in range(2000)]),
    "seeds": lambda: np.array([uniform(torch.tensor([5]), seed, 0, "angle").item() for seed in range(2000)]),
    "streams": lambda: np.array([uniform(torch.tensor([5]), 7, 0, f"s{k}").item() for k in range(2000)]),
    "places": lambda: uniform(torch.tensor([5]), 7, 0, "angle", count=5000)[0].numpy(),
}


@pytest.mark.parametrize("kind", list(DRAWN))
def test_draws_are_uniform_and_neighbours_uncorrelated(kind: str) -> None:
    """With 99 degrees of freedom one in a thousand exceeds 149.4, and one is below 61.1."""
    numbers = DRAWN[kind]()
    assert 0.0 <= numbers.min() <= numbers.max() < 1.0
    assert 61.1 < chi_square(numbers, 100) < 149.4
    for lag in (1, 2, 64):
        correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(len(numbers))


def test_the_same_rows_are_uncorrelated_between_epochs_and_streams() -> None:
    columns = [by_row(0, "angle"), by_row(1, "angle"), by_row(0, "colour"), by_row(1, "colour")]
    off_diagonal = np.corrcoef(columns)[np.triu_indices(4, 1)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(100_000)


def test_the_statistics_detect_a_bad_generator() -> None:
    weyl = (np.arange(100_000) * 0.618033988749895) % 1.0
    assert chi_square(weyl, 100) < 61.1
    assert abs(np.corrcoef(weyl[:-1], weyl[1:])[0, 1]) > 0.1


def test_integers_are_the_scaled_draws() -> None:
    rows = torch.arange(10_000)
    found = integers(rows, 1, 2, "digit", high=10)
    assert found.dtype == torch.int64
    assert found.tolist() == np.floor(uniform(rows, 1, 2, "digit").numpy() * 10).astype(int).tolist()
    counts = found.flatten().bincount(minlength=10).numpy()
    assert counts.sum() == 10_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9  # 9 degrees of freedom, one in a thousand
    assert integers(rows[:5], 1, 2, "digit", high=1).flatten().tolist() == [0] * 5


def test_subsets_have_the_requested_size_and_are_nested_and_random() -> None:
    rows = torch.arange(1000)
    for fraction in (0.0, 0.1, 0.25, 1.0):
        assert int(subset(rows, fraction, 0, "partner").sum()) == round(1000 * fraction)
    small, large = (subset(rows, fraction, 0, "partner") for fraction in (0.2, 0.5))
    assert bool((large | ~small).all())
    assert not torch.equal(small, subset(rows, 0.2, 1, "partner"))
    assert 60 < int(small[:500].sum()) < 140
    # The choice depends on the number of a row, not on its position.
    flipped = subset(rows.flip(0), 0.2, 0, "partner")
    assert torch.equal(flipped.flip(0), small)


@pytest.mark.parametrize("rows", [torch.arange(3, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int64)])
def test_rows_of_another_type_are_refused(rows: torch.Tensor) -> None:
    with pytest.raises(DataError, match="rows"):
        uniform(rows, 0, 0, "angle")
