"""The document stores of a server, a namespace each, kept current with the disk."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from groundspeed.datastores.documents import NAMESPACES, DocumentStore, StoreContents
from groundspeed.integrations.server.errors import ApiError
from groundspeed.integrations.tokenizing import CORPUS
from groundspeed.types import Document

if TYPE_CHECKING:
    from groundspeed.integrations.server.tokens import TokenCopies
    from groundspeed.retrieval.base import Embedder
    from groundspeed.retrieval.retriever import Retriever
    from groundspeed.retrieval.updating import LiveStore

__all__ = ["NAME", "Stores"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""What a namespace may be called; it becomes the name of a folder."""


class Stores:
    """Document stores in one folder.

    The folder's own store, where ``groundspeed index`` puts a corpus, is the namespace ``corpus``; others lie
    in the folder ``namespaces`` within it.

    All methods may wait for the disk or for an embedding model, and may be called in any thread. A store that
    another process replaces or deletes is seen at the next call.
    """

    def __init__(
        self,
        folder: Path | None,
        embedding_model: Embedder | str | None = None,
        tokens: TokenCopies | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Name the folder; it need not exist.

        Args:
            folder: None for a server without a store.
            embedding_model: For all the stores; None takes the one that a store names, or the default.
            tokens: Where documents are kept to draft from as well.
            read_only: Change nothing.
        """
        self._folder = folder
        self._tokens = tokens
        self._read_only = read_only
        self._embedding_model = embedding_model
        self._embedders: dict[str | None, Embedder] = {}
        self._open: dict[str, LiveStore] = {}
        self._retrievers: dict[str, tuple[StoreContents, Retriever]] = {}
        self._lock = threading.Lock()  # of these
        self._writing = threading.Lock()  # one at a time, as each may embed for long

    def names(self) -> list[str]:
        """The namespaces that there are."""
        if self._folder is None:
            return []
        beside = self._folder / NAMESPACES
        inner = sorted(path.name for path in beside.iterdir()) if beside.is_dir() else []
        names = [CORPUS, *(name for name in inner if name != CORPUS and re.fullmatch(NAME, name))]
        return [name for name in names if self._store(name).exists()]

    def live(self, name: str) -> LiveStore:
        """A namespace, to look into.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is damaged.
        """
        store = self._store(name)
        if not store.exists():
            self._forget(name)
            raise self._missing(name)
        return self._opened(name, store)

    def retriever(self, name: str) -> Retriever:
        """What searches a namespace as it is now.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is damaged.
        """
        from groundspeed.retrieval.retriever import Retriever

        live = self.live(name)
        contents = live.contents()
        with self._lock:
            known = self._retrievers.get(name)
            if known is None or known[0] is not contents:
                known = self._retrievers[name] = (contents, Retriever(contents, live.embedder))
            return known[1]

    def upsert(self, name: str, documents: Iterable[Document]) -> LiveStore:
        """Put documents into a namespace, which is made if it is missing.

        Raises:
            ApiError: The server has no store, or only reads it.
            StoreError: The store is damaged, of another embedding model, or being written.
        """
        self._check_writing()
        documents = list(documents)
        with self._writing:
            live = self._opened(name, self._store(name))
            # Whatever fails on the way, nothing is drafted from that is not in the store.
            if self._tokens is not None:
                self._tokens.drop(name, [document.id for document in documents])
            live.upsert(documents)
            if self._tokens is not None:
                self._tokens.put(name, documents)
            return live

    def delete(self, name: str, ids: Collection[str]) -> None:
        """Take documents out of a namespace.

        Raises:
            ApiError: There is no such namespace, or the server only reads.
            StoreError: The store is damaged or being written.
        """
        self._check_writing()
        with self._writing:
            live = self.live(name)
            if self._tokens is not None:
                self._tokens.drop(name, ids)
            live.delete(ids)

    def remove(self, name: str) -> None:
        """Remove a namespace with all its documents.

        Raises:
            ApiError: There is no such namespace, or the server only reads.
            StoreError: The store is being written.
        """
        self._check_writing()
        with self._writing:
            store = self._store(name)
            if not store.exists():
                raise self._missing(name)
            if self._tokens is not None:
                self._tokens.drop(name)
            store.remove()
            self._forget(name)

    def close(self) -> None:
        """Let others write what is drafted from."""
        if self._tokens is not None:
            self._tokens.close()

    def _check_writing(self) -> None:
        if self._read_only:
            raise ApiError(
                403,
                "this server only reads its store; change it with `groundspeed index`, or through another "
                "server, and the next request sees it",
                "store_read_only",
            )

    def _store(self, name: str) -> DocumentStore:
        if self._folder is None:
            raise ApiError(
                404,
                "this server has no document store; start it with --store DIR",
                "no_store",
                param="namespace",
            )
        return DocumentStore(self._folder if name == CORPUS else self._folder / NAMESPACES / name)

    def _opened(self, name: str, store: DocumentStore) -> LiveStore:
        """What is kept of a namespace; begun anew where there is none, or one of another embedding model."""
        from groundspeed.retrieval.updating import LiveStore

        there = store.exists()
        embedder = self._embedder(self._embedding_model or (store.embedder() if there else None))
        with self._lock:
            live = self._open.get(name)
            if live is None or not there or live.embedder is not embedder:
                live = self._open[name] = LiveStore(store, embedder, cut=True)
            return live

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)
            self._retrievers.pop(name, None)

    def _embedder(self, model: Embedder | str | None) -> Embedder:
        from groundspeed.retrieval.dense import SentenceEmbedder

        if model is not None and not isinstance(model, str):
            return model
        return self._embedders.setdefault(model, SentenceEmbedder(model))

    def _missing(self, name: str) -> ApiError:
        return ApiError(
            404,
            f"there is no namespace {name!r}; add documents to it, or see GET /v1/namespaces for those "
            "that there are",
            "namespace_not_found",
            param="namespace",
        )
