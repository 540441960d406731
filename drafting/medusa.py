"""Medusa heads: small heads on the target's last hidden state, each of which guesses one token further ahead.

Cai et al. 2024 (arXiv 2401.10774). The heads do not see each other's guesses, so every token of one may
follow every token of the one before; of these paths the most probable ones make the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree, TargetView
from groundspeed.drafting.builder import TreeBuilder
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.hit_rates import ABSENT, HitRates
from groundspeed.drafting.tree import verdicts
from groundspeed.errors import DraftError
from groundspeed.types import Source

__all__ = ["Heads", "Medusa", "MedusaDrafter"]

_TOP = 8  # tokens of each head that take part


class Heads(Protocol):
    """Trained heads; ``groundspeed.verify.medusa_heads`` has them.

    Attributes:
        count: H, how many.
    """

    count: int

    def guess(self, target: TargetView, k: int) -> Outlook:
        """What each head holds possible, by the last row of ``target.hidden_states``: H rows, k wide."""
        ...


class Medusa:
    """Makes the drafters of an engine's requests, which share heads and what is learnt of them."""

    def __init__(self, heads: Heads) -> None:
        """Draft with these heads."""
        self.heads = heads
        self.rates = [HitRates() for _ in range(heads.count)]

    def __call__(self) -> MedusaDrafter:
        """A drafter for one request."""
        return MedusaDrafter(self.heads, self.rates)


class MedusaDrafter:
    """Grows the tree of the most probable paths through the heads' guesses.

    A guess counts with the rate at which those that its head held as probable were accepted behind accepted
    ones.
    """

    def __init__(self, heads: Heads, rates: Sequence[HitRates]) -> None:
        """Make a drafter for one request.

        Args:
            heads: Of the target.
            rates: Of each head, shared by requests.
        """
        self._heads = heads
        self._rates = rates
        self._proposed = DraftTree.empty()
        self._cells: list[tuple[int, int]] = []  # head, and where its hits are counted, of each node
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
            head, cell = self._cells[node]
            self._rates[head].learn(np.array([cell]), np.array([right]))
        self._proposed = DraftTree.empty()

    def propose(self, budget: int) -> DraftTree:
        """The ``budget`` most probable paths through the guesses, as nodes."""
        if self._target is None or budget <= 0:
            return DraftTree.empty()
        offers = [
            _ranked(*row) for row in zip(self._rates, *self._heads.guess(self._target, _TOP), strict=True)
        ]
        builder = TreeBuilder(budget, Source.MODEL)
        self._cells = []
        # Path probability, negative; parent and its probability; head, rank.
        ahead = [(-offers[0][0].rate, -1, 1.0, 0, 0)]
        while ahead and builder.room:
            below, parent, above, head, rank = heapq.heappop(ahead)
            offer = offers[head][rank]
            node = builder.add(parent, offer.token, -below)
            assert node is not None
            self._cells.append((head, offer.cell))
            if rank + 1 < len(offers[head]):
                sibling = offers[head][rank + 1]
                heapq.heappush(ahead, (-above * sibling.rate, parent, above, head, rank + 1))
            if head + 1 < len(offers):
                heapq.heappush(ahead, (below * offers[head + 1][0].rate, node, -below, head + 1, 0))
        self._proposed = builder.tree()
        return self._proposed

    def end(self) -> None:
        """Let the target go."""
        self._target = None


class _Offer(NamedTuple):
    """A guess of a head: how often such ones are right, the token, and where its hits are counted."""

    rate: float
    token: int
    cell: int


def _ranked(rates: HitRates, token_ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> list[_Offer]:
    """What a head holds possible, most often right first."""
    probs = np.exp(logprobs.astype(np.float64))
    absent = np.full(len(probs), ABSENT)
    cells = rates.cells(probs, absent, np.arange(len(probs)))
    found = zip(rates.rates(cells, probs, absent).tolist(), token_ids.tolist(), cells.tolist(), strict=True)
    return sorted(map(_Offer._make, found), key=lambda offer: -offer.rate)
