"""Documents are put into a store and taken out of it one by one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from groundspeed.datastores.documents import Chunking, DocumentStore, StoreContents, StoredDocument
from groundspeed.errors import InputError
from groundspeed.retrieval.base import Embedder
from groundspeed.retrieval.chunking import DEFAULT_CHUNKING, Span, chunk
from groundspeed.retrieval.index import digest_of
from groundspeed.retrieval.sparse import build_postings
from groundspeed.types import Document

__all__ = ["delete_documents", "upsert_documents"]

_ROOT = "documents"  # no path: what is put in by itself came from no folder, and indexing one leaves it alone


def upsert_documents(
    store: DocumentStore, documents: Iterable[Document], embedder: Embedder, *, cut: bool = False
) -> StoreContents:
    """Put documents into a store; one with the id of another takes its place.

    Documents that are as they were are not embedded again.

    Args:
        store: Made if it is missing; it changes as a whole or not at all.
        documents: The last one counts, of several with one id.
        embedder: Makes the vectors; the one that made those of the store.
        cut: Cut them into chunks as an indexed corpus is; otherwise each is one chunk.

    Returns:
        What the store holds now.

    Raises:
        InputError: Metadata that JSON cannot hold.
        StoreError: The store is damaged, of another embedding model, or being written.
    """
    given = {document.id: _stored(document) for document in documents}
    with store.lock():
        old = store.read() if store.exists() else None
        if old is None:
            old = _empty(embedder)
        old.check_embedder(embedder.name, store.path)
        same = {one.document.id for one in old.documents if given.get(one.document.id) == one}
        fresh = [stored for name, stored in given.items() if name not in same]
        if not fresh and store.exists():
            return old
        kept = _without(old, {stored.document.id for stored in fresh})
        first = len(kept.documents)
        spans = [
            (first + number, start, end)
            for number, stored in enumerate(fresh)
            for start, end in _spans(stored.document, old.chunking if cut else None)
        ]
        texts = [fresh[row - first].document.text[start:end] for row, start, end in spans]
        vectors = embedder.embed(texts) if texts else np.empty((0, embedder.dimension), np.float32)
        return _written(
            store,
            replace(
                kept,
                documents=(*kept.documents, *fresh),
                chunks=np.concatenate([kept.chunks, np.array(spans, np.int64).reshape(-1, 3)]),
                vectors=np.concatenate([kept.vectors, vectors]),
            ),
        )


def delete_documents(store: DocumentStore, ids: Collection[str]) -> StoreContents:
    """Take documents out of a store; ids that it does not have are passed over.

    Returns:
        What the store holds now.

    Raises:
        StoreError: The store is missing, damaged, or being written.
    """
    with store.lock():
        old = store.read()
        if not any(stored.document.id in set(ids) for stored in old.documents):
            return old
        return _written(store, _without(old, set(ids)))


def _spans(document: Document, chunking: Chunking | None) -> list[Span]:
    return [Span(0, len(document.text))] if chunking is None else chunk(document, chunking)


def _stored(document: Document) -> StoredDocument:
    try:
        json.dumps(dict(document.metadata))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the metadata of the document {document.id!r} cannot be kept as JSON ({error}); give strings, "
            "numbers, lists and dicts"
        ) from error
    return StoredDocument(document, _ROOT, digest_of(document))


def _empty(embedder: Embedder) -> StoreContents:
    return StoreContents(
        embedder=embedder.name,
        chunking=DEFAULT_CHUNKING,
        documents=(),
        chunks=np.empty((0, 3), np.int64),
        vectors=np.empty((0, embedder.dimension), np.float32),
        postings=build_postings([]),
    )


def _without(contents: StoreContents, ids: Collection[str]) -> StoreContents:
    """The contents without some documents; postings are left as they are."""
    stays = np.array([stored.document.id not in ids for stored in contents.documents], bool)
    rows = np.cumsum(stays) - 1
    chosen = stays[contents.chunks[:, 0]]
    chunks = contents.chunks[chosen]
    chunks[:, 0] = rows[chunks[:, 0]]
    return replace(
        contents,
        documents=tuple(one for one in contents.documents if one.document.id not in ids),
        chunks=chunks,
        vectors=contents.vectors[chosen],
    )


def _written(store: DocumentStore, contents: StoreContents) -> StoreContents:
    texts = [contents.documents[row].document.text[start:end] for row, start, end in contents.chunks]
    contents = replace(contents, postings=build_postings(texts))
    store.write(contents)
    return contents
