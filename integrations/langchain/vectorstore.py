"""The vector store: LangChain's documents in a document store of groundspeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from groundspeed.datastores.documents import DocumentStore
from groundspeed.errors import InputError
from groundspeed.integrations.langchain.embeddings import GroundspeedEmbeddings, embedder_of
from groundspeed.retrieval.updating import LiveStore
from groundspeed.types import Document as StoreDocument

__all__ = ["GroundspeedVectorStore"]

Filter: TypeAlias = Mapping[str, Any] | Callable[[Document], bool]
"""Metadata that a document must have, or a function that says whether it may be found."""


class GroundspeedVectorStore(VectorStore):
    """Documents, each one vector, in a folder that ``GroundspeedRetriever`` and the command line read too.

    Every write is whole or not at all, and costs what is written, not what is there.
    """

    def __init__(self, store: str | Path, embeddings: Embeddings | None = None) -> None:
        """Name the folder; it is made by the first write.

        Args:
            store: The folder.
            embeddings: Any embedding model of LangChain; by default ``GroundspeedEmbeddings()``.
        """
        self._embeddings = embeddings or GroundspeedEmbeddings()
        self._embedder = embedder_of(self._embeddings)
        self._store = LiveStore(DocumentStore(store), self._embedder)

    @property
    def embeddings(self) -> Embeddings:
        """The embedding model."""
        return self._embeddings

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        store: str | Path | None = None,
        **kwargs: Any,
    ) -> GroundspeedVectorStore:
        """Make a store of texts.

        Raises:
            InputError: No ``store`` was given.
        """
        if store is None:
            raise InputError("no folder was given; give store=, the folder that will hold the documents")
        made = cls(store, embedding)
        made.add_texts(texts, metadatas, ids=ids, **kwargs)
        return made

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts; one with the id of another takes its place.

        Raises:
            InputError: The lists differ in length, or metadata is not for JSON.
        """
        texts = list(texts)
        metadatas = metadatas if metadatas is not None else [{} for _ in texts]
        given = ids if ids is not None else [None] * len(texts)
        if not len(texts) == len(metadatas) == len(given):
            raise InputError(
                f"there are {len(texts)} texts, {len(metadatas)} metadatas and {len(given)} ids; give one of "
                "each for each text"
            )
        names = [name or str(uuid4()) for name in given]
        self._store.upsert(map(StoreDocument, names, texts, metadatas))
        return names

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add documents; their own ids hold where ``ids`` gives none."""
        ids = kwargs.pop("ids", None) or [document.id for document in documents]
        return self.add_texts(
            [document.page_content for document in documents],
            [document.metadata for document in documents],
            ids=ids,
            **kwargs,
        )

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents; ids that are not there are passed over. Without ids nothing is deleted."""
        self._store.delete(ids or ())
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order; those that are not there are left out."""
        return [_document(found) for found in self._store.get(ids)]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The k documents nearest to a question in meaning."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        """The k documents whose vectors are nearest."""
        ranked = self._ranked(np.array(embedding, np.float32), k, kwargs.get("filter"))
        return [document for document, _, _ in ranked]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k nearest documents with their cosines, best first."""
        vector = self._embedder.embed_query(query)
        return [(document, score) for document, score, _ in self._ranked(vector, k, filter)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Find k of the ``fetch_k`` nearest that differ; with a ``lambda_mult`` of 1 only nearness counts."""
        vector = [float(x) for x in self._embedder.embed_query(query)]
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """The same by a vector."""
        vector = np.array(embedding, np.float32)
        ranked = self._ranked(vector, fetch_k, kwargs.get("filter"))
        if not ranked:
            return []
        vectors = [row.tolist() for _, _, row in ranked]
        return [ranked[at][0] for at in maximal_marginal_relevance(vector, vectors, lambda_mult, k)]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: min(1.0, max(0.0, (1.0 + cosine) / 2))

    def _ranked(
        self, query: np.ndarray[Any, Any], k: int, wanted: Filter | None
    ) -> list[tuple[Document, float, np.ndarray[Any, Any]]]:
        """The k nearest documents that are wanted, with cosine and vector."""
        if k < 0:
            raise InputError(f"k is {k}; give the number of documents to find")
        found = (
            (_document(stored), cosine, nearest) for stored, cosine, nearest in self._store.nearest(query)
        )
        return list(islice((one for one in found if _passes(one[0], wanted)), k))


def _document(document: StoreDocument) -> Document:
    return Document(id=document.id, page_content=document.text, metadata=dict(document.metadata))


def _passes(document: Document, wanted: Filter | None) -> bool:
    if wanted is None:
        return True
    if callable(wanted):
        return wanted(document)
    return all(document.metadata.get(key) == value for key, value in wanted.items())
