"""A corpus goes into a store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.documents import Chunking, DocumentStore, StoreContents, StoredDocument
from groundspeed.errors import InputError
from groundspeed.retrieval.base import Embedder
from groundspeed.retrieval.chunking import DEFAULT_CHUNKING, Span, chunk
from groundspeed.retrieval.dense import SentenceEmbedder
from groundspeed.retrieval.loaders import MAX_DOCUMENT_BYTES, LoadLog, absolute_roots, load_roots
from groundspeed.retrieval.sparse import build_postings
from groundspeed.types import Document, ProgressCallback

__all__ = ["IndexReport", "digest_of", "index_corpus"]


@dataclass(slots=True)
class IndexReport:
    """What indexing did.

    Attributes:
        added: Documents that are new in the store.
        changed: Documents whose text or metadata changed, or that were cut anew because the chunking changed.
        removed: Documents that are gone from the given paths.
        unchanged: Documents kept with their vectors, those of other paths included.
        chunks: Chunks the store holds now.
        embedded: Chunks that went through the embedding model.
        skipped: A message per unreadable file or row that was skipped.
        passed_over: Files of unknown type in the folders, counted by suffix.
        seconds: By stage: ``load``, ``chunk``, ``embed`` (the model's loading included), ``sparse``,
            ``write``.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    chunks: int = 0
    embedded: int = 0
    skipped: tuple[str, ...] = ()
    passed_over: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Book the time of a block to a stage."""
        begin = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A document with its chunks and, when they are known already, their vectors, float32 [chunks, d]."""

    stored: StoredDocument
    spans: list[Span]
    vectors: NDArray[np.float32] | None


def index_corpus(
    paths: Iterable[str | Path],
    store: str | Path | DocumentStore,
    *,
    embedder: Embedder | str | None = None,
    chunking: Chunking | None = None,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    skip_unreadable: bool = False,
    on_progress: ProgressCallback | None = None,
) -> IndexReport:
    """Make a store hold what the paths hold now; the store changes at the end, all at once.

    Documents whose text and metadata are as before keep their chunks and vectors. Those the store has from
    the same paths, and that are gone, are removed. Documents of other paths stay. A folder takes over what
    was indexed from files and folders in it.

    Args:
        paths: Files and folders, see ``groundspeed.retrieval.loaders``.
        store: The store's folder; made if it is missing.
        embedder: Model for the vectors; None takes the store's own, or the default for a new store.
        chunking: How to cut; None takes the store's own, or the default. Another one than the store's cuts
            and embeds everything anew.
        max_document_bytes: A larger document is refused.
        skip_unreadable: Leave out what cannot be read instead of raising.
        on_progress: Is told about the stages ``load``, ``chunk`` and ``embed``.

    Raises:
        InputError: A path or a document cannot be used.
        StoreError: The store is damaged, of a newer version, of another embedding model, or being written.
        ModelError: The embedding model cannot be loaded.
        MissingDependencyError: The default embedding model is not installed.
    """
    store = store if isinstance(store, DocumentStore) else DocumentStore(store)
    roots = absolute_roots(paths)
    report, log = IndexReport(), LoadLog()
    with store.lock():
        old = store.read() if store.exists() else None
        embedder = _choose_embedder(embedder, old, store)
        chunking = chunking or (old.chunking if old else DEFAULT_CHUNKING)
        with report.timed("load"):
            corpus = _kept(old, roots)
            loaded = load_roots(
                roots, max_document_bytes=max_document_bytes, skip_unreadable=skip_unreadable, log=log
            )
            for root, document in loaded:
                _add(corpus, StoredDocument(document, str(root), digest_of(document)))
                _tell(on_progress, "load", len(corpus), 0)
        report.skipped, report.passed_over = tuple(log.skipped), dict(log.passed_over)
        with report.timed("chunk"):
            prepared = _prepare(corpus, old, chunking, report, on_progress)
        report.chunks = sum(len(item.spans) for item in prepared)
        if old is not None and not (report.added or report.changed or report.removed):
            return report
        with report.timed("embed"):
            vectors = _embed(prepared, embedder, report, on_progress)
        with report.timed("sparse"):
            postings = build_postings(list(_texts(prepared)))
        with report.timed("write"):
            store.write(
                StoreContents(
                    embedder=embedder.name,
                    chunking=chunking,
                    documents=tuple(corpus.values()),
                    chunks=_table(prepared),
                    vectors=vectors,
                    postings=postings,
                )
            )
    return report


def _choose_embedder(
    wanted: Embedder | str | None, old: StoreContents | None, store: DocumentStore
) -> Embedder:
    if wanted is None or isinstance(wanted, str):
        wanted = SentenceEmbedder(wanted or (old.embedder if old else None))
    if old is not None:
        old.check_embedder(wanted.name, store.path)
    return wanted


def _kept(old: StoreContents | None, roots: list[Path]) -> dict[str, StoredDocument]:
    """The documents of other roots, by id."""
    kept: dict[str, StoredDocument] = {}
    for stored in old.documents if old else ():
        if any(Path(stored.root).is_relative_to(root) for root in roots):
            continue
        for root in roots:
            if root.is_relative_to(stored.root):
                raise InputError(
                    f"{root} lies in {stored.root}, which the store holds already; index {stored.root} again."
                )
        kept[stored.document.id] = stored
    return kept


def _add(corpus: dict[str, StoredDocument], stored: StoredDocument) -> None:
    other = corpus.setdefault(stored.document.id, stored)
    if other is not stored:
        raise InputError(
            f"Two documents have the id {stored.document.id!r}: the store has one from {other.root}, "
            f"{stored.root} holds another. Index the folder that holds both, or index into another store."
        )


def digest_of(document: Document) -> str:
    """Hash of text and metadata; tells whether a document changed."""
    metadata = json.dumps(dict(document.metadata), sort_keys=True)
    return sha256(f"{metadata}\n{document.text}".encode()).hexdigest()


def _prepare(
    corpus: dict[str, StoredDocument],
    old: StoreContents | None,
    chunking: Chunking,
    report: IndexReport,
    on_progress: ProgressCallback | None,
) -> list[_Prepared]:
    """Cut what is new; take from the old store what is not."""
    rows = {stored.document.id: row for row, stored in enumerate(old.documents)} if old else {}
    report.removed = len(rows.keys() - corpus.keys())
    prepared = []
    for done, (document_id, stored) in enumerate(corpus.items(), 1):
        row = rows.get(document_id)
        if old is None or row is None:
            report.added += 1
        elif old.documents[row].digest != stored.digest or old.chunking != chunking:
            report.changed += 1
        else:
            report.unchanged += 1
            begin, end = np.searchsorted(old.chunks[:, 0], [row, row + 1])
            spans = [Span(int(start), int(stop)) for _, start, stop in old.chunks[begin:end]]
            prepared.append(_Prepared(stored, spans, old.vectors[begin:end]))
            continue
        prepared.append(_Prepared(stored, chunk(stored.document, chunking), None))
        _tell(on_progress, "chunk", done, len(corpus))
    return prepared


def _embed(
    prepared: list[_Prepared], embedder: Embedder, report: IndexReport, on_progress: ProgressCallback | None
) -> NDArray[np.float32]:
    """The vectors of all chunks, float32 [c, d], embedding those that have none."""
    fresh = list(_texts(item for item in prepared if item.vectors is None))
    report.embedded = len(fresh)
    parts = [item.vectors for item in prepared if item.vectors is not None]
    if not fresh:
        return np.concatenate(parts)
    vectors = embedder.embed(fresh, on_progress)
    result = np.empty((report.chunks, vectors.shape[1]), np.float32)
    position = used = 0
    for item in prepared:
        part = item.vectors
        if part is None:
            part = vectors[used : used + len(item.spans)]
            used += len(item.spans)
        result[position : position + len(item.spans)] = part
        position += len(item.spans)
    return result


def _texts(prepared: Iterable[_Prepared]) -> Iterator[str]:
    for item in prepared:
        for start, end in item.spans:
            yield item.stored.document.text[start:end]


def _table(prepared: list[_Prepared]) -> NDArray[np.int64]:
    rows = [(row, *span) for row, item in enumerate(prepared) for span in item.spans]
    return np.array(rows, np.int64).reshape(-1, 3)


def _tell(on_progress: ProgressCallback | None, stage: str, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(stage, done, total)
