"""Embedding models of LangChain as groundspeed takes them, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from groundspeed.errors import ModelError
from groundspeed.retrieval.base import Embedder
from groundspeed.retrieval.dense import SentenceEmbedder
from groundspeed.types import ProgressCallback

__all__ = ["GroundspeedEmbeddings", "LangChainEmbedder"]


class GroundspeedEmbeddings(Embeddings):
    """An embedding model of sentence-transformers; by default the one that comes from PyPI."""

    def __init__(self, model: str | None = None) -> None:
        """Choose a hub id or a folder; it is loaded when first used."""
        self.embedder: Embedder = SentenceEmbedder(model)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors of texts."""
        return [[float(x) for x in vector] for vector in self.embedder.embed(texts)]

    def embed_query(self, text: str) -> list[float]:
        """The unit vector of a question."""
        return [float(x) for x in self.embedder.embed_query(text)]


class LangChainEmbedder:
    """An embedding model of LangChain, its vectors brought to length one."""

    def __init__(self, embeddings: Embeddings) -> None:
        """Take the model."""
        self._embeddings = embeddings

    @property
    def name(self) -> str:
        """Identifies the model, as far as it says what it is."""
        kind = type(self._embeddings)
        told = (getattr(self._embeddings, key, None) for key in ("model", "model_name", "model_id"))
        model = next((name for name in told if isinstance(name, str)), "")
        return f"{kind.__module__}.{kind.__qualname__}{':' * bool(model)}{model}"

    @cached_property
    def dimension(self) -> int:
        """Length of the vectors; the first use embeds a word."""
        return len(self._embeddings.embed_query("dimension"))

    def embed(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> NDArray[np.float32]:
        """Return float32 [n, d], a unit vector per text.

        Raises:
            ModelError: The model gave something else.
        """
        vectors = np.array(self._embeddings.embed_documents(list(texts)), np.float32)
        if vectors.shape[:1] != (len(texts),) or vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise ModelError(
                f"{self.name} gave an array of the shape {vectors.shape} for {len(texts)} texts, or numbers "
                "that are not finite; a vector for each text was wanted: mend the embedding model"
            )
        if progress is not None:
            progress("embed", len(texts), len(texts))
        return _unit(vectors)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return float32 [d], the unit vector of a question."""
        vector: NDArray[np.float32] = _unit(np.array([self._embeddings.embed_query(text)], np.float32))[0]
        return vector


def embedder_of(embeddings: Embeddings) -> Embedder:
    """What groundspeed takes for an embedding model of LangChain."""
    if isinstance(embeddings, GroundspeedEmbeddings):
        return embeddings.embedder
    return LangChainEmbedder(embeddings)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return unit
