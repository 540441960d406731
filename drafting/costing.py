"""The kernels of the budget, which run between two passes of the target: few instructions and little memory.

A pass leaves nothing of these in the processor's caches, and a dozen of numpy's functions then take ten times
as long as they would by themselves.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import math

import numpy as np

from groundspeed.jit import kernel

__all__ = ["follow_pass", "seconds_by_nodes", "worth_keeping"]


@kernel
def _share(knots, value):
    """The knot left of a value, and the right one's share of it; beyond the ends it is all the end's."""
    last = len(knots) - 1
    if last == 0 or value <= knots[0]:
        return 0, 0.0
    if value >= knots[last]:
        return last - 1, 1.0
    left = 0
    while knots[left + 1] < value:
        left += 1
    return left, (value - knots[left]) / (knots[left + 1] - knots[left])


@kernel
def _of(knot, left, right):
    """What a knot has of a value, by what ``_share`` says of it."""
    return 1.0 - right if knot == left else right if knot == left + 1 else 0.0


@kernel
def seconds_by_nodes(contexts, nodes, seconds, untried, context, doubt, most_doubt):
    """See ``CostModel.seconds``.

    Args:
        contexts: float64 [c], rising.
        nodes: int64 [k], rising from 0.
        seconds: float64 [c, k].
        untried: float64 [c, k].
        context: Tokens.
        doubt: By how much (of a logarithm) a size looks cheaper per step it is not tried.
        most_doubt: Of that in all.

    Returns:
        float64 [nodes[-1] + 1].
    """
    row, right = _share(contexts, context)
    hopeful = np.empty(len(nodes))
    least = math.inf
    for i in range(len(nodes) - 1, -1, -1):  # where a pass looks dearer than a larger one, it is noise
        here = 0.0
        for at, share in ((row, 1.0 - right), (row + 1, right)):
            if share > 0:
                here += share * seconds[at, i] * math.exp(-min(doubt * untried[at, i], most_doubt))
        least = min(least, here)
        hopeful[i] = least
    found = np.empty(nodes[-1] + 1)
    found[0] = hopeful[0]
    for i in range(1, len(nodes)):
        slope = (hopeful[i] - hopeful[i - 1]) / (nodes[i] - nodes[i - 1])
        for n in range(nodes[i - 1] + 1, nodes[i]):
            found[n] = hopeful[i - 1] + slope * (n - nodes[i - 1])
        found[nodes[i]] = hopeful[i]
    return found


@kernel
def follow_pass(contexts, nodes, seconds, untried, context, drafted, took, clip, pace, least, most, stale):
    """See ``CostModel.observe``; ``seconds`` and ``untried`` are changed in place.

    Args:
        contexts: float64 [c], rising.
        nodes: int64 [k], rising from 0.
        seconds: float64 [c, k].
        untried: float64 [c, k].
        context: Tokens.
        drafted: Draft nodes of the pass.
        took: Its seconds.
        clip: It counts as so much (of a logarithm) slower at most.
        pace: How fast all sizes follow.
        least: How much its own size follows beyond that, if it is tried all the time.
        most: And if it was tried long ago.
        stale: Steps without a try by which that is so.
    """
    row, below = _share(contexts, context)
    left, right = _share(nodes, drafted)
    expected = 0.0
    for c in range(len(contexts)):
        here = _of(c, row, below)
        if here > 0:
            expected += here * (1.0 - right) * seconds[c, left]
            if right > 0:
                expected += here * right * seconds[c, left + 1]
    error = min(math.log(took / expected), clip)
    for c in range(len(contexts)):
        here = _of(c, row, below)
        for n in range(len(nodes)):
            share = here * _of(n, left, right)
            own = share * min(max(untried[c, n] / stale, least), most)
            seconds[c, n] *= math.exp((pace + own) * error)
            untried[c, n] = (untried[c, n] + here) * (1.0 - share)


@kernel
def worth_keeping(probs, bounds, cost):
    """How many nodes of each tree pay for themselves, int64 [B]; see ``share_budget``.

    Args:
        probs: float32 [n], of the nodes of all trees, one tree after another.
        bounds: int64 [B + 1], where each tree begins, and n.
        cost: float64 [m + 1], c by number of nodes in all.
    """
    trees = len(bounds) - 1
    order = np.argsort(-probs, kind="mergesort")
    gain = float(trees)
    best = gain / cost[0]
    kept = 0
    for n in range(1, min(len(order), len(cost) - 1) + 1):
        gain += probs[order[n - 1]]
        if gain / cost[n] > best:
            best = gain / cost[n]
            kept = n
    counts = np.zeros(trees, np.int64)
    for node in order[:kept]:
        counts[np.searchsorted(bounds, node, "right") - 1] += 1
    return counts
