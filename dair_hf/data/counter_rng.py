"""Random numbers by counter: a draw depends on what it is for, not on what was drawn before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dair_hf.errors import DataError

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15  # splitmix64: the step of its counter
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # and its two rounds of xor-shift and multiplication
LAST_SHIFT = 31
MANTISSA_BITS = 53


def uniform(rows: Tensor, seed: int, epoch: int, stream: str, count: int = 1) -> Tensor:
    """Numbers in [0, 1), always the same for the same `(seed, epoch, row, stream)`.

    `u = splitmix64(start(seed, epoch, stream, k) + row * gamma) / 2^64`, cut to 53 bits: each quantity that is drawn
    has a splitmix64 sequence of its own and a row is a place in it. So a batch may be cut or ordered in any way, run on
    any device or rank, and be drawn again after a resume. The k-th number does not depend on `count`.

    Args:
        rows: `[B]` int64, any values.
        seed: Seed of the run.
        epoch: Epoch; a constant for what is drawn once.
        stream: What is drawn, such as `"colored/label_noise"`; draws of two names are independent.
        count: Numbers a row, >= 1.

    Returns:
        `[B, count]` float64 on the device of `rows`.

    Raises:
        DataError: `rows` is no int64 vector, or `count` is below 1.

    Example:
        >>> uniform(torch.tensor([0, 1, 2]), seed=0, epoch=0, stream="angle").shape
        torch.Size([3, 1])
        >>> bool((uniform(torch.tensor([7]), 0, 0, "angle") == uniform(torch.tensor([3, 7]), 0, 0, "angle")[1]).all())
        True
    """
    if rows.dtype != torch.int64 or rows.ndim != 1:
        raise DataError(f"draws: rows must be int64 [B], found {rows.dtype} {list(rows.shape)}")
    if count < 1:
        raise DataError(f"draws: count={count} must be at least 1")
    starts = torch.tensor(_starts(seed, epoch, stream, count), device=rows.device)
    # int64 products and sums wrap around as uint64 ones do: the bits are the same.
    bits = rows[:, None] * _signed(GAMMA) + starts
    for shift, factor in MIX:
        bits = bits.bitwise_xor_(_shifted(bits, shift)).mul_(_signed(factor))
    bits = bits.bitwise_xor_(_shifted(bits, LAST_SHIFT))
    return _shifted(bits, 64 - MANTISSA_BITS).to(torch.float64).mul_(2.0**-MANTISSA_BITS)


def integers(rows: Tensor, seed: int, epoch: int, stream: str, high: int, count: int = 1) -> Tensor:
    """Integers in [0, high), each equally likely, drawn as `uniform` draws.

    Args:
        rows: `[B]` int64.
        seed: Seed of the run.
        epoch: Epoch.
        stream: What is drawn.
        high: Number of values, from 1 to 2^32.
        count: Numbers a row, >= 1.

    Returns:
        `[B, count]` int64 on the device of `rows`.

    Raises:
        DataError: `rows` is no int64 vector, or a number is out of range.

    Example:
        >>> sorted(set(integers(torch.arange(100), 0, 0, "digit", high=10).flatten().tolist())) == list(range(10))
        True
    """
    # Up to 2^32 no value is favoured by more than 2^-21 of its share.
    if not 1 <= high <= 1 << 32:
        raise DataError(f"draws: high={high} must lie between 1 and 2^32")
    return uniform(rows, seed, epoch, stream, count).mul_(high).to(torch.int64)


def subset(rows: Tensor, fraction: float, seed: int, stream: str) -> Tensor:
    """A random part of the rows: exactly `round(fraction * N)` of them, and a larger part holds the smaller ones.

    Args:
        rows: `[N]` int64, distinct.
        fraction: Share that is chosen, in [0, 1].
        seed: Seed of the run.
        stream: What is chosen.

    Returns:
        `[N]` bool on the device of `rows`.

    Raises:
        DataError: The fraction is not in [0, 1], or `rows` is no int64 vector.

    Example:
        >>> int(subset(torch.arange(10), 0.3, seed=0, stream="partner").sum())
        3
    """
    if not 0.0 <= fraction <= 1.0:
        raise DataError(f"fraction={fraction} must lie in [0, 1]: 0.2 is every fifth row")
    chosen = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    order = uniform(rows, seed, 0, stream)[:, 0].argsort(stable=True)
    chosen[order[: round(fraction * len(rows))]] = True
    return chosen


def generator_for(device: torch.device | str, *what: int | str) -> torch.Generator:
    """A generator whose numbers depend on what they are for and on nothing else.

    Args:
        device: Where its numbers are drawn.
        *what: Seed, step, rank, ... in any number.

    Returns:
        The generator.

    Example:
        >>> a, b = (torch.rand(1, generator=generator_for("cpu", 0, "attack", step)) for step in (7, 7))
        >>> bool(a == b)
        True
    """
    digest = hashlib.blake2b("/".join(map(str, what)).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))


@lru_cache(maxsize=256)
def _starts(seed: int, epoch: int, stream: str, count: int) -> tuple[int, ...]:
    # A cryptographic hash: no seeds, epochs or names have starts that are near each other by anything but chance.
    names = (f"{seed}/{epoch}/{place}/{stream}".encode() for place in range(count))
    digests = (hashlib.blake2b(name, digest_size=8).digest() for name in names)
    return tuple(int.from_bytes(digest, "little", signed=True) for digest in digests)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right filled with zeros; that of int64 tensors repeats the sign."""
    return (bits >> by).bitwise_and_(MASK >> by)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def require_seeds(name: str, seeds: Sequence[int]) -> None:
    """Refuse what no generator takes as a seed.

    Args:
        name: Name of the setting, for the message.
        seeds: Its values.

    Raises:
        DataError: A seed outside 0 to 2^32 - 1.
    """
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise DataError(f"{name}: {wrong[0]} is no seed; give integers from 0 to {2**32 - 1}")
