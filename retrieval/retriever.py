"""A question goes in, passages come out."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from groundspeed.datastores.documents import DocumentStore, StoreContents
from groundspeed.errors import InputError, StoreError
from groundspeed.retrieval.base import Embedder, Ranking
from groundspeed.retrieval.dense import DenseIndex, SentenceEmbedder
from groundspeed.retrieval.hybrid import Reranker, fuse
from groundspeed.retrieval.sparse import SparseIndex, build_postings
from groundspeed.types import Document, Passage

__all__ = ["Mode", "Retriever"]

Mode: TypeAlias = Literal["hybrid", "dense", "sparse"]

_DEPTH = 100  # chunks that each ranking brings into the fusion
_RERANK_DEPTH = 30  # chunks that a cross-encoder reads
_FOLLOWING = 600  # characters behind a chunk that its passage brings along


class Retriever:
    """Searches a store, which it reads whole when opened."""

    def __init__(self, contents: StoreContents, embedder: Embedder) -> None:
        """Take what ``DocumentStore.read`` gives, and the embedder that made its vectors."""
        self._contents = contents
        self._embedder = embedder
        self._rows = {stored.document.id: row for row, stored in enumerate(contents.documents)}
        self._rerankers: dict[str, Reranker] = {}

    @classmethod
    def open(cls, store: str | Path | DocumentStore, embedder: Embedder | str | None = None) -> Retriever:
        """Open a store; the embedding model is loaded by the first search that needs it.

        Args:
            store: The store's folder.
            embedder: The model that built the store; None takes the one the store names.

        Raises:
            StoreError: The store is missing, damaged, of a newer version or of another embedding model.
        """
        store = store if isinstance(store, DocumentStore) else DocumentStore(store)
        contents = store.read()
        if embedder is None or isinstance(embedder, str):
            embedder = SentenceEmbedder(embedder or contents.embedder)
        contents.check_embedder(embedder.name, store.path)
        return cls(contents, embedder)

    def search(
        self, question: str, k: int = 5, mode: Mode = "hybrid", rerank: str | Reranker | None = None
    ) -> list[Passage]:
        """Find the passages that best fit a question.

        Args:
            question: The question.
            k: Most passages to return.
            mode: ``dense`` by meaning, ``sparse`` by words, ``hybrid`` by both.
            rerank: A cross-encoder, by hub id or folder, that orders the best candidates anew.

        Returns:
            At most k passages, best first. Scores are cosines (dense), BM25 (sparse), sums of reciprocal
            ranks (hybrid) or the cross-encoder's.

        Raises:
            InputError: The question is empty, k is below 1 or the mode is unknown.
            ModelError: A model cannot be loaded.
        """
        if not question.strip():
            raise InputError("The question is empty; ask something.")
        if k < 1:
            raise InputError(f"k is {k}, at least 1 was wanted.")
        if mode not in get_args(Mode):
            raise InputError(f"The search mode {mode!r} is unknown; choose from {', '.join(get_args(Mode))}.")
        if rerank is None:
            return self._passages(self._rank(question, k, mode), k)
        reranker = self._reranker(rerank)
        candidates = self._rank(question, max(k, _RERANK_DEPTH), mode)
        passages = self._passages(candidates, max(k, _RERANK_DEPTH))
        order, scores = reranker.rerank(question, [passage.text for passage in passages])
        return self._passages(Ranking(candidates.rows[order], scores), k)

    def document(self, document_id: str) -> Document:
        """Give a document of the store.

        Raises:
            InputError: The store has no such document.
        """
        row = self._rows.get(document_id)
        if row is None:
            raise InputError(f"The store has no document {document_id!r} among its {len(self._rows)}.")
        return self._contents.documents[row].document

    def __len__(self) -> int:
        """Count the documents."""
        return len(self._rows)

    def _rank(self, question: str, k: int, mode: Mode) -> Ranking:
        if mode == "dense":
            return self._search_dense(question, k)
        if mode == "sparse":
            return self._sparse.search(question, k)
        depth = max(k, _DEPTH)
        return fuse([self._search_dense(question, depth), self._sparse.search(question, depth)])

    def _search_dense(self, question: str, k: int) -> Ranking:
        vector = self._embedder.embed_query(question)
        if len(vector) != self._contents.vectors.shape[1]:
            raise StoreError(
                f"The embedding model {self._embedder.name} gives vectors of {len(vector)} numbers, the "
                f"store holds vectors of {self._contents.vectors.shape[1]}; the model has changed, "
                "index into another store."
            )
        return self._dense.search(vector, k)

    def _passages(self, ranking: Ranking, k: int) -> list[Passage]:
        passages = []
        for row, score in zip(ranking.rows[:k], ranking.scores[:k], strict=True):
            document_row, start, end = map(int, self._contents.chunks[row])
            document = self._contents.documents[document_row].document
            passages.append(
                Passage(
                    document.id,
                    document.text[start:end],
                    start,
                    float(score),
                    document.metadata,
                    following=document.text[end : end + _FOLLOWING],
                )
            )
        return passages

    def _reranker(self, rerank: str | Reranker) -> Reranker:
        if isinstance(rerank, str):
            return self._rerankers.setdefault(rerank, Reranker(rerank))
        return rerank

    @cached_property
    def _dense(self) -> DenseIndex:
        return DenseIndex(self._contents.vectors)

    @cached_property
    def _sparse(self) -> SparseIndex:
        contents = self._contents
        postings = contents.postings or build_postings(contents.texts())
        return SparseIndex(postings, len(contents.chunks))
