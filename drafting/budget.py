"""How much to draft: as many nodes as pay for themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import prune

__all__ = ["CostModel", "fit_budget"]


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """c(n): the time of a verification pass with n draft nodes relative to a plain step.

    Attributes:
        nodes: int64 [k], rising from 0: numbers of draft nodes that were timed.
        seconds: float64 [k], their times.
    """

    nodes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @property
    def max_nodes(self) -> int:
        """The largest tree that was timed; larger ones are not worth drafting."""
        return int(self.nodes[-1])

    def relative(self) -> NDArray[np.float64]:
        """float64 [max_nodes + 1]: c(0) = 1, c(1), ..., linear between what was timed."""
        curve = np.interp(np.arange(self.max_nodes + 1), self.nodes, self.seconds)
        # A larger pass is never cheaper; where it looks so, it is noise.
        return np.asarray(np.maximum.accumulate(curve) / curve[0])


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
