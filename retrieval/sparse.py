"""Sparse retrieval: BM25 with bm25s (Lù 2024, "BM25S: Orders of magnitude faster lexical search")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from groundspeed.datastores.documents import Postings
from groundspeed.retrieval.base import Ranking

__all__ = ["SparseIndex", "build_postings", "tokenize"]


def tokenize(texts: Sequence[str]) -> list[list[str]]:
    """Split texts into lower-case words without the English stop words."""
    import bm25s

    words: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords="en", return_ids=False, show_progress=False
    )
    return words


def build_postings(texts: Sequence[str]) -> Postings:
    """Compute the BM25 scores of all chunks and terms (Lucene's variant, k1 = 1.5, b = 0.75)."""
    import bm25s

    numbers: dict[str, int] = {}
    ids = [[numbers.setdefault(word, len(numbers)) for word in words] for words in tokenize(texts)]
    if not numbers:
        return Postings((), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    bm25 = bm25s.BM25()
    bm25.index((ids, numbers), create_empty_token=False, show_progress=False)
    return Postings(
        terms=tuple(numbers),
        starts=np.asarray(bm25.scores["indptr"], np.int64),
        chunks=np.asarray(bm25.scores["indices"], np.int32),
        scores=np.asarray(bm25.scores["data"], np.float32),
    )


class SparseIndex:
    """Chunks, searched by the words they share with the question."""

    def __init__(self, postings: Postings, count: int) -> None:
        """Take the postings of ``count`` chunks."""
        self._postings = postings
        self._count = count
        self._numbers = {term: number for number, term in enumerate(postings.terms)}

    def search(self, question: str, k: int) -> Ranking:
        """Find the k chunks of highest BM25 score; fewer when fewer share a word with the question."""
        postings, total = self._postings, np.zeros(self._count, np.float32)
        [words] = tokenize([question])
        for number in (self._numbers[word] for word in words if word in self._numbers):
            column = slice(*postings.starts[number : number + 2])
            total[postings.chunks[column]] += postings.scores[column]
        rows, scores = Ranking.best(total, k)
        return Ranking(rows[scores > 0], scores[scores > 0])
