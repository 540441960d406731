"""The warpers of transformers that sort a whole row, several times as fast on the CPU.

What they keep is what the library keeps: sorted values are the same however they were sorted, and everything
behind the sort is left to PyTorch. Other devices sort well by themselves, and take the library's own.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.generation import logits_process as library

from groundspeed.jit import kernel

__all__ = ["TopP", "Typical"]

_DIGIT = 11
"""Bits a pass of the sort looks at: three passes over 32, with counters that stay in the first cache."""

_PER_UNIT = 16
_BINS = 40 * _PER_UNIT
"""Scores are told apart by so much at first, and those further below the best one not at all."""

_MANY = 4096
"""So many tokens in one bin are no longer quickly sorted."""

_UNSURE = -1


class TopP(library.TopPLogitsWarper):  # type: ignore[misc]
    """Keeps the most probable tokens that together have ``top_p`` (Holtzman et al. 2020)."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ids [1, text], scores float32 [1, vocab] -> [1, vocab]."""
        if scores.device.type != "cpu":
            kept: torch.Tensor = super().__call__(input_ids, scores)
            return kept
        row = scores[0].numpy()
        rest = np.float32(1 - self.top_p)
        removed, edge, level = _edge(row, scores[0].softmax(-1).numpy(), np.float64(rest))
        if removed == _UNSURE:
            ascending, _ = _sorted(row, row)
            removed = np.count_nonzero(_masses(ascending)[:-1] <= rest)
            edge = ascending[removed]
            level = removed > 0 and ascending[removed - 1] == edge
        if level:
            row = row.copy()
            row[_lowest(row, removed)] = self.filter_value
        else:
            row = np.where(row < edge, np.float32(self.filter_value), row)
        return torch.from_numpy(row)[None]


class Typical(library.TypicalLogitsWarper):  # type: ignore[misc]
    """Keeps the tokens whose information is nearest to the entropy (Meister et al. 2023)."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ids [1, text], scores float32 [1, vocab] -> [1, vocab]."""
        if scores.device.type != "cpu":
            kept: torch.Tensor = super().__call__(input_ids, scores)
            return kept
        row = scores[0].numpy()
        information = -scores.log_softmax(-1)
        entropy = (information * torch.exp(-information)).nansum(-1, keepdim=True)
        distances = torch.abs(information - entropy)[0].numpy()
        rising, nearest = _sorted(distances, row)
        last = np.count_nonzero(_masses(nearest) < np.float32(self.mass))
        edge = rising[min(last, len(row) - 1)]
        return torch.from_numpy(np.where(distances > edge, np.float32(self.filter_value), row))[None]


def _masses(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the tokens up to each one have together, rounded as in the library."""
    masses: NDArray[np.float32] = torch.from_numpy(scores).softmax(-1).cumsum(-1).numpy()
    return masses


@kernel
def _edge(scores, probs, rest):
    """Where the improbable tokens end that have ``rest`` together, if that is sure without a sort.

    The library adds up the float32 softmax of the rising row. Its terms are these ``probs`` but for one
    factor, the rounding of the softmax's own sum. That has four lanes or more, of n / 4 terms at most, and
    every addition errs by 2**-24 of what its lane holds: below the edge that is ``rest`` of all.

    Args:
        scores: float32 [n].
        probs: float32 [n], their softmax.
        rest: In [0, 1).

    Returns:
        How many tokens lie below the edge or ``_UNSURE``, the score of the first one above, and whether the
        last one below has the same.
    """
    unsure = (_UNSURE, scores[0], False)
    top = scores.max()
    masses, counts = np.zeros(_BINS), np.zeros(_BINS, np.int64)
    for i in range(len(scores)):
        if probs[i] > 0:
            at = _bin(scores[i], top)
            masses[at] += probs[i]
            counts[at] += 1
    whole = masses.sum()
    mass, removed, at = 0.0, len(scores) - counts.sum(), _BINS - 1
    while at >= 0 and not mass + masses[at] > rest * whole:
        mass += masses[at]
        removed += counts[at]
        at -= 1
    if at < 0 or counts[at] > _MANY:  # at < 0 where a score is no number, too
        return unsure
    inside = np.empty((2, counts[at]), np.float32)
    found = 0
    for i in range(len(scores)):
        if probs[i] > 0 and _bin(scores[i], top) == at:
            inside[:, found] = scores[i], probs[i]
            found += 1
    inside[0].sort()
    inside[1].sort()
    for i in range(found):
        before, mass = mass, mass + inside[1, i]
        if mass > rest * whole:
            kept = len(scores) - removed - i
            slack = rest * ((rest * len(scores) + kept) * 2.0**-26 + 2.0**-21)
            sure = before / whole < rest - slack and mass / whole > rest + slack
            level = i > 0 and inside[0, i - 1] == inside[0, i]
            return (removed + i, inside[0, i], level) if sure else unsure
    return unsure


@kernel
def _bin(score, top):
    return int(min((top - score) * np.float32(_PER_UNIT), np.float32(_BINS - 1)))


@kernel
def _sorted(keys, values):
    """Both float32 [n] in rising order of ``keys``, of equals the first first: a radix sort.

    The bits of a float rise with it once all of a negative one are turned over, and the sign of the others.
    """
    n = len(keys)
    sign, all_bits = np.uint32(1 << 31), np.uint32((1 << 32) - 1)
    mask = np.uint32((1 << _DIGIT) - 1)
    bits = keys.view(np.uint32)
    ranks, other_ranks = np.empty(n, np.uint32), np.empty(n, np.uint32)
    carried, other_carried = values.copy(), np.empty(n, np.float32)
    counts = np.zeros((3, 1 << _DIGIT), np.int64)
    for i in range(n):
        ranks[i] = bits[i] ^ (all_bits if bits[i] & sign else sign)
        for digit in range(3):
            counts[digit, (ranks[i] >> np.uint32(_DIGIT * digit)) & mask] += 1
    for digit in range(3):
        places = np.cumsum(counts[digit]) - counts[digit]
        for i in range(n):
            bucket = (ranks[i] >> np.uint32(_DIGIT * digit)) & mask
            other_ranks[places[bucket]] = ranks[i]
            other_carried[places[bucket]] = carried[i]
            places[bucket] += 1
        ranks, other_ranks = other_ranks, ranks
        carried, other_carried = other_carried, carried
    for i in range(n):
        ranks[i] ^= sign if ranks[i] & sign else all_bits
    return ranks.view(np.float32), carried


@kernel
def _lowest(row, count):
    """The ``count`` tokens that a sort puts first, which of level ones at the end is up to the sort.

    PyTorch's is not stable: on Linux it is the introsort of libstdc++. Its halves do not depend on each
    other, so it is enough to follow those with the cut in them (quickselect, Hoare 1961). Where PyTorch
    sorts otherwise, it keeps others of the same probability.

    Args:
        row: float32 [n], no NaN.
        count: In (0, n).

    Returns:
        int64 [count].
    """
    values, order = row.copy(), np.arange(len(row))
    places = np.empty((2, len(row)), np.int32)
    first, last = 0, len(row)
    while last - first > 16 and first != count:
        cut = _partition(values, order, first, last, places)
        if cut <= count:
            first = cut
        else:
            last = cut
    for i in range(first + 1, last):
        value, token = values[i], order[i]
        place = i
        while place > first and value < values[place - 1]:
            values[place], order[place] = values[place - 1], order[place - 1]
            place -= 1
        values[place], order[place] = value, token
    return order[:count]


@kernel
def _partition(values, order, first, last, places):
    """Part ``values[first:last]`` by the median of three, and ``order`` with them, as Hoare's partition does.

    Its two pointers stop at the same places; listing them first takes no branches that cannot be foretold.

    Returns:
        Where the upper part begins.
    """
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    if values[a] < values[b]:
        median = b if values[b] < values[c] else c if values[a] < values[c] else a
    else:
        median = a if values[a] < values[c] else c if values[b] < values[c] else b
    _swap(values, order, first, median)
    pivot = values[first]
    not_below, not_above = places
    low = high = 0
    for i in range(first + 1, last):
        not_below[low] = i
        low += values[i] >= pivot
    for i in range(last - 1, first, -1):
        not_above[high] = i
        high += values[i] <= pivot
    swapped = 0
    while swapped < min(low, high) and not_below[swapped] < not_above[swapped]:
        _swap(values, order, not_below[swapped], not_above[swapped])
        swapped += 1
    cut = not_above[swapped - 1] if swapped else last
    return min(cut, not_below[swapped]) if swapped < low else cut


@kernel
def _swap(values, order, i, j):
    values[i], values[j] = values[j], values[i]
    order[i], order[j] = order[j], order[i]
