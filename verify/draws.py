"""Random draws that depend on a seed and a position, and on nothing else."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw", "fresh_seed"]

_BITS = 52
"""Of each uniform number; with half a step added, float64 holds it exactly and it is neither 0 nor 1."""

_REACH = 41.0
"""Gumbel noise of 52 bits lies in (-3.61, 36.74): a token further below the best one can never win."""


def draw(scores: NDArray[np.float32], seed: int, position: int) -> int:
    """Draw a token from ``softmax(scores)`` by the Gumbel-max trick (Maddison et al. 2014, section 2).

    Every token has noise of its own, a function of (seed, position, token), from a counter-based generator
    (Philox4x64-10, Salmon et al. 2011). Whatever was drawn before, in whatever order, the same scores give
    the same token; scores that differ by rounding do so too, unless the two best are that close.

    Args:
        scores: [vocab], finite or -inf for tokens that are excluded; at least one is finite.
        seed: In [0, 2**64).
        position: Of the drawn token in its text.

    Returns:
        The token id.
    """
    near = np.flatnonzero(scores > scores.max() - _REACH)
    # The lowest word of the counter runs within a draw, the next from draw to draw: no streams overlap.
    stream = np.random.Philox(key=seed, counter=[0, position, 0, 0])
    bits = stream.random_raw(int(near[-1]) + 1)[near] >> np.uint64(64 - _BITS)
    uniform = (bits + 0.5) * 2.0**-_BITS
    return int(near[np.argmax(scores[near] - np.log(-np.log(uniform)))])


def fresh_seed() -> int:
    """A random seed, short enough for every reader of JSON to keep it exactly."""
    return secrets.randbits(48)
