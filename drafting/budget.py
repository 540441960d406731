"""How much to draft: as many nodes as pay for themselves."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import prune

__all__ = ["CostModel", "fit_budget"]

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
        self._all_nodes = np.arange(self.nodes[-1] + 1)
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

    def seconds(self, context: int) -> NDArray[np.float64]:
        """float64 [max_nodes + 1]: times of passes with 0, 1, ... draft nodes behind ``context`` tokens."""
        share = _shares(self._contexts, context)
        with self._lock:
            hopeful = share @ (self._seconds * np.exp(-np.minimum(_DOUBT * self._untried, _MOST_DOUBT)))
        # A pass takes no longer than a larger one; where it looks so, it is noise.
        rising = np.minimum.accumulate(hopeful[::-1])[::-1]
        return np.interp(self._all_nodes, self.nodes, rising)

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
        here = _shares(self._contexts, context)[:, None]
        share: NDArray[np.float64] = here * _shares(self.nodes, nodes)
        with self._lock:
            error = min(math.log(seconds / float((share * self._seconds).sum())), _CLIP)
            own = share * np.minimum(np.maximum(self._untried / _STALE, _LEAST), _MOST)
            self._seconds *= np.exp((_PACE + own) * error)
            self._untried = (self._untried + here) * (1 - share)


def _shares(knots: NDArray[Any], value: float) -> NDArray[np.float64]:
    """What each of [k] knots has of a value between two of them; beyond the ends it is all the end's."""
    shares = np.zeros(len(knots))
    right = int(knots.searchsorted(value))
    if right == len(knots):
        shares[-1] = 1
    elif right == 0:
        shares[0] = 1
    else:
        left = knots[right - 1]
        shares[right] = (value - left) / (knots[right] - left)
        shares[right - 1] = 1 - shares[right]
    return shares


def fit_budget(tree: DraftTree, cost: NDArray[np.float64]) -> DraftTree:
    """Cut a tree down to the nodes that pay for themselves.

    With nodes sorted by path probability p1 >= p2 >= ..., keeps the n that maximise
    (1 + p1 + ... + pn) / c(n), the expected tokens per time of a plain step. Path probabilities never rise
    along a path, so the most probable nodes are a tree themselves.

    Args:
        tree: The draft, n nodes.
        cost: float64 [at least n + 1], c by number of nodes.
    """
    if not len(tree):
        return tree
    gain = np.ones(len(tree) + 1)
    gain[1:] += np.cumsum(-np.sort(-tree.probs), dtype=np.float64)
    return prune(tree, int(np.argmax(gain / cost[: len(tree) + 1])))
