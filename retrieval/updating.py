"""A store that is changed document by document, at the price of what changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.corpus import changed
from groundspeed.datastores.documents import (
    Chunking,
    DocumentStore,
    Position,
    StoreChange,
    StoreContents,
    StoredDocument,
)
from groundspeed.errors import InputError, StoreError
from groundspeed.retrieval.base import Embedder, Ranking
from groundspeed.retrieval.chunking import DEFAULT_CHUNKING, chunk
from groundspeed.retrieval.index import digest_of
from groundspeed.retrieval.sparse import build_postings
from groundspeed.types import Document

__all__ = ["LiveStore"]

_ROOT = "documents"  # no path: what is put in by itself came from no folder, and indexing one leaves it alone
_LEAST_DUE = 1 << 20  # bytes of changes that are never worth writing everything anew
_WAIT = 10.0  # seconds for another process, whose change takes milliseconds
_DUE = 1 / 4  # of the bytes written whole, from which on changes are


class LiveStore:
    """Documents of a store, kept in memory while they are put in and taken out one by one.

    A change is appended to the store; when changes have become a quarter of it, everything is written anew,
    so that a document costs the same on average however many there are. Threads may share it, and it sees
    what other processes write.
    """

    def __init__(self, store: DocumentStore, embedder: Embedder, *, cut: bool = False) -> None:
        """Name the store; it is made by the first change and read by the first look.

        Args:
            store: The store.
            embedder: Makes the vectors; the one that made those of the store.
            cut: Cut documents that are put in as an indexed corpus is; otherwise each is one chunk.
        """
        self.embedder = embedder
        self._store = store
        self._cut = cut
        self._writing = threading.Lock()
        self._lock = threading.RLock()  # of what is in memory; nobody waits long for it
        self._position: Position | None = None
        self._snapshot: StoreContents | None
        self._load(StoreContents(embedder.name, DEFAULT_CHUNKING, (), _NO_CHUNKS, _NO_VECTORS, None))

    def upsert(self, documents: Iterable[Document]) -> None:
        """Put documents in; one with the id of another takes its place.

        Documents that are as they were are not embedded again.

        Args:
            documents: The last one counts, of several with one id.

        Raises:
            InputError: Metadata that JSON cannot hold.
            StoreError: The store is damaged, of another embedding model, or being written.
        """
        given = {document.id: _stored(document) for document in documents}
        with self._writing, self._store.lock(_WAIT):
            with self._lock:
                self._catch_up()
                fresh = tuple(one for name, one in given.items() if self._documents.get(name) != one)
            if not fresh:
                return
            chunks = self._chunks(fresh)
            texts = [fresh[row].document.text[start:end] for row, start, end in chunks.tolist()]
            vectors = self.embedder.embed(texts) if texts else _NO_VECTORS
            with self._lock:
                self._catch_up()
                if texts:
                    self._check_width(vectors.shape[1])
                there = tuple(one.document.id for one in fresh if one.document.id in self._documents)
                self._change(StoreChange(there, fresh, chunks, vectors))

    def delete(self, ids: Collection[str]) -> None:
        """Take documents out; ids that are not there are passed over.

        Raises:
            StoreError: The store is damaged, of another embedding model, or being written.
        """
        with self._writing:
            if not self._store.exists():
                return
            with self._store.lock(_WAIT), self._lock:
                self._catch_up()
                there = tuple(name for name in dict.fromkeys(ids) if name in self._documents)
                if there:
                    self._change(StoreChange(there, (), _NO_CHUNKS, _NO_VECTORS))

    def get(self, ids: Iterable[str]) -> list[Document]:
        """The documents with these ids, in their order; those that are not there are left out.

        Raises:
            StoreError: The store is damaged, or of another embedding model.
        """
        with self._lock:
            self._catch_up()
            return [self._documents[name].document for name in ids if name in self._documents]

    def counts(self) -> tuple[int, int]:
        """How many documents and chunks there are.

        Raises:
            StoreError: The store is damaged, or of another embedding model.
        """
        with self._lock:
            self._catch_up()
            return len(self._documents), sum(map(len, self._rows.values()))

    def contents(self) -> StoreContents:
        """All that there is; the same object until something changes.

        Raises:
            StoreError: The store is damaged, or of another embedding model.
        """
        with self._lock:
            self._catch_up()
            if self._snapshot is None:
                self._snapshot = self._contents()
            return self._snapshot

    def nearest(self, vector: NDArray[np.float32]) -> Iterator[tuple[Document, float, NDArray[np.float32]]]:
        """All documents by their nearest chunk, each with its cosine and that chunk's vector, best first.

        Args:
            vector: float32 [d], of any length but 0.

        Raises:
            StoreError: The store is damaged, or of another embedding model.
        """
        with self._lock:
            self._catch_up()
            # Rows that come later stand behind these; what else may change is copied.
            vectors, owners, documents = (
                self._vectors[: len(self._owners)],
                [*self._owners],
                {**self._documents},
            )
        if not documents:
            return
        self._check_width(len(vector))
        unit = vector / max(float(np.linalg.norm(vector)), 1e-30)
        best = Ranking.best((vectors @ unit).astype(np.float32), len(vectors))
        for row, score in zip(best.rows.tolist(), best.scores.tolist(), strict=True):
            name = owners[row]
            if name is not None and (stored := documents.pop(name, None)) is not None:
                yield stored.document, score, vectors[row]

    def _chunks(self, documents: Sequence[StoredDocument]) -> NDArray[np.int64]:
        """The chunks of documents, as ``StoreChange`` holds them."""
        spans = [
            (row, start, end)
            for row, stored in enumerate(documents)
            for start, end in (
                chunk(stored.document, self._chunking) if self._cut else [(0, len(stored.document.text))]
            )
        ]
        return np.array(spans, np.int64).reshape(-1, 3)

    def _check_width(self, width: int) -> None:
        if self._position is not None and width != self._vectors.shape[1]:
            raise StoreError(
                f"A vector of {width} numbers was given, those of the store {self._store.path} have "
                f"{self._vectors.shape[1]}; use the embedding model that made them, or another store."
            )

    def _catch_up(self) -> None:
        """Take in what was written since the last look."""
        if self._position is not None and self._store.is_at(self._position):
            return
        if self._position is None and not self._store.exists():
            return
        known, self._position = self._position, None  # what is in memory holds only if all goes well
        news = self._store.changes(known) if known is not None else None
        if news is not None and self._store.is_at(news[1]):
            changes, position = news
        else:  # it was written whole meanwhile
            contents, changes, position = self._store.open()
            contents.check_embedder(self.embedder.name, self._store.path)
            self._load(contents)
        for change in changes:
            self._apply(change)
        self._position = position

    def _change(self, change: StoreChange) -> None:
        """Write a change and take it in."""
        position = self._position
        if position is not None and position.offset <= max(_LEAST_DUE, _DUE * self._store.written_bytes()):
            self._position = self._store.append(change, position)
            self._apply(change)
        else:
            contents = changed(self._contents(), [change])
            contents = replace(contents, postings=build_postings(contents.texts()))
            self._position = self._store.write(contents)
            self._load(contents)

    def _load(self, contents: StoreContents) -> None:
        self._snapshot = contents
        self._chunking: Chunking = contents.chunking
        self._documents = {stored.document.id: stored for stored in contents.documents}
        self._vectors = contents.vectors  # [at least as many as owners, d]
        self._owners: list[str | None] = [
            contents.documents[row].document.id for row in contents.chunks[:, 0].tolist()
        ]  # by row the document's id; None where it is gone
        self._spans: list[tuple[int, int]] = [(start, end) for _, start, end in contents.chunks.tolist()]
        self._rows: dict[str, list[int]] = {}
        for row, name in enumerate(self._owners):
            self._rows.setdefault(str(name), []).append(row)

    def _apply(self, change: StoreChange) -> None:
        self._snapshot = None
        for name in change.deleted:
            del self._documents[name]
            for row in self._rows.pop(name, ()):
                self._owners[row] = None
        row, more = len(self._owners), len(change.chunks)
        if row + more > len(self._vectors):
            room = np.empty((2 * row + more, change.vectors.shape[1]), np.float32)
            if row:
                room[:row] = self._vectors[:row]
            self._vectors = room
        if more:
            self._vectors[row : row + more] = change.vectors
        for stored, spans, _ in change.pieces():
            name = stored.document.id
            self._documents[name] = stored
            self._rows[name] = [*range(len(self._owners), len(self._owners) + len(spans))]
            self._owners += [name] * len(spans)
            self._spans += map(tuple, spans.tolist())

    def _contents(self) -> StoreContents:
        """What is in memory, for writing; the sparse index is left out."""
        rows = [row for name in self._documents for row in self._rows.get(name, ())]
        numbers = {name: number for number, name in enumerate(self._documents)}
        chunks = [(numbers[str(self._owners[row])], *self._spans[row]) for row in rows]
        return StoreContents(
            embedder=self.embedder.name,
            chunking=self._chunking,
            documents=tuple(self._documents.values()),
            chunks=np.array(chunks, np.int64).reshape(-1, 3),
            vectors=self._vectors[rows] if rows else np.empty((0, self.embedder.dimension), np.float32),
            postings=None,
        )


_NO_CHUNKS = np.empty((0, 3), np.int64)
_NO_VECTORS = np.empty((0, 0), np.float32)


def _stored(document: Document) -> StoredDocument:
    try:
        metadata = json.loads(json.dumps(dict(document.metadata)))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the metadata of the document {document.id!r} cannot be kept as JSON ({error}); give strings, "
            "numbers, lists and dicts"
        ) from error
    document = replace(document, metadata=metadata)  # as it will be read again, and nobody else's to change
    return StoredDocument(document, _ROOT, digest_of(document))
