"""The contracts of retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.types import ProgressCallback

__all__ = ["Embedder", "Ranking"]


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner product says how close they are in meaning."""

    @property
    def name(self) -> str:
        """Identifies the model: vectors of equal names may be compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length d of the vectors."""
        ...

    def embed(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> NDArray[np.float32]:
        """Return float32 [n, d], a unit vector per text; progress is reported as stage ``embed``."""
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return float32 [d], the unit vector of a question."""
        ...


class Ranking(NamedTuple):
    """Chunks found for a question, best first; equal scores are in row order.

    Attributes:
        rows: int64 [m], rows of the chunks.
        scores: float32 [m], higher is better.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]

    @classmethod
    def best(cls, scores: NDArray[np.float32], k: int) -> Ranking:
        """Rank the k highest of float32 [n] scores."""
        if k < len(scores):
            # Everything at or above the k-th score, so that ties are settled by row below.
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            rows = np.flatnonzero(scores >= threshold)
        else:
            rows = np.arange(len(scores))
        rows = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return cls(rows.astype(np.int64), scores[rows])
