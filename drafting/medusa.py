"""Medusa heads: small heads on the target's last hidden state, each of which guesses one token further ahead.

Cai et al. 2024 (arXiv 2401.10774). The heads do not see each other's guesses, so every token of one may
follow every token of the one before; of these paths the most probable ones make the tree.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree, TargetView
from groundspeed.drafting.builder import TreeBuilder
from groundspeed.drafting.rates import AcceptanceRates, verdicts
from groundspeed.errors import DraftError
from groundspeed.types import Source

__all__ = ["Heads", "Medusa", "MedusaDrafter"]

_TOP = 8  # tokens of each head that take part
_EDGES = np.array([0.01, 0.03, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95])
_MIDDLES = np.array([0.003, 0.02, 0.045, 0.09, 0.18, 0.32, 0.47, 0.62, 0.77, 0.9, 0.98])


class Heads(Protocol):
    """Trained heads; ``groundspeed.verify.medusa_heads`` has them.

    Attributes:
        count: H, how many.
    """

    count: int

    def guess(self, target: TargetView, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """What each head holds possible, from the last row of ``target.hidden_states``.

        Returns:
            token_ids [H, k] and their probabilities [H, k], best first.
        """
        ...


class Medusa:
    """Makes the drafters of an engine's requests, which share heads and what is learnt of them."""

    def __init__(self, heads: Heads) -> None:
        """Draft with these heads."""
        self.heads = heads
        self.rates = AcceptanceRates(np.tile(_MIDDLES, heads.count))

    def __call__(self) -> MedusaDrafter:
        """A drafter for one request."""
        return MedusaDrafter(self.heads, self.rates)


class MedusaDrafter:
    """Grows the tree of the most probable paths through the heads' guesses.

    A guess counts with the rate at which those that its head held as probable were accepted behind accepted
    ones.
    """

    def __init__(self, heads: Heads, rates: AcceptanceRates) -> None:
        """Make a drafter for one request.

        Args:
            heads: Of the target.
            rates: By head and probability, shared by requests.
        """
        self._heads = heads
        self._rates = rates
        self._proposed = DraftTree.empty()
        self._kinds: list[int] = []
        self._target: TargetView | None = None

    def begin(self, request: DraftRequest) -> None:
        """Take in the target."""
        if request.target is None:
            raise DraftError(
                "Medusa heads need the hidden states of a target that verifies trees, and none was handed "
                "on; choose another drafter for this model"
            )
        self._target = request.target
        self._target.watch()

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Learn from newly committed tokens, int32 [k]."""
        for node, right in verdicts(self._proposed, token_ids):
            self._rates.observe(self._kinds[node], right)
        self._proposed = DraftTree.empty()

    def propose(self, budget: int) -> DraftTree:
        """The ``budget`` most probable paths through the guesses, as nodes."""
        if self._target is None or budget <= 0:
            return DraftTree.empty()
        token_ids, guessed = self._heads.guess(self._target, _TOP)
        kinds = np.searchsorted(_EDGES, guessed) + len(_MIDDLES) * np.arange(len(guessed))[:, None]
        rates = self._rates.rates[kinds]
        order = np.argsort(-rates, axis=1, kind="stable")
        token_ids, kinds, rates = (np.take_along_axis(x, order, 1) for x in (token_ids, kinds, rates))
        builder = TreeBuilder(budget, Source.MODEL)
        self._kinds = []
        # Path probability, negative; parent and its probability; head, rank.
        ahead = [(-float(rates[0, 0]), -1, 1.0, 0, 0)]
        while ahead and builder.room:
            below, parent, above, head, rank = heapq.heappop(ahead)
            node = builder.add(parent, int(token_ids[head, rank]), -below)
            assert node is not None
            self._kinds.append(int(kinds[head, rank]))
            if rank + 1 < token_ids.shape[1]:
                sibling = -above * float(rates[head, rank + 1])
                heapq.heappush(ahead, (sibling, parent, above, head, rank + 1))
            if head + 1 < len(token_ids):
                heapq.heappush(ahead, (below * float(rates[head + 1, 0]), node, -below, head + 1, 0))
        self._proposed = builder.tree()
        return self._proposed

    def end(self) -> None:
        """Let the target go."""
        self._target = None
