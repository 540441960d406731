"""Several drafters as one: their trees merged by common prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import (
    Drafter,
    DrafterFactory,
    DraftRequest,
    DraftTree,
    RecyclingDrafter,
    RunnerUps,
    WarmDrafterFactory,
)
from groundspeed.drafting.tree import merge, prune

__all__ = ["Together", "TogetherDrafter"]


class Together:
    """Makes a drafter of a request from one of each of several kinds."""

    def __init__(self, *factories: DrafterFactory) -> None:
        """Say which.

        Args:
            factories: The first one's provenance stays where they draft the same; one of them may draw.
        """
        self.factories = factories

    def __call__(self) -> TogetherDrafter:
        """A drafter for one request."""
        return TogetherDrafter([factory() for factory in self.factories])

    def warm_up(self) -> None:
        """Compile what the drafters need."""
        for factory in self.factories:
            if isinstance(factory, WarmDrafterFactory):
                factory.warm_up()


class TogetherDrafter:
    """Proposes the most probable nodes of all trees; nodes that coincide have the larger probability.

    Attributes:
        runners_up: The most that one of the drafters wants.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Join drafters, one request's own."""
        self._drafters = drafters
        self._recycling = [drafter for drafter in drafters if isinstance(drafter, RecyclingDrafter)]
        self.runners_up = max((drafter.runners_up for drafter in self._recycling), default=0)

    def begin(self, request: DraftRequest) -> None:
        """Hand it to all."""
        for drafter in self._drafters:
            drafter.begin(request)

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Hand it to all."""
        for drafter in self._drafters:
            drafter.extend(token_ids)

    def recycle(self, shown: RunnerUps) -> None:
        """Hand it to those that take it."""
        for drafter in self._recycling:
            drafter.recycle(shown)

    def propose(self, budget: int) -> DraftTree:
        """The most probable nodes of all, at most ``budget``."""
        return prune(merge([drafter.propose(budget) for drafter in self._drafters]), budget)

    def end(self) -> None:
        """End all."""
        for drafter in self._drafters:
            drafter.end()
