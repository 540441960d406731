"""What a document store holds: in memory, as bytes, and after changes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from groundspeed.errors import StoreError
from groundspeed.types import Document

if TYPE_CHECKING:
    from groundspeed.datastores.changes import StoreChange

__all__ = ["Chunking", "Postings", "StoreContents", "StoredDocument", "changed", "deserialise", "serialise"]


@dataclass(frozen=True, slots=True)
class Chunking:
    """How documents are cut.

    Attributes:
        size: Longest chunk, in characters.
        overlap: At most so many characters of a chunk stand in the one before it as well.
    """

    size: int
    overlap: int


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document and where it came from.

    Attributes:
        document: The document.
        root: The file or folder it was loaded from, absolute.
        digest: Hash of text and metadata; tells whether the document changed.
    """

    document: Document
    root: str
    digest: str

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "id": self.document.id,
            "root": self.root,
            "digest": self.digest,
            "metadata": dict(self.document.metadata),
            "text": self.document.text,
        }

    @classmethod
    def of(cls, facts: dict[str, Any]) -> StoredDocument:
        """Read what ``facts`` gave."""
        return cls(Document(facts["id"], facts["text"], facts["metadata"]), facts["root"], facts["digest"])


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The sparse index: BM25 scores of c chunks and t terms, n of them not zero, in compressed columns.

    Attributes:
        terms: The t terms; their order numbers the columns.
        starts: int64 [t + 1], term j owns ``chunks[starts[j]:starts[j + 1]]``.
        chunks: int32 [n], rows of the chunks that hold the term.
        scores: float32 [n], what the term adds to the score of each.
    """

    terms: tuple[str, ...]
    starts: NDArray[np.int64]
    chunks: NDArray[np.int32]
    scores: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StoreContents:
    """All that a store holds, in memory.

    Attributes:
        embedder: Name of the model that made the vectors.
        chunking: How the documents were cut.
        documents: The parents, ids unique.
        chunks: int64 [c, 3], row of the document, start, end; by document, then by start.
        vectors: float32 [c, d], a unit vector per chunk.
        postings: The sparse index of the chunks; None where documents changed since it was made.
    """

    embedder: str
    chunking: Chunking
    documents: tuple[StoredDocument, ...]
    chunks: NDArray[np.int64]
    vectors: NDArray[np.float32]
    postings: Postings | None

    def texts(self) -> list[str]:
        """The chunks' texts."""
        return [self.documents[row].document.text[start:end] for row, start, end in self.chunks.tolist()]

    def check_embedder(self, name: str, path: Path) -> None:
        """Refuse an embedding model whose vectors cannot be compared with the ones of the store at ``path``.

        Raises:
            StoreError: Naming both models.
        """
        if name != self.embedder:
            raise StoreError(
                f"The store {path} was built by the embedding model {self.embedder}, {name} was given; "
                f"give {self.embedder}, or index the corpus into another store."
            )


def changed(contents: StoreContents, changes: Iterable[StoreChange]) -> StoreContents:
    """The contents after changes; documents that stay come first."""
    gone: set[str] = set()
    come: dict[str, tuple[StoredDocument, NDArray[np.int64], NDArray[np.float32]]] = {}
    for change in changes:
        gone.update(change.deleted)
        for name in change.deleted:
            come.pop(name, None)
        come.update((piece[0].document.id, piece) for piece in change.pieces())
    stays = np.array([stored.document.id not in gone for stored in contents.documents], bool)
    rows = stays[contents.chunks[:, 0]]
    chunks = contents.chunks[rows]
    chunks[:, 0] = (np.cumsum(stays) - 1)[chunks[:, 0]]
    kept = [stored for stored in contents.documents if stored.document.id not in gone]
    fresh = [np.insert(spans, 0, len(kept) + row, axis=1) for row, (_, spans, _) in enumerate(come.values())]
    return replace(
        contents,
        documents=(*kept, *(stored for stored, _, _ in come.values())),
        chunks=np.concatenate([chunks, *fresh]),
        vectors=np.concatenate(
            [contents.vectors[rows], *(vectors for _, spans, vectors in come.values() if len(spans))]
        ),
        postings=None,
    )


def serialise(contents: StoreContents) -> Iterator[tuple[str, bytes]]:
    """The files of a generation, each with its bytes."""
    assert contents.postings is not None, "the sparse index is made before a store is written"
    rows = (json.dumps(stored.facts(), ensure_ascii=False).encode() for stored in contents.documents)
    yield "documents.jsonl", b"".join(row + b"\n" for row in rows)
    yield "terms.json", json.dumps(contents.postings.terms, ensure_ascii=False).encode()
    arrays: dict[str, NDArray[Any]] = {
        "chunks.npy": contents.chunks,
        "vectors.npy": contents.vectors,
        "postings_starts.npy": contents.postings.starts,
        "postings_chunks.npy": contents.postings.chunks,
        "postings_scores.npy": contents.postings.scores,
    }
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        yield name, buffer.getvalue()


def deserialise(header: dict[str, Any], data: dict[str, bytes]) -> StoreContents:
    """Read what ``serialise`` wrote, the rest from the header.

    Raises:
        ValueError: Something is not what it should be; so do KeyError, TypeError and AttributeError.
    """

    def array(name: str) -> NDArray[Any]:
        return cast("NDArray[Any]", np.load(io.BytesIO(data[name]), allow_pickle=False))

    # Lines end at \n alone: str.splitlines would cut at other separators that stand inside JSON strings.
    rows = (json.loads(line) for line in data["documents.jsonl"].split(b"\n")[:-1])
    return StoreContents(
        embedder=header["embedder"]["model"],
        chunking=Chunking(header["chunking"]["size"], header["chunking"]["overlap"]),
        documents=tuple(map(StoredDocument.of, rows)),
        chunks=array("chunks.npy"),
        vectors=array("vectors.npy"),
        postings=Postings(
            terms=tuple(json.loads(data["terms.json"])),
            starts=array("postings_starts.npy"),
            chunks=array("postings_chunks.npy"),
            scores=array("postings_scores.npy"),
        ),
    )
