"""Recycled logits: what the target itself held possible after a token, kept for the next time it comes.

Every verified row shows the target's most probable next tokens, of rejected draft nodes too, and they are
thrown away once the token is chosen. Token Recycling (Luo et al. 2024, arXiv 2408.08696) keeps them by the
token they followed; here by the two tokens before them as well, which says more where it has been seen.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import RunnerUps
from groundspeed.errors import DraftError
from groundspeed.jit import kernel

__all__ = ["RecycledTokens", "lookup"]

_PROBES = 8  # slots that a key may stand in; in full ones the oldest gives way
_EMPTY = -1
_ANY = -1  # stands for the token before the last, where only the last counts


class RecycledTokens:
    """A table of bounded size from the last two tokens, and from the last one, to what may follow.

    May serve one request, or many in several threads. A lookup takes no lock: beside a store it may see a row
    that is half old and half new, and then drafts tokens of either.

    Attributes:
        keys: int64 [capacity], the two tokens of each slot.
        rows: int32 [capacity, width], the tokens that may follow, most probable first, -1 behind the last.
    """

    def __init__(self, capacity: int = 1 << 14, width: int = 8) -> None:
        """Make an empty table.

        Args:
            capacity: Slots, a power of two; each takes 16 + 4 * width bytes.
            width: Most tokens of a slot.

        Raises:
            DraftError: A capacity or width that cannot be.
        """
        if capacity < _PROBES or capacity & (capacity - 1) or width < 1:
            raise DraftError(
                f"a table of {capacity} slots of {width} tokens was asked for; the slots must be a power of "
                f"two from {_PROBES} on, the tokens 1 or more"
            )
        self.keys = np.full(capacity, _EMPTY, np.int64)
        self.rows = np.full((capacity, width), -1, np.int32)
        self._written = np.zeros(capacity + 1, np.int64)  # when each slot was, and at last how many were
        self._lock = threading.Lock()

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """keys, rows: what ``lookup`` and its callers take."""
        return self.keys, self.rows

    def store(self, previous: int, shown: RunnerUps) -> None:
        """Keep what a verification showed; newer rows replace older ones.

        Args:
            previous: The token before the last committed one, -1 for none.
            shown: What the target showed.
        """
        with self._lock:
            _store(
                self.keys, self.rows, self._written, previous, shown.token_ids, shown.parents, shown.top_ids
            )

    def lookup(self, previous: int, token: int) -> tuple[NDArray[np.int32], int]:
        """What may follow two tokens, and by how many of them it was found: 2, 1, or 0 for nothing."""
        slot, order = lookup(self.keys, previous, token)
        row = self.rows[slot] if order else self.rows[:0, 0]
        return row[row >= 0], order


@kernel
def _home(key, capacity):
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(capacity - 1))


@kernel
def _find(keys, previous, token):
    """The slot of two tokens, -1 for none."""
    key = ((previous + 1) << 32) | token
    home = _home(key, len(keys))
    for probe in range(_PROBES):
        slot = (home + probe) & (len(keys) - 1)
        if keys[slot] == key:
            return slot
        if keys[slot] == _EMPTY:
            return -1
    return -1


@kernel
def lookup(keys, previous, token):
    """Find what may follow two tokens, or the last of them.

    Args:
        keys: int64 [capacity], of a ``RecycledTokens``.
        previous: The token before the last one, -1 for none.
        token: The last one.

    Returns:
        The slot, whose tokens are ``rows[slot]``, and how many tokens it was found by: (-1, 0) for none.
    """
    slot = _find(keys, previous, token) if previous >= 0 else -1
    if slot >= 0:
        return slot, 2
    slot = _find(keys, _ANY, token)
    return slot, 1 if slot >= 0 else 0


@kernel
def _put(keys, rows, written, previous, token, top):
    key = ((previous + 1) << 32) | token
    home = _home(key, len(keys))
    slot = home
    for probe in range(_PROBES):
        at = (home + probe) & (len(keys) - 1)
        if keys[at] == key or keys[at] == _EMPTY:
            slot = at
            break
        if written[at] < written[slot]:
            slot = at
    keys[slot] = key
    for i in range(rows.shape[1]):
        rows[slot, i] = top[i] if i < len(top) else -1
    written[-1] += 1
    written[slot] = written[-1]


@kernel
def _store(keys, rows, written, previous, token_ids, parents, tops):
    for row in range(len(token_ids)):
        before = previous if row == 0 else token_ids[parents[row]]
        _put(keys, rows, written, _ANY, token_ids[row], tops[row])
        if before >= 0:
            _put(keys, rows, written, before, token_ids[row], tops[row])
