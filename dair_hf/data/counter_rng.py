"""Counter-based random numbers: a draw depends on its key, not on earlier draws."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from dair_hf.errors import DataError

MASK = (1 << 64) - 1
# Constants of splitmix64: the step of its counter, two rounds of xor-shift and multiplication, a last shift.
GAMMA = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
MANTISSA_BITS = 53


def uniform(rows: Tensor, seed: int, epoch: int, stream: str, count: int = 1) -> Tensor:
    """Draw numbers in [0, 1) that depend on `(seed, epoch, row, stream)` only.

    The k-th number of a row is `u = splitmix64(start(seed, epoch, stream, k) + row * gamma) / 2^64`, cut to 53 bits:
    each stream is a splitmix64 sequence, and a row is a position in it. The numbers are the same however rows are
    batched, on any device or rank, and after a resume. The k-th number does not depend on `count`.

    Args:
        rows: `[B]` int64, any values.
        seed: Seed of the run.
        epoch: Epoch; a constant for quantities that are drawn once.
        stream: Name of the quantity, such as `"colored/label_noise"`; different names give independent draws.
        count: Numbers per row, >= 1.

    Returns:
        `[B, count]` float64 on the device of `rows`.

    Raises:
        DataError: `rows` is not an int64 vector, so that numbers would differ.

    Example:
        >>> uniform(torch.tensor([0, 1, 2]), seed=0, epoch=0, stream="angle").shape
        torch.Size([3, 1])
        >>> bool((uniform(torch.tensor([7]), 0, 0, "angle") == uniform(torch.tensor([3, 7]), 0, 0, "angle")[1]).all())
        True
    """
    if rows.dtype != torch.int64 or rows.ndim != 1:
        raise DataError(f"counter_rng: expected rows int64 [B], got {rows.dtype} {list(rows.shape)}")
    starts = torch.tensor(_starts(seed, epoch, stream, count), device=rows.device)
    # int64 products and sums wrap around like those of uint64: the bits are the same.
    bits = rows[:, None] * _signed(GAMMA) + starts
    for shift, factor in MIX:
        bits = bits.bitwise_xor_(_shift_right(bits, shift)).mul_(_signed(factor))
    bits = bits.bitwise_xor_(_shift_right(bits, LAST_SHIFT))
    return _shift_right(bits, 64 - MANTISSA_BITS).to(torch.float64).mul_(2.0**-MANTISSA_BITS)


def integers(rows: Tensor, seed: int, epoch: int, stream: str, high: int, count: int = 1) -> Tensor:
    """Draw integers in [0, high), each equally likely, in the same way as `uniform`.

    Args:
        rows: `[B]` int64.
        seed: Seed of the run.
        epoch: Epoch.
        stream: Name of the quantity.
        high: Number of values, from 1 to 2^32.
        count: Numbers per row, >= 1.

    Returns:
        `[B, count]` int64 on the device of `rows`.

    Example:
        >>> sorted(set(integers(torch.arange(100), 0, 0, "digit", high=10).flatten().tolist())) == list(range(10))
        True
    """
    # Up to 2^32 the probability of a value deviates by at most 2^-21 of itself.
    return uniform(rows, seed, epoch, stream, count).mul_(high).to(torch.int64)


def subset(rows: Tensor, fraction: float, seed: int, stream: str) -> Tensor:
    """Choose exactly `round(fraction * N)` rows at random; a larger fraction contains the rows of a smaller one.

    Args:
        rows: `[N]` int64, distinct.
        fraction: Share of the rows, in [0, 1].
        seed: Seed of the run.
        stream: Name of the choice.

    Returns:
        Mask of the chosen rows, `[N]` bool, on the device of `rows`.

    Example:
        >>> int(subset(torch.arange(10), 0.3, seed=0, stream="partner").sum())
        3
    """
    chosen = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    order = uniform(rows, seed, 0, stream)[:, 0].argsort(stable=True)
    chosen[order[: round(fraction * len(rows))]] = True
    return chosen


def generator_for(device: torch.device | str, *key: int | str) -> torch.Generator:
    """Return a generator seeded by the parts of a key alone, such as seed, step and rank."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))


@lru_cache(maxsize=256)
def _starts(seed: int, epoch: int, stream: str, count: int) -> tuple[int, ...]:
    # A cryptographic hash, so that the starts of different seeds, epochs and streams are unrelated.
    keys = (f"{seed}/{epoch}/{number}/{stream}".encode() for number in range(count))
    digests = (hashlib.blake2b(key, digest_size=8).digest() for key in keys)
    return tuple(int.from_bytes(digest, "little", signed=True) for digest in digests)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Shift to the right and fill with zeros; `>>` of int64 tensors repeats the sign."""
    return (bits >> by).bitwise_and_(MASK >> by)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
