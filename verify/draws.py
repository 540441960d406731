"""Random draws that depend on a seed and a position, and on nothing else."""
# mypy: allow-untyped-defs

from __future__ import annotations

import math
import secrets

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from groundspeed.jit import kernel

__all__ = ["draw", "fresh_seed", "uniforms"]

_BITS = 52
"""Of each uniform number; with half a step added, float64 holds it exactly and it is neither 0 nor 1."""

_REACH = 41.0
"""Gumbel noise of 52 bits lies in (-3.61, 36.74): a token further below the best one can never win."""

_NEAREST = np.exp(-np.arange(_REACH + 1)) * (1 + 1e-9)
"""How far from 1 a uniform number u may lie for its noise to make up for another token that is 0, 1, 2, ...
better: noise is at most -log(1 - u), since -log(u) is at least 1 - u."""

# Third word of the counter: numbers of one kind never serve for another.
_TOKENS = 0
_UNIFORMS = 1


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
    floor = scores.max() - _REACH
    tokens, uniform = _contenders(scores, floor, np.uint64(seed), np.uint64(position), _NEAREST)
    return int(tokens[(scores[tokens] - np.log(-np.log(uniform))).argmax()])


def uniforms(count: int, seed: int, position: int) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), [count], independent of what ``draw`` uses at any position."""
    found: NDArray[np.float64] = _uniforms(count, np.uint64(seed), np.uint64(position))
    return found


def fresh_seed() -> int:
    """A random seed, short enough for every reader of JSON to keep it exactly."""
    return secrets.randbits(48)


@kernel
def _contenders(scores, floor, seed, position, nearest):
    """Tokens that may be the best with their noise, without the logarithms of all the others.

    Args:
        scores: float32 [vocab].
        floor: Tokens at or below cannot win.
        seed: uint64.
        position: uint64.
        nearest: ``_NEAREST``.

    Returns:
        Token ids, int64 [m], rising, and their uniform numbers, float64 [m].
    """
    starts, words = _noise(scores, floor, seed, position)
    tokens = np.empty(words.size, np.int64)
    uniform = np.empty(words.size)
    found = 0
    best = -np.inf  # at most the best noisy score so far; the slack is for logarithms that round otherwise
    for i in range(len(starts)):
        for lane in range(min(4, len(scores) - starts[i])):
            score = np.float64(scores[starts[i] + lane])
            if score <= floor:
                continue
            u = _uniform(words[i, lane])
            behind = best - score
            if behind >= 1.0 and (behind >= _REACH or 1.0 - u > nearest[int(behind)]):
                continue
            tokens[found] = starts[i] + lane
            uniform[found] = u
            found += 1
            best = max(best, score - math.log(-math.log(u)) - 1e-9)
    return tokens[:found], uniform[:found]


@kernel
def _noise(scores, floor, seed, position):
    """Random words of the tokens above ``floor``, in fours: first token, int64 [m], and words, uint64 [m, 4].

    Of four neighbours that all lie below, none are generated.
    """
    starts = np.empty(len(scores) // 4 + 1, np.int64)
    near = 0
    whole = len(scores) & ~3
    for start in range(0, whole, 4):
        above = False
        for token in range(start, start + 4):
            above |= scores[token] > floor
        starts[near] = start
        near += above
    if whole < len(scores):
        starts[near] = whole
        near += 1
    words = np.empty((near, 4), np.uint64)
    for i in range(near):
        # The lowest word of the counter runs within a draw, the next from draw to draw: no streams overlap.
        # numpy's generator, whose numbers these are, steps it before the first block.
        block = np.uint64(starts[i] // 4 + 1)
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = _philox(
            block, position, np.uint64(_TOKENS), seed
        )
    return starts[:near], words


@kernel
def _uniforms(count, seed, position):
    uniform = np.empty(count)
    for start in range(0, count, 4):
        words = _philox(np.uint64(start // 4 + 1), position, np.uint64(_UNIFORMS), seed)
        for lane in range(min(4, count - start)):
            uniform[start + lane] = _uniform(words[lane])
    return uniform


@kernel
def _uniform(word):
    return (np.float64(word >> np.uint64(64 - _BITS)) + 0.5) * 2.0**-_BITS


@intrinsic
def _high(typing_context, a, b):  # pragma: no cover - runs in the compiler
    """The upper half of the 128-bit product of two uint64."""

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        a, b = (builder.zext(argument, wide) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(a, b), ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@kernel
def _philox(c0, c1, c2, key):
    """A block of Philox4x64-10: four uint64 of a counter (c0, c1, c2, 0) and a key (key, 0)."""
    m0, m1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
    k0, k1 = key, np.uint64(0)
    c3 = np.uint64(0)
    for _ in range(10):
        c0, c1, c2, c3 = _high(m1, c2) ^ c1 ^ k0, m1 * c2, _high(m0, c0) ^ c3 ^ k1, m0 * c0
        k0 += np.uint64(0x9E3779B97F4A7C15)
        k1 += np.uint64(0xBB67AE8584CAA73B)
    return c0, c1, c2, c3
