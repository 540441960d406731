"""A reference drafter over ``suffix-trees``, an independent index: slow, simple, and good to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from suffix_trees import STree

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.tree import chain
from groundspeed.types import Source

_FIRST = 0x10000  # behind the surrogates, which no text may hold
_LONGEST = 16  # tokens of context that are looked up


def as_text(token_ids: NDArray[np.int32]) -> str:
    """Token ids [n] as characters from U+10000 up, n of them, for an index that takes text only."""
    return "".join(map(chr, (token_ids.astype(np.int64) + _FIRST).tolist()))


class ReferenceDrafter:
    """Drafts what followed the longest match of the context, as one path.

    Looks in the passages, best first, and the prompt, each in a suffix tree of its own so that no match
    crosses a border; the text written so far is context only. Of several places the first is followed.
    """

    def __init__(self) -> None:
        self._texts: list[NDArray[np.int32]] = []
        self._sources: list[tuple[Source, int]] = []
        self._trees: list[Any] = []
        self._context = np.empty(0, np.int32)

    def begin(self, request: DraftRequest) -> None:
        """Index the passages and the prompt."""
        self._texts = [text for text in (*request.passages, request.prompt_ids) if len(text)]
        self._sources = [
            *((Source.PASSAGE, index << 32) for index, text in enumerate(request.passages) if len(text)),
            *[(Source.PROMPT, 0)][: len(request.prompt_ids)],
        ]
        self._trees = [STree.STree(as_text(text)) for text in self._texts]
        self._context = request.prompt_ids[-_LONGEST:]

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._context = np.concatenate((self._context, token_ids))[-_LONGEST:]

    def propose(self, budget: int) -> DraftTree:
        """Draft at most ``budget`` tokens behind the longest match."""
        for length in range(len(self._context), 0, -1):
            wanted = as_text(self._context[-length:])
            for text, tree, (source, first) in zip(self._texts, self._trees, self._sources, strict=True):
                for place in sorted(tree.find_all(wanted)):
                    start = place + length
                    ahead = text[start : start + max(budget, 0)]
                    if len(ahead):
                        origin = first + np.arange(start, start + len(ahead), dtype=np.int64)
                        return chain(ahead, source=np.full(len(ahead), source, np.uint16), origin=origin)
        return DraftTree.empty()

    def end(self) -> None:
        """Forget the request."""
        self._texts, self._sources, self._trees = [], [], []
        self._context = np.empty(0, np.int32)
