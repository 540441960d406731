from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from groundspeed.types import ProgressCallback


class ToyEmbedder:
    """Texts that share words are close; counts what it embeds."""

    name = "toy"
    dimension = 64

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> NDArray[np.float32]:
        self.embedded += texts
        if progress is not None:
            progress("embed", len(texts), len(texts))
        return np.array([self.embed_query(text) for text in texts], np.float32).reshape(-1, self.dimension)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector = np.full(self.dimension, 1e-3, np.float32)
        for word in text.lower().split():
            vector[crc32(word.encode()) % self.dimension] += 1
        return vector / np.linalg.norm(vector)


@pytest.fixture
def toy() -> ToyEmbedder:
    return ToyEmbedder()
