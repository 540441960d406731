"""REST's rule (He et al. 2023, section 3) over a plain suffix array."""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DrafterFactory, DraftRequest, DraftTree
from groundspeed.jit import kernel
from groundspeed.types import Source

__all__ = ["Rest"]

_LONGEST, _SHORTEST = 16, 2  # suffix lengths looked up, the longest first
_ROWS = 5_000  # rows of the suffix array that are read, the first ones
_AHEAD = 10  # tokens read behind each


class Rest:
    """Drafts the most frequent prefixes of what followed the longest match in the datastore.

    The last 16 tokens are looked up, then ever shorter ends down to two; for the first that is found, the ten
    tokens behind the first 5,000 rows are read, and their ``budget`` most frequent prefixes (64 in the paper)
    make the tree; among equals the shorter, then the one that stands first. REST drafts from its datastore
    only: here the earlier answers, never the request's own text. Without any it drafts nothing.
    """

    def __init__(self, tokens: NDArray[np.int32], suffixes: NDArray[np.int32]) -> None:
        """Make a drafter for one request.

        Args:
            tokens: int32 [n], the datastore, one text after the other.
            suffixes: int32 [n], its suffix array.
        """
        self._store = tokens
        self._suffixes = suffixes
        self.end()

    @classmethod
    def factory(cls, history: Sequence[NDArray[np.int32]]) -> DrafterFactory:
        """Index earlier answers, int32 [r_i] each, joined without separators, as REST joins its texts."""
        from pydivsufsort import divsufsort

        tokens = np.concatenate([np.empty(0, np.int32), *history])
        suffixes = divsufsort(tokens).astype(np.int32) if len(tokens) else tokens
        return lambda: cls(tokens, suffixes)

    def begin(self, request: DraftRequest) -> None:
        """Remember the end of the prompt."""
        self._context = request.prompt_ids[-_LONGEST:]

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._context = np.concatenate([self._context, token_ids])[-_LONGEST:]

    def propose(self, budget: int) -> DraftTree:
        """Draft the ``budget`` most frequent prefixes."""
        for length in range(len(self._context), _SHORTEST - 1, -1):
            low, high = _rows_that_start_with(self._store, self._suffixes, self._context[-length:])
            if low < high:
                starts = self._suffixes[low : min(high, low + _ROWS)].astype(np.int64) + length
                return most_frequent_prefixes(self._read(starts), budget)
        return DraftTree.empty()

    def end(self) -> None:
        """Forget the request."""
        self._context = np.empty(0, np.int32)

    def _read(self, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """What stands at the starts, int32 [rows, _AHEAD], -1 beyond the end of the datastore."""
        places = starts[:, None] + np.arange(_AHEAD)
        inside = places < len(self._store)
        return np.where(inside, self._store[np.where(inside, places, 0)], np.int32(-1))


def most_frequent_prefixes(rows: NDArray[np.int32], budget: int) -> DraftTree:
    """The trie of the most frequent prefixes of sorted rows.

    Args:
        rows: int32 [m, depth] in lexicographic order, ended by -1 where shorter.
        budget: Prefixes at most.
    """
    m, depth = rows.shape
    # In sorted rows equal prefixes are neighbours: one begins where any of its tokens differs from above.
    begins = np.ones((m, depth), bool)
    begins[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    blocks = []
    for column in range(depth):
        first = np.flatnonzero(begins[:, column])
        block = np.stack([np.full(len(first), column), first, np.diff(first, append=m)])
        blocks.append(block[:, rows[first, column] >= 0])
    column, first, count = np.concatenate(blocks, axis=1)
    chosen = np.lexsort((first, column, -count))[: max(budget, 0)]
    column, first, count = column[chosen], first[chosen], count[chosen]
    # The parent is the prefix one token shorter, in whose block of rows this one begins.
    node = np.full((m, depth), -1, np.int32)
    node[first, column] = np.arange(len(chosen))
    block_of = np.maximum.accumulate(np.where(begins, np.arange(m)[:, None], 0), axis=0)
    parents = np.where(column > 0, node[block_of[first, column - 1], column - 1], np.int32(-1))
    n = len(chosen)
    return DraftTree(
        rows[first, column],
        parents,
        (count / m).astype(np.float32),
        np.full(n, Source.OUTPUT, np.uint16),
        np.full(n, -1, np.int64),
    )


@kernel
def _rows_that_start_with(tokens, suffixes, pattern):
    """First row of the suffix array that starts with the pattern, and the one behind the last."""
    low = _bound(tokens, suffixes, pattern, 0)
    return low, _bound(tokens, suffixes, pattern, 1)


@kernel
def _bound(tokens, suffixes, pattern, above):
    """How many suffixes stand before the pattern, those that start with it counted if ``above``."""
    low, high = 0, len(suffixes)
    while low < high:
        middle = (low + high) // 2
        order = 0
        for i in range(len(pattern)):
            at = suffixes[middle] + i
            token = tokens[at] if at < len(tokens) else -1
            if token != pattern[i]:
                order = -1 if token < pattern[i] else 1
                break
        if order < above:
            low = middle + 1
        else:
            high = middle
    return low
