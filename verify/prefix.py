"""Keys and values of texts that are over, for requests that begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from groundspeed.verify.cache import whole_chunks

if TYPE_CHECKING:
    from groundspeed.verify.base import TargetModel, TargetSession

__all__ = ["PrefixCache"]

_LEAST = 16
"""Tokens in common that are worth taking over."""


class PrefixCache:
    """What was read for earlier requests; least recently used first out.

    A text is kept whole, prompt and answer, so the next turn of a conversation finds all of it. One that goes
    on from another takes its place.
    """

    def __init__(self, target: TargetModel) -> None:
        """Start empty.

        Args:
            target: Whose texts are kept.
        """
        self._target = target
        self._kept: list[tuple[NDArray[np.int64], TargetSession]] = []  # the last used comes last

    @property
    def tokens(self) -> int:
        """Tokens that there is room for in what is kept."""
        return sum(whole_chunks(len(ids)) for ids, _ in self._kept)

    def find(
        self, prompt_ids: Sequence[int], others: Iterable[tuple[Sequence[int], TargetSession]]
    ) -> tuple[TargetSession, int] | None:
        """The text that begins like a prompt for longest, and for how many tokens; None for too few.

        Args:
            prompt_ids: Its last token does not count, as it has to be read anyway.
            others: Committed tokens and sessions of texts that are still going on.
        """
        prompt = np.array(prompt_ids[:-1], np.int64)
        best, length = None, _LEAST - 1
        candidates = [(np.array(ids, np.int64), session) for ids, session in others]
        for ids, session in [*self._kept, *candidates]:
            common = _common(ids, prompt)
            if common > length:
                best, length = session, common
        if best is None:
            return None
        for place, (_, session) in enumerate(self._kept):
            if session is best:
                self._kept.append(self._kept.pop(place))
        return best, length

    def keep(self, token_ids: Sequence[int], session: TargetSession) -> None:
        """Keep a text that is over.

        Args:
            token_ids: Those that its KV cache holds, or the first of them.
            session: It is copied, without the room that it had to grow.
        """
        ids = np.array(token_ids, np.int64)
        if len(ids) < _LEAST or any(_common(ids, kept) == len(ids) for kept, _ in self._kept):
            return
        self._kept = [kept for kept in self._kept if _common(kept[0], ids) < len(kept[0])]
        self._kept.append((ids, self._target.open(len(ids), like=session, length=len(ids))))

    def forget(self) -> bool:
        """Drop the text that was not used for longest; whether there was one."""
        if self._kept:
            del self._kept[0]
            return True
        return False

    def clear(self) -> None:
        """Drop all texts."""
        self._kept.clear()


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many tokens two texts have in common from their beginning on."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    return int(differ[0]) if len(differ) else n
