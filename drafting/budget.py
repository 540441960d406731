"""How much to draft: as many nodes as pay for themselves."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.costing import follow_pass, seconds_by_nodes, worth_keeping
from groundspeed.drafting.tree import prune

__all__ = ["BatchCost", "CostModel", "share_budget", "warm_up", "worth"]

_PACE = 1 / 8  # how fast all sizes follow the machine as a whole
_LEAST, _MOST = 1 / 16, 1 / 2  # how much a step counts for its own size: tried all the time, or long ago
_STALE = 128  # steps without a try, by which what is known is taken to be wholly out of date
_CLIP = 0.3  # a step counts as so much (of a logarithm) slower at most; none is quick by accident
_DOUBT, _MOST_DOUBT = 5e-4, 1.0  # by how much (of a logarithm) a size looks cheaper per step it is not tried


class CostModel:
    """The time of a verification pass by its n draft nodes and the L tokens of context before it.

    A table of seconds, linear in n and in L between its entries. It starts from what was measured and follows
    the times of the steps as they happen: each step moves all sizes a little, since mostly it is the whole
    machine that has become slower or faster, and its own size some more. A size that is not tried looks
    cheaper with every step, so what is tried too little is tried again, and no bad measurement lasts; a wrong
    guess costs ``_DOUBT`` of the time at most. One model serves all requests of an engine, in any thread.

    Attributes:
        nodes: int64 [k], rising from 0: numbers of draft nodes that are kept apart.
    """

    def __init__(self, nodes: ArrayLike, seconds: ArrayLike, seconds_per_token: ArrayLike = 0.0) -> None:
        """Start from a(n) + b(n) L.

        Args:
            nodes: [k], rising from 0.
            seconds: [k], a: times of a pass without context.
            seconds_per_token: [k] or one for all, b: what each token of context adds.
        """
        self.nodes = np.asarray(nodes, np.int64)
        self._contexts = np.array([0, *(1 << np.arange(9, 21))], np.float64)
        self._seconds = np.asarray(seconds, np.float64) + np.multiply.outer(
            self._contexts, np.broadcast_to(seconds_per_token, self.nodes.shape)
        )
        self._untried = np.zeros_like(self._seconds)  # steps at this context since the size was tried
        self._lock = threading.Lock()

    @property
    def max_nodes(self) -> int:
        """The largest tree whose cost is known; larger ones are not worth drafting."""
        return int(self.nodes[-1])

    def beside(self, rows: int) -> CostModel:
        """A first guess for passes of so many more rows, and half as many times more nodes."""
        reach = self.max_nodes + self.max_nodes * rows // 2
        nodes = np.unique([*self.nodes, *range(self.max_nodes, reach, 16), reach])
        with self._lock:
            known = self._seconds.copy()
        # A single measurement may say that a large pass takes less; beyond it no time must become negative.
        slope = np.maximum(known[:, -1] - known[:, 0], 0) / max(self.nodes[-1], 1)
        wider = CostModel(nodes, np.zeros(len(nodes)))
        for context, row in enumerate(wider._seconds):
            at = nodes + rows
            row[:] = np.interp(at, self.nodes, known[context])
            row += np.maximum(at - self.nodes[-1], 0) * slope[context]
        return wider

    def seconds(self, context: int) -> NDArray[np.float64]:
        """float64 [max_nodes + 1]: times of passes with 0, 1, ... draft nodes behind ``context`` tokens."""
        with self._lock:
            found: NDArray[np.float64] = seconds_by_nodes(
                self._contexts, self.nodes, self._seconds, self._untried, context, _DOUBT, _MOST_DOUBT
            )
        return found

    def relative(self, context: int) -> NDArray[np.float64]:
        """c(n), float64 [max_nodes + 1]: the same, relative to the plain step."""
        seconds = self.seconds(context)
        return np.asarray(seconds / seconds[0])

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            nodes: Draft nodes of its pass, at most ``max_nodes``.
            context: Tokens in the KV cache before it.
            seconds: What it took; of a clock that stood still or went back, nothing is learnt.
        """
        if not 0 < seconds < math.inf:
            return
        with self._lock:
            follow_pass(
                self._contexts, self.nodes, self._seconds, self._untried, context, nodes, float(seconds),
                _CLIP, _PACE, _LEAST, _MOST, _STALE,
            )  # fmt: skip


class BatchCost:
    """What passes cost by the number of texts that share them; each number learns for itself."""

    def __init__(self, single: CostModel) -> None:
        """Start from what a pass of one text costs."""
        self._models = {1: single}

    def of(self, texts: int) -> CostModel:
        """The cost model of passes that so many texts share, each with one token and its draft nodes."""
        if texts not in self._models:
            self._models[texts] = self._models[1].beside(texts - 1)
        return self._models[texts]


def share_budget(trees: Sequence[DraftTree], cost: NDArray[np.float64]) -> list[DraftTree]:
    """Cut the trees of a pass down to the nodes that pay for themselves.

    Args:
        trees: See ``worth``.
        cost: See ``worth``.
    """
    return [prune(tree, count) for tree, count in zip(trees, worth(trees, cost), strict=True)]


def worth(trees: Sequence[DraftTree], cost: NDArray[np.float64]) -> list[int]:
    """How many nodes of each tree of a pass pay for themselves, the most probable ones.

    With the nodes of all B trees sorted by path probability p1 >= p2 >= ..., keeps the n that maximise
    (B + p1 + ... + pn) / c(n), the expected tokens per time of a plain pass. Path probabilities never rise
    along a path, so the most probable nodes of a tree are a tree themselves.

    Args:
        trees: The drafts, at least one.
        cost: float64 [m + 1], c by number of nodes in all; more than m are never kept.
    """
    bounds = np.array([0, *accumulate(map(len, trees))])
    counts: list[int] = worth_keeping(np.concatenate([tree.probs for tree in trees]), bounds, cost).tolist()
    return counts


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache, so that no pass waits for it."""
    cost = CostModel([0, 1], [1.0, 1.0])
    cost.observe(0, 0, 1.0)
    worth([DraftTree.empty()], cost.relative(0))
