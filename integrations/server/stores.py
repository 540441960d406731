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
    from groundspeed.retrieval.base import Embedder
    from groundspeed.retrieval.retriever import Retriever

__all__ = ["NAME", "Stores"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""What a namespace may be called; it becomes the name of a folder."""

_Mark = tuple[int, int, int]


class Stores:
    """Document stores in one folder.

    The folder's own store, where ``groundspeed index`` puts a corpus, is the namespace ``corpus``; others lie
    in the folder ``namespaces`` within it.

    All methods may wait for the disk or for an embedding model, and may be called in any thread. A store that
    another process replaces or deletes is seen at the next call.
    """

    def __init__(self, folder: Path | None, embedding_model: Embedder | str | None = None) -> None:
        """Name the folder; it need not exist.

        Args:
            folder: None for a server without a store.
            embedding_model: For all the stores; None takes the one that a store names, or the default.
        """
        self._folder = folder
        self._embedding_model = embedding_model
        self._embedders: dict[str | None, Embedder] = {}
        self._open: dict[str, tuple[_Mark, StoreContents, Retriever]] = {}
        self._lock = threading.RLock()  # of what is open
        self._writing = threading.Lock()  # one at a time, as each embeds and writes a whole store

    def names(self) -> list[str]:
        """The namespaces that there are."""
        if self._folder is None:
            return []
        beside = self._folder / NAMESPACES
        inner = sorted(path.name for path in beside.iterdir()) if beside.is_dir() else []
        names = [CORPUS, *(name for name in inner if name != CORPUS and re.fullmatch(NAME, name))]
        return [name for name in names if self._store(name).exists()]

    def contents(self, name: str) -> StoreContents:
        """What a namespace holds now.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is damaged.
        """
        return self._opened(name)[1]

    def retriever(self, name: str) -> Retriever:
        """What searches a namespace as it is now.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is damaged.
        """
        return self._opened(name)[2]

    def upsert(self, name: str, documents: Iterable[Document]) -> StoreContents:
        """Put documents into a namespace, which is made if it is missing; what it holds now.

        Raises:
            ApiError: The server has no store.
            StoreError: The store is damaged, of another embedding model, or being written.
        """
        from groundspeed.retrieval.updating import upsert_documents

        store = self._store(name)
        with self._writing:
            named = self._opened(name)[1].embedder if store.exists() else None
            embedder = self._embedder(self._embedding_model or named)
            return self._replaced(name, store, upsert_documents(store, documents, embedder, cut=True))

    def delete(self, name: str, ids: Collection[str]) -> StoreContents:
        """Take documents out of a namespace; what it holds now.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is damaged or being written.
        """
        from groundspeed.retrieval.updating import delete_documents

        with self._writing:
            self._opened(name)
            store = self._store(name)
            return self._replaced(name, store, delete_documents(store, ids))

    def remove(self, name: str) -> None:
        """Remove a namespace with all its documents.

        Raises:
            ApiError: There is no such namespace.
            StoreError: The store is being written.
        """
        with self._writing:
            store = self._store(name)
            if not store.exists():
                raise self._missing(name)
            store.remove()

    def _store(self, name: str) -> DocumentStore:
        if self._folder is None:
            raise ApiError(
                404,
                "this server has no document store; start it with --store DIR",
                "no_store",
                param="namespace",
            )
        return DocumentStore(self._folder if name == CORPUS else self._folder / NAMESPACES / name)

    def _opened(self, name: str) -> tuple[_Mark, StoreContents, Retriever]:
        store = self._store(name)
        with self._lock:
            mark = store.mark()
            if mark is None:
                self._open.pop(name, None)
                raise self._missing(name)
            known = self._open.get(name)
            if known is None or known[0] != mark:
                self._keep(name, mark, store.read())
            return self._open[name]

    def _replaced(self, name: str, store: DocumentStore, contents: StoreContents) -> StoreContents:
        with self._lock:
            if (mark := store.mark()) is not None:
                self._keep(name, mark, contents)
        return contents

    def _keep(self, name: str, mark: _Mark, contents: StoreContents) -> None:
        from groundspeed.retrieval.retriever import Retriever

        embedder = self._embedder(self._embedding_model or contents.embedder)
        contents.check_embedder(embedder.name, self._store(name).path)
        self._open[name] = (mark, contents, Retriever(contents, embedder))

    def _embedder(self, model: Embedder | str | None) -> Embedder:
        from groundspeed.retrieval.dense import SentenceEmbedder

        if model is not None and not isinstance(model, str):
            return model
        if model not in self._embedders:
            self._embedders[model] = SentenceEmbedder(model)
        return self._embedders[model]

    def _missing(self, name: str) -> ApiError:
        return ApiError(
            404,
            f"there is no namespace {name!r}; add documents to it, or see GET /v1/namespaces for those "
            "that there are",
            "namespace_not_found",
            param="namespace",
        )
