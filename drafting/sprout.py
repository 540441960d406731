"""A draft tree while a model grows it."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.draft_probs import DraftProbs, Draws
from groundspeed.types import Source

__all__ = ["Offers", "Sprout"]


class Offers(NamedTuple):
    """What may follow a node, m tokens.

    Attributes:
        token_ids: int64 [m].
        probs: float64 [m], that each is accepted behind the node.
        cells: int64 [m], where hits are counted.
        draws: What was drawn of them, filled up with -1 to as many at each node; None where none were drawn.
    """

    token_ids: NDArray[np.int64]
    probs: NDArray[np.float64]
    cells: NDArray[np.int64]
    draws: Draws | None


class Sprout:
    """Nodes with their path probabilities; those that a model has read have slots and offers.

    Attributes:
        slots: Nodes by the order in which they were read.
    """

    def __init__(self, retrieved: DraftTree) -> None:
        """Start from a retrieved tree, perhaps an empty one, whose probabilities are the retriever's."""
        self._tokens: list[int] = retrieved.token_ids.tolist()
        self._parents: list[int] = retrieved.parents.tolist()
        self._probs: list[float] = [float(prob) for prob in retrieved.probs]
        self._source: list[int] = retrieved.source.tolist()
        self._origin: list[int] = retrieved.origin.tolist()
        self._children: list[dict[int, int]] = [{} for _ in range(len(retrieved) + 1)]
        for node, (parent, token) in enumerate(zip(self._parents, self._tokens, strict=True)):
            self._children[parent + 1][token] = node
        said = [*self._probs, 1.0]
        self._said = [prob / said[parent] for prob, parent in zip(self._probs, self._parents, strict=True)]
        self._offers: dict[int, Offers] = {}
        self._slot_of: dict[int, int] = {}
        self.slots: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def prob(self, node: int) -> float:
        """Of the path to a node; 1 for the root, -1."""
        return 1.0 if node < 0 else self._probs[node]

    def child(self, node: int, token: int) -> int | None:
        """The child of a node by its token."""
        return self._children[node + 1].get(token)

    def retrieved(self, node: int) -> dict[int, float]:
        """What the retriever says of a node's children, by token."""
        below = self._children[node + 1].items()
        return {token: self._said[child] for token, child in below if child < len(self._said)}

    def grown(self, path: list[int]) -> int:
        """How many tokens of a path from the root are nodes that were not retrieved."""
        found, node = 0, -1
        for token in path:
            child = self.child(node, token)
            if child is None:
                break
            found += child >= len(self._said)
            node = child
        return found

    def offers(self, node: int) -> Offers | None:
        """What was offered behind a node; None where it was not read."""
        return self._offers.get(node)

    def slot(self, node: int) -> int | None:
        """Where the model read a node; None where it did not."""
        return self._slot_of.get(node)

    def read(self, nodes: list[int]) -> DraftTree:
        """Give nodes slots; the tree of all that have some, in order."""
        for node in nodes:
            self._slot_of[node] = len(self.slots)
            self.slots.append(node)
        n = len(self.slots)
        return DraftTree(
            np.array([self._tokens[node] for node in self.slots], np.int32),
            np.array([self._slot_of.get(self._parents[node], -1) for node in self.slots], np.int32),
            np.ones(n, np.float32),
            np.full(n, Source.MODEL, np.uint16),
            np.full(n, -1, np.int64),
        )

    def expand(self, node: int, offers: Offers) -> None:
        """Add what may follow a node; children that were there already take the new probability."""
        self._offers[node] = offers
        above = self.prob(node)
        children = self._children[node + 1]
        for token, prob in zip(offers.token_ids.tolist(), offers.probs.tolist(), strict=True):
            child = children.get(token)
            if child is None:
                child = children[token] = len(self)
                self._tokens.append(token)
                self._parents.append(node)
                self._probs.append(above)
                self._source.append(int(Source.MODEL))
                self._origin.append(-1)
                self._children.append({})
            self._scale(child, above * prob / self._probs[child])

    def _scale(self, node: int, factor: float) -> None:
        """Change the probability of a node, and of what stands behind it likewise."""
        stack = [node]
        while stack:
            node = stack.pop()
            self._probs[node] *= factor
            stack += self._children[node + 1].values()

    def extends_chain(self, node: int) -> bool:
        """Whether a node stands behind the one that was read last."""
        return self._parents[node] == (self.slots[-1] if self.slots else -1)

    def best(self, budget: int) -> list[int]:
        """The most probable nodes, best first, parents before their children."""
        return heapq.nsmallest(budget, range(len(self)), key=lambda node: (-self._probs[node], node))

    def tree(self, budget: int) -> DraftTree:
        """The ``budget`` most probable nodes, depth first, the most probable child first."""
        kept = set(self.best(budget))
        order: list[int] = []
        places = {-1: -1}
        stack = [-1]
        while stack:
            node = stack.pop()
            if node >= 0:
                places[node] = len(order)
                order.append(node)
            below = [child for child in self._children[node + 1].values() if child in kept]
            stack += sorted(below, key=lambda child: (self._probs[child], -child))
        probs = np.array([self._probs[node] for node in order])
        return DraftTree(
            np.array([self._tokens[node] for node in order], np.int32),
            np.array([places[self._parents[node]] for node in order], np.int32),
            np.maximum(probs, np.finfo(np.float32).tiny).astype(np.float32),
            np.array([self._source[node] for node in order], np.uint16),
            np.array([self._origin[node] for node in order], np.int64),
            self._draft_probs(places),
        )

    def _draft_probs(self, places: dict[int, int]) -> DraftProbs | None:
        """What was drawn behind the nodes that stay, whether or not the draws do."""
        drawn = [
            (places[node], *offers.draws)
            for node, offers in self._offers.items()
            if node in places and offers.draws is not None
        ]
        if not drawn:
            return None
        nodes, token_ids, probs, tokens = zip(*drawn, strict=True)
        return DraftProbs(np.array(nodes, np.int32), np.stack(token_ids), np.stack(probs), np.stack(tokens))
