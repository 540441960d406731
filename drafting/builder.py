"""Growing a draft tree node by node, where paths that begin alike share their nodes."""

from __future__ import annotations

import numpy as np

from groundspeed.drafting.base import DraftTree
from groundspeed.types import Source

__all__ = ["TreeBuilder"]

_LEAST = float(np.finfo(np.float32).tiny)
"""A path probability is above 0 by the contract."""


class TreeBuilder:
    """A draft tree that is being made.

    Attributes:
        token_ids: Of the nodes so far.
        parents: Of each, -1 for a child of the last committed token.
        probs: Path probability of each.
    """

    def __init__(self, budget: int, source: Source) -> None:
        """Start with no node.

        Args:
            budget: Most nodes.
            source: Of all of them.
        """
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.probs: list[float] = []
        self._budget = budget
        self._source = source
        self._children: dict[tuple[int, int], int] = {}

    @property
    def room(self) -> int:
        """Nodes that may still be added."""
        return self._budget - len(self.token_ids)

    def add(self, parent: int, token: int, prob: float) -> int | None:
        """Add a child; one that is there already has the larger of both probabilities from now on.

        Args:
            parent: A node, -1 for the last committed token.
            token: The child's token.
            prob: Path probability; cut down to the parent's.

        Returns:
            The node, None where there is no room for it.
        """
        prob = max(min(prob, self.probs[parent] if parent >= 0 else 1.0), _LEAST)
        node = self._children.get((parent, token))
        if node is not None:
            self.probs[node] = max(self.probs[node], prob)
            return node
        if self.room <= 0:
            return None
        node = self._children[parent, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.probs.append(prob)
        return node

    def tree(self) -> DraftTree:
        """What was grown; its nodes stand in the order in which they were added."""
        n = len(self.token_ids)
        return DraftTree(
            token_ids=np.array(self.token_ids, np.int32),
            parents=np.array(self.parents, np.int32),
            probs=np.array(self.probs, np.float32),
            source=np.full(n, self._source, np.uint16),
            origin=np.full(n, -1, np.int64),
        )
