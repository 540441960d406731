"""What a step of vLLM takes by the number of tokens drafted for it, learnt while it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import CostModel, share_budget

__all__ = ["StepCost"]

_SLOPE = 0.02  # of a plain step, what a draft token adds to it, until steps have been timed


class StepCost:
    """Times the steps between two proposals, and decides how much to draft by it.

    One cost model by the number of texts in a step, up to the next power of two. Only steps in which the same
    texts were written on, and none was read, are learnt from.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without knowing.

        Args:
            most: Draft tokens of a text in a step.
            clock: Gives seconds.
        """
        self._most = most
        self._clock = clock
        self._models: dict[int, CostModel] = {}
        self._texts: tuple[int, ...] = ()
        self._drafted = self._context = 0
        self._begun = 0.0

    def ended(self, texts: Sequence[int], *, alone: bool) -> None:
        """A step is over.

        Args:
            texts: Which texts were written on, any numbers that tell them apart.
            alone: No prompt was read in it.
        """
        if alone and texts and tuple(texts) == self._texts:
            self._observe(len(texts), self._clock() - self._begun)

    def begins(self, texts: Sequence[int], drafted: int, context: int) -> None:
        """The next step begins.

        Args:
            texts: Which texts will be written on.
            drafted: Tokens drafted for all of them.
            context: Tokens of a text, on average.
        """
        self._texts, self._drafted, self._context = tuple(texts), drafted, context
        self._begun = self._clock()

    def share(self, chains: Sequence[DraftTree], context: int) -> list[DraftTree]:
        """Cut chains, one of each text in the next step, down to what pays for itself.

        Args:
            chains: The drafts, empty ones too.
            context: Tokens of a text, on average.
        """
        size = _size(len(chains))
        model = self._models.get(size)
        return share_budget(chains, self._guess(size) if model is None else model.relative(context))

    def _observe(self, rows: int, seconds: float) -> None:
        if seconds <= 0:  # of a clock that stood still
            return
        size = _size(rows)
        if size not in self._models:
            guess = self._guess(size)
            most = len(guess) - 1
            nodes = np.unique([0, *(1 << np.arange(most.bit_length())), most])
            self._models[size] = CostModel(nodes, guess[nodes] * (seconds / guess[self._drafted]))
        self._models[size].observe(self._drafted, self._context, seconds)

    def _guess(self, size: int) -> NDArray[np.float64]:
        return 1 + _SLOPE * np.arange(size * self._most + 1, dtype=np.float64)


def _size(rows: int) -> int:
    """The power of two that is not below."""
    return 1 << (rows - 1).bit_length()
