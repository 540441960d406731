"""ADED (Liu et al. 2024) as ``draftretriever`` 0.1.1 implements it: trigram statistics and a tree search."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DrafterFactory, DraftRequest, DraftTree
from groundspeed.types import Source

__all__ = ["DraftRetriever", "tree_of_paths"]

_CONTEXT = 16  # tokens the library looks at
_SMALLEST = 4  # nodes asked for at least: it drafts up to four deep, and aborts where no path fits


class DraftRetriever:
    """A drafter over ``draftretriever.Reader``.

    The earlier answers become its trigram table. The library adds the last sixteen tokens of each context it
    is asked about to the table, so every request reads the table anew: what one request left there is not
    history of the next. Of the request's own text it sees no more than that. Its search draws random numbers
    that cannot be seeded.
    """

    def __init__(self, open_reader: Callable[[], Any]) -> None:
        self._open_reader = open_reader
        self._reader: Any = None
        self._context: list[int] = []

    @classmethod
    def factory(cls, history: Sequence[NDArray[np.int32]]) -> DrafterFactory:
        """Write the table of earlier answers, int32 [r_i] each; it is deleted with the last drafter."""
        import draftretriever

        folder = tempfile.mkdtemp(prefix="groundspeed-")
        table = str(Path(folder) / "table.idx")
        writer = draftretriever.Writer(table)
        for response in history:
            writer.add_entry(response.tolist())
        writer.finalize()

        def open_reader() -> Any:
            return draftretriever.Reader(table)

        weakref.finalize(open_reader, shutil.rmtree, folder, ignore_errors=True)
        return lambda: cls(open_reader)

    def begin(self, request: DraftRequest) -> None:
        """Read the table and remember the end of the prompt."""
        self._reader = self._open_reader()
        self._context = request.prompt_ids[-_CONTEXT:].tolist()

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._context = (self._context + token_ids.tolist())[-_CONTEXT:]

    def propose(self, budget: int) -> DraftTree:
        """Search for at most ``budget`` nodes."""
        if len(self._context) < 2:  # the library aborts the whole process
            return DraftTree.empty()
        paths = self._reader.search(self._context, choices=max(budget, _SMALLEST))[0]
        return tree_of_paths(paths, budget)

    def end(self) -> None:
        """Close the table."""
        self._reader = None
        self._context = []


def tree_of_paths(paths: Sequence[Sequence[int]], budget: int) -> DraftTree:
    """The trie of paths padded with negative numbers, its first ``budget`` nodes level by level."""
    whole = {tuple(token for token in path if token >= 0) for path in paths}
    prefixes = {path[:length] for path in whole for length in range(1, len(path) + 1)}
    chosen = sorted(prefixes, key=lambda prefix: (len(prefix), prefix))[: max(budget, 0)]
    node = {prefix: place for place, prefix in enumerate(chosen)}
    n = len(chosen)
    return DraftTree(
        np.array([prefix[-1] for prefix in chosen], np.int32),
        np.array([node.get(prefix[:-1], -1) for prefix in chosen], np.int32),
        np.ones(n, np.float32),
        np.full(n, Source.OUTPUT, np.uint16),
        np.full(n, -1, np.int64),
    )
