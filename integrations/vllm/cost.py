"""What a step of vLLM takes by the number of tokens drafted for it, learnt while it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import CostModel, worth

__all__ = ["StepCost"]

_TRIALS = 3  # steps of each kind that a model begins with


class StepCost:
    """Times the steps between two proposals, and decides how much to draft by it.

    One cost model by the number of texts in a step, up to the next power of two. It begins with a few steps
    without drafts and a few with all there are, in turn. Only steps in which the same texts were written on,
    and no prompt was read, are learnt from.
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
        self._trials: dict[int, _Trials] = {}
        self._texts: tuple[int, ...] = ()
        self._drafted = self._context = 0
        self._begun = 0.0

    def ended(self, texts: Sequence[int], *, alone: bool) -> None:
        """A step is over.

        Args:
            texts: Which texts were written on, any numbers that tell them apart.
            alone: No prompt was read in it.
        """
        seconds = self._clock() - self._begun
        if not alone or tuple(texts) != self._texts or not texts:
            return
        size = _size(len(texts))
        if size in self._models:
            self._models[size].observe(self._drafted, self._context, seconds)
        elif self._trials[size].take(self._drafted, seconds):
            self._models[size] = self._trials.pop(size).model(size * self._most)

    def begins(self, texts: Sequence[int], drafted: int, context: int) -> None:
        """The next step begins.

        Args:
            texts: Which texts will be written on.
            drafted: Tokens drafted for all of them.
            context: Tokens of a text, on average.
        """
        self._texts, self._drafted, self._context = tuple(texts), drafted, context
        self._begun = self._clock()

    def share(self, chains: Sequence[DraftTree], context: int) -> list[int]:
        """How many tokens of each chain pay for themselves.

        Args:
            chains: The drafts, one of each text in the next step, empty ones too.
            context: Tokens of a text, on average.
        """
        size = _size(len(chains))
        if size in self._models:
            return worth(chains, self._models[size].relative(context))
        if self._trials.setdefault(size, _Trials()).plain_is_next:
            return [0] * len(chains)
        return [*map(len, chains)]


class _Trials:
    """The first steps of some number of texts."""

    def __init__(self) -> None:
        self._plain: list[float] = []
        self._drafted: list[tuple[int, float]] = []

    @property
    def plain_is_next(self) -> bool:
        """Whether the next step shall have no drafts."""
        return len(self._plain) < min(_TRIALS, len(self._drafted) + 1)

    def take(self, drafted: int, seconds: float) -> bool:
        """Take in a step; whether that is enough."""
        if seconds > 0:  # a clock may stand still
            if drafted:
                self._drafted.append((drafted, seconds))
            else:
                self._plain.append(seconds)
        return min(len(self._plain), len(self._drafted)) >= _TRIALS

    def model(self, most: int) -> CostModel:
        """A line through them, for up to so many tokens."""
        plain = median(self._plain)
        slope = max(median((seconds - plain) / drafted for drafted, seconds in self._drafted), 0.0)
        nodes = np.unique([0, *(1 << np.arange(most.bit_length())), most])
        return CostModel(nodes, plain + slope * nodes)


def _size(rows: int) -> int:
    """The power of two that is not below."""
    return 1 << (rows - 1).bit_length()
