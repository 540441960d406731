"""The document store: the parents, chunks, vectors and BM25 scores of one corpus in one folder.

Layout of the folder::

    header.json                 what the store is: version, embedding model, counts, checksums
    generation-000007/          the files that the header vouches for
        documents.jsonl         one object a line: id, root, digest, metadata, text
        chunks.npy              int64 [c, 3]: row of the document, start, end (characters)
        vectors.npy             float32 [c, d]: unit vectors
        terms.json              the t terms of the sparse index
        postings_*.npy          its scores, a [c, t] matrix in compressed columns
    .lock                       held by the process that writes

A write lays a new generation beside the old one and flushes it to the disk; then one rename of
``header.json`` makes it the store. A crash before the rename leaves the old store, after it the new one.
Only npy without pickle, JSON and JSONL are read.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.files import sync_folder, write_through
from groundspeed.errors import StoreError
from groundspeed.types import Document

__all__ = ["NAMESPACES", "Chunking", "DocumentStore", "Postings", "StoreContents", "StoredDocument"]

FORMAT = "groundspeed document store"
VERSION = 1

NAMESPACES = "namespaces"
"""A folder in that of a store where other stores may lie."""

_HEADER = "header.json"
_LOCK = ".lock"
_GENERATION = "generation-"


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
        postings: The sparse index of the chunks.
    """

    embedder: str
    chunking: Chunking
    documents: tuple[StoredDocument, ...]
    chunks: NDArray[np.int64]
    vectors: NDArray[np.float32]
    postings: Postings

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


def is_store(folder: Path) -> bool:
    """Whether a folder is a document store, so that an index of the folder around it can pass it over."""
    return (folder / _HEADER).is_file() and any(folder.glob(f"{_GENERATION}*"))


class DocumentStore:
    """A corpus in a folder: read whole, written whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        """Name the folder; nothing is touched yet."""
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether the folder holds a store."""
        return (self.path / _HEADER).is_file()

    def mark(self) -> tuple[int, int, int] | None:
        """What tells one state of the store from another; None without a store. Microseconds."""
        try:
            status = (self.path / _HEADER).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def read(self) -> StoreContents:
        """Read everything, so that a later write does not disturb the reader.

        Raises:
            StoreError: The store is missing, damaged or of a newer version.
        """
        header = self._header()
        while True:
            try:
                return self._read_generation(header)
            except FileNotFoundError as error:
                # A writer may have replaced the generation between our two reads; then there is a new header.
                latest = self._header()
                if latest["generation"] == header["generation"]:
                    raise self._damaged(f"the file {Path(error.filename).name} is missing") from error
                header = latest

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the store for writing; makes the folder, and takes it away again if nothing was written.

        Raises:
            StoreError: Another process is writing, or the folder holds something else.
        """
        from filelock import FileLock, Timeout

        fresh = not self.path.exists()
        self._refuse_foreign_folder()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK, timeout=0)
            lock.acquire()
        except Timeout as error:
            raise StoreError(
                f"The store {self.path} is being written by another process; wait until it is done, "
                "or index into another folder."
            ) from error
        except OSError as error:
            raise StoreError(
                f"The store {self.path} cannot be written ({error.strerror}); give a writable folder."
            ) from error
        try:
            yield
        finally:
            # While the lock is still held: whoever waits for it must not lose what it writes afterwards.
            if fresh and not self.exists():
                shutil.rmtree(self.path, ignore_errors=True)
            lock.release()

    def write(self, contents: StoreContents) -> None:
        """Replace what the store holds, whole or not at all; call it inside ``lock``.

        Raises:
            StoreError: The disk refused.
        """
        taken = [int(path.name.removeprefix(_GENERATION)) for path in self._generations()]
        folder = self.path / f"{_GENERATION}{max(taken, default=0) + 1:06d}"
        try:
            folder.mkdir()
            files = {}
            for name, data in _serialise(contents):
                write_through(folder / name, data)
                files[name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
            sync_folder(folder)
            header = {
                "format": FORMAT,
                "version": VERSION,
                "generation": folder.name,
                "embedder": {"model": contents.embedder, "dimension": contents.vectors.shape[1]},
                "chunking": {"size": contents.chunking.size, "overlap": contents.chunking.overlap},
                "counts": {"documents": len(contents.documents), "chunks": len(contents.chunks)},
                "files": files,
            }
            new_header = folder / _HEADER
            write_through(new_header, json.dumps(header, indent=2).encode())
            sync_folder(self.path)
            new_header.replace(self.path / _HEADER)
            sync_folder(self.path)
        except OSError as error:
            raise StoreError(
                f"The store {self.path} could not be written ({error.strerror}) and stays as it was; "
                "make room or give another folder, then index again."
            ) from error
        finally:
            self._sweep()

    def remove(self) -> None:
        """Remove the store; what else lies in its folder stays.

        Raises:
            StoreError: Another process is writing, or the disk refused.
        """
        with self.lock():
            try:
                (self.path / _HEADER).unlink(missing_ok=True)
                sync_folder(self.path)
            except OSError as error:
                raise StoreError(
                    f"The store {self.path} cannot be removed ({error.strerror}); make its folder writable."
                ) from error
            self._sweep()
            if {path.name for path in self.path.iterdir()} <= {_LOCK}:
                shutil.rmtree(self.path, ignore_errors=True)

    def _generations(self) -> list[Path]:
        return [path for path in self.path.glob(f"{_GENERATION}*") if path.name[len(_GENERATION) :].isdigit()]

    def _sweep(self) -> None:
        """Remove all generations but the header's: the older after a write, the newer after a failure."""
        current = self._header()["generation"] if self.exists() else None
        for path in self._generations():
            if path.name != current:
                shutil.rmtree(path, ignore_errors=True)

    def _refuse_foreign_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"The store {self.path} is a file, a folder was wanted; give another path.")
        if not self.path.is_dir() or self.exists():
            return
        ours = {_LOCK, NAMESPACES, *(path.name for path in self._generations())}
        if foreign := next((path.name for path in self.path.iterdir() if path.name not in ours), None):
            raise StoreError(
                f"The folder {self.path} is not a store and holds other things ({foreign}); "
                "give an empty folder or one that does not exist yet."
            )

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"The store {self.path} is damaged: {what}. Delete the folder and index the corpus again."
        )

    def _header(self) -> dict[str, Any]:
        try:
            header = json.loads((self.path / _HEADER).read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"There is no store at {self.path}; "
                f"make one with `groundspeed index PATH --store {self.path}`."
            ) from error
        except OSError as error:
            raise StoreError(f"The store {self.path} cannot be read ({error.strerror}).") from error
        except ValueError as error:
            raise self._damaged(f"{_HEADER} is not JSON") from error
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._damaged(f"{_HEADER} does not describe a {FORMAT}")
        if header.get("version") != VERSION:
            raise StoreError(
                f"The store {self.path} has format version {header.get('version')}, this groundspeed reads "
                f"version {VERSION}; upgrade groundspeed, or delete the folder and index the corpus again."
            )
        return header

    def _read_generation(self, header: dict[str, Any]) -> StoreContents:
        try:
            folder = self.path / header["generation"]
            data = {name: (folder / name).read_bytes() for name in header["files"]}
            for name, facts in header["files"].items():
                if len(data[name]) != facts["bytes"]:
                    raise self._damaged(f"{name} has {len(data[name])} bytes instead of {facts['bytes']}")
                if sha256(data[name]).hexdigest() != facts["sha256"]:
                    raise self._damaged(f"the checksum of {name} does not fit")
            contents = _deserialise(header, data)
            counts = {"documents": len(contents.documents), "chunks": len(contents.chunks)}
            if counts != header["counts"]:
                raise self._damaged(f"it holds {counts} instead of {header['counts']}")
            wanted = (counts["chunks"], header["embedder"]["dimension"])
            if contents.vectors.shape != wanted:
                raise self._damaged(
                    f"the vectors have the shape {contents.vectors.shape} instead of {wanted}"
                )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"The store {self.path} cannot be read ({error.strerror}).") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"{type(error).__name__} {error}") from error
        return contents


def _serialise(contents: StoreContents) -> Iterator[tuple[str, bytes]]:
    rows = (
        {
            "id": stored.document.id,
            "root": stored.root,
            "digest": stored.digest,
            "metadata": dict(stored.document.metadata),
            "text": stored.document.text,
        }
        for stored in contents.documents
    )
    yield "documents.jsonl", b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
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


def _deserialise(header: dict[str, Any], data: dict[str, bytes]) -> StoreContents:
    def array(name: str) -> NDArray[Any]:
        return cast("NDArray[Any]", np.load(io.BytesIO(data[name]), allow_pickle=False))

    # Lines end at \n alone: str.splitlines would cut at other separators that stand inside JSON strings.
    rows = (json.loads(line) for line in data["documents.jsonl"].split(b"\n")[:-1])
    return StoreContents(
        embedder=header["embedder"]["model"],
        chunking=Chunking(header["chunking"]["size"], header["chunking"]["overlap"]),
        documents=tuple(
            StoredDocument(Document(row["id"], row["text"], row["metadata"]), row["root"], row["digest"])
            for row in rows
        ),
        chunks=array("chunks.npy"),
        vectors=array("vectors.npy"),
        postings=Postings(
            terms=tuple(json.loads(data["terms.json"])),
            starts=array("postings_starts.npy"),
            chunks=array("postings_chunks.npy"),
            scores=array("postings_scores.npy"),
        ),
    )
