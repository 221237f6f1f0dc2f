"""Named streams of random numbers, each a pure function of its coordinates.

Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the
numbers at one coordinate do not depend on which others were drawn before. Nothing in biphasic
keeps a random state from one step to the next.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_MAX_COORDINATES = 3  # Philox counts in four words; the first is for the blocks of a stream
_FEISTEL_ROUNDS = 8


def stream(name: str, seed: int, *coordinates: int) -> np.random.Philox:
    """Return the bit stream `name` of `seed` at up to three non-negative coordinates.

    Streams with different names, seeds or coordinates are independent; each has 2**64 blocks.
    """
    if len(coordinates) > _MAX_COORDINATES or min(coordinates, default=0) < 0:
        raise ValueError("a stream takes up to three coordinates, each zero or more")
    key = int.from_bytes(hashlib.sha256(f"{name}:{seed}".encode()).digest()[:16], "little")
    padded = [*coordinates, 0, 0, 0][:_MAX_COORDINATES]
    return np.random.Philox(key=key, counter=np.array([0, *padded], dtype=np.uint64))


def uniforms(bits: np.random.Philox, count: int) -> NDArray[np.float64]:
    """Draw `count` numbers in [0, 1), 53 bits each."""
    # A float has 53 bits of mantissa. More would round up to 1.0 now and then.
    return (bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(bits: np.random.Philox, length: int) -> NDArray[np.int64]:
    """Return a random order of `0..length-1`, by sorting random keys (ties broken by index)."""
    return np.argsort(bits.random_raw(length), kind="stable").astype(np.int64)


def permute(bits: np.random.Philox, indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Map indices by a random bijection of `0..length-1`, without a table of that length.

    A Feistel network over the next power of four, walked until the result is in range.

    Reference: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 5.
    """
    # Both halves of a number have as many bits, so the domain is a power of four.
    half = max((max(length - 1, 1).bit_length() + 1) // 2, 1)
    mask = np.uint64((1 << half) - 1)
    keys = bits.random_raw(_FEISTEL_ROUNDS)
    values = indices.astype(np.uint64)
    walking = np.arange(len(values))
    # The network's domain is less than four times `length`, so a few rounds are enough.
    while len(walking):
        left, right = values[walking] >> np.uint64(half), values[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[walking] = (left << np.uint64(half)) | right
        walking = walking[values[walking] >= length]
    return values.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit values: the finaliser of splitmix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive_seed(name: str, seed: int) -> int:
    """Return a 63-bit seed for libraries that need one, such as torch."""
    # 63 bits, as torch's generators take signed numbers.
    return int.from_bytes(hashlib.sha256(f"{name}:{seed}".encode()).digest()[:8], "little") >> 1
