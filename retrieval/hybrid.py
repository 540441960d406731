"""Hybrid retrieval: rankings are fused, and the best may be read again by a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from groundspeed.errors import ModelError
from groundspeed.retrieval.base import Ranking

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

__all__ = ["Reranker", "fuse"]


def fuse(rankings: Sequence[Ranking], c: int = 60) -> Ranking:
    """Fuse rankings by the sum of 1 / (c + rank), ranks from 1.

    Reciprocal rank fusion, Cormack, Clarke and Buettcher, SIGIR 2009.

    Returns:
        All rows that occur in any of the rankings, best first.
    """
    rows, owner = np.unique(np.concatenate([ranking.rows for ranking in rankings]), return_inverse=True)
    shares = np.concatenate([1 / (c + 1 + np.arange(len(ranking.rows))) for ranking in rankings])
    scores = np.bincount(owner, weights=shares, minlength=len(rows)).astype(np.float32)
    order, scores = Ranking.best(scores, len(rows))
    return Ranking(rows[order].astype(np.int64), scores)


class Reranker:
    """A cross-encoder: reads question and passage together, slower and better than comparing vectors."""

    def __init__(self, name: str) -> None:
        """Choose a cross-encoder by hub id or folder; it is loaded when first used."""
        self.name = name

    def rerank(self, question: str, texts: Sequence[str]) -> Ranking:
        """Rank texts for a question; rows number the texts."""
        if not texts:
            return Ranking(np.empty(0, np.int64), np.empty(0, np.float32))
        pairs = [(question, text) for text in texts]
        scores = np.asarray(self._model.predict(pairs, show_progress_bar=False), np.float32)
        if scores.ndim != 1:
            raise ModelError(
                f"The cross-encoder {self.name} gives {scores.shape[1]} scores per passage, one was wanted; "
                "choose a model trained to rank."
            )
        return Ranking.best(scores, len(scores))

    @cached_property
    def _model(self) -> CrossEncoder:
        from sentence_transformers import CrossEncoder

        try:
            return CrossEncoder(self.name)
        except Exception as error:  # a damaged folder makes the libraries raise nearly anything
            raise ModelError(
                f"The cross-encoder {self.name} cannot be loaded ({error}); "
                "give a hub id or the folder of one. Without a network, download it before."
            ) from error
