"""KV caches as pages of one pool, whose addresses stay the same: what a recorded pass needs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.verify.cache import CHUNK, Layout, StateKind, chunks_of, steps_in_place

__all__ = ["EMPTY", "SPARE", "PagePool", "PagedCache"]

EMPTY = 0
"""A page of zeros: fills up tables, and nothing is written to it."""

SPARE = 1
"""The page that rows to spare are written to: nothing reads it."""

_OWN = 2  # pages of the pool itself
_NONE = np.empty(0, np.int64)


class PagePool:
    """Keys and values of all texts of a model, handed out by pages of ``CHUNK`` positions.

    Layers of one kind share a buffer [layers, slots, heads, size]; page p is slots [p * CHUNK, (p + 1) *
    CHUNK). Texts that begin alike share pages. A page is zeroed when it is handed out: a row that is masked
    still enters sums times zero, so nothing that is not a number may be left in one.

    Attributes:
        device: Of the buffers.
        moved: How often the buffers have moved to other addresses.
    """

    def __init__(self, layout: Layout) -> None:
        """Start with no page for texts.

        Args:
            layout: A complete one, with all layers on one device.
        """
        self._layout = layout
        self.device = next(iter(layout.kinds.values()))[0].device
        self.moved = -1
        self._buffers: dict[StateKind, torch.Tensor] = {}
        self._states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._users = np.zeros(0, np.int32)  # texts by page
        self._lock = threading.RLock()  # caches that are dropped give their pages back in any thread
        self._resize(_OWN)
        self._users[:_OWN] = 1

    @property
    def pages(self) -> int:
        """Pages there are, those of the pool itself included."""
        return len(self._users)

    @property
    def free(self) -> int:
        """Pages that no text has."""
        return int((self._users == 0).sum())

    def states(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values, each [slots, heads, size]."""
        return self._states[layer]

    def reserve(self, tokens: int) -> None:
        """Have room for texts of so many tokens in all, so that the buffers need not move."""
        with self._lock:
            # One more, as a text that ends is kept beside itself for a moment; they share all pages but one.
            self._resize(max(self.pages, _OWN + chunks_of(tokens) + 1))

    @torch.inference_mode()
    def allocate(self, count: int) -> NDArray[np.int64]:
        """So many zeroed pages, int64 [count]; the buffers grow, and so move, where there are none left."""
        with self._lock:
            self._resize(self.pages + max(0, count - self.free))
            pages = np.flatnonzero(self._users == 0)[:count]
            self._users[pages] = 1
        index = torch.from_numpy(pages).to(self.device)
        for buffer in self._buffers.values():
            buffer.view(len(buffer), self.pages, CHUNK, *buffer.shape[2:]).index_fill_(1, index, 0)
        return pages

    def share(self, pages: NDArray[np.int64]) -> None:
        """Let one more text use pages."""
        with self._lock:
            self._users[pages] += 1

    def release(self, pages: NDArray[np.int64]) -> None:
        """Let one text less use pages."""
        with self._lock:
            self._users[pages] -= 1

    @torch.inference_mode()
    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy states between slots, int64 [n] each, on the device; all are read before any is set."""
        for buffer in self._buffers.values():
            buffer.index_copy_(1, target, buffer.index_select(1, source))

    @torch.inference_mode()
    def _resize(self, pages: int) -> None:
        if pages == self.pages:
            return
        layers: dict[StateKind, list[int]] = {}
        for layer, pair in self._layout.kinds.items():
            for kind in pair:
                layers.setdefault(kind, []).append(layer)
        for kind, of in layers.items():
            shape = (len(of), pages * CHUNK, kind.heads, kind.size)
            buffer = torch.zeros(shape, dtype=kind.dtype, device=kind.device)
            if kind in self._buffers:
                old = self._buffers.pop(kind)
                buffer[:, : old.shape[1]] = old
            self._buffers[kind] = buffer
        rooms = {kind: iter(buffer) for kind, buffer in self._buffers.items()}
        for layer, (keys, values) in self._layout.kinds.items():
            self._states[layer] = next(rooms[keys]), next(rooms[values])
        self._users = np.concatenate((self._users, np.zeros(pages - self.pages, np.int32)))
        self.moved += 1


class PagedCache:
    """Keys and values of one text in pages of a pool; see ``KeyValueCache``.

    Attributes:
        pages: int64 [n], in order of the text.
        length: Committed tokens.
        moves: int64 [2, n], slots whose states an accepted path needs elsewhere, and where; the next pass
            takes them along before anything else.
    """

    def __init__(
        self, pool: PagePool, capacity: int, like: PagedCache | None = None, length: int = 0
    ) -> None:
        """Reserve pages.

        Args:
            pool: Whose pages.
            capacity: Most tokens it will hold, draft nodes included.
            like: A text whose first ``length`` tokens are this one's as well. Pages full of them are shared:
                neither text writes there any more.
            length: At most the length of ``like``.
        """
        self._pool = pool
        self.length = length
        self.moves = np.empty((2, 0), np.int64)
        whole = length // CHUNK
        shared = _NONE
        if like is not None:
            like.settle()
            shared = like.pages[:whole]
        own = pool.allocate(chunks_of(capacity) - whole)
        pool.share(shared)
        self.pages: NDArray[np.int64] = np.concatenate((shared, own))
        self._give_back = weakref.finalize(self, pool.release, self.pages)
        self._give_back.atexit = False
        if like is not None and length % CHUNK:
            start = whole * CHUNK
            self._move(np.stack((like.slots(start, length), self.slots(start, length))))

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where the states of tokens [start, stop) stand in the pool."""
        at = np.arange(start, stop)
        return self.pages[at // CHUNK] * CHUNK + at % CHUNK

    def advance(self, tokens: int) -> None:
        """Commit the first ``tokens`` tokens that were written behind the committed ones."""
        self.length += tokens

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tokens at ``path`` (indices, rising, behind the committed ones) and drop the others."""
        run = steps_in_place(path)
        end = self.length + len(path)
        if run < len(path):
            behind = self.slots(self.length, self.length + path[-1] + 1)
            self.moves = np.stack((behind[list(path[run:])], behind[run : len(path)]))
        self.length = end

    def settle(self) -> None:
        """Make the moves now."""
        if self.moves.size:
            self._move(self.moves)
            self.moves = self.moves[:, :0]

    def free(self) -> None:
        """Give the pages back; nothing can be read or written any more."""
        self._give_back()
        self.pages, self.moves = _NONE, self.moves[:, :0]

    def _move(self, moves: NDArray[np.int64]) -> None:
        source, target = torch.from_numpy(moves).to(self._pool.device)
        self._pool.move(source, target)
