"""No drafter: plain decoding under the contract of drafting, the floor of every comparison."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree

__all__ = ["NoDrafter"]


class NoDrafter:
    """Drafts nothing."""

    def begin(self, request: DraftRequest) -> None:
        """Nothing to take in."""

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Nothing to take in."""

    def propose(self, budget: int) -> DraftTree:
        """The empty tree."""
        return DraftTree.empty()

    def end(self) -> None:
        """Nothing to free."""
