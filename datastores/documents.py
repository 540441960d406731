"""The document store: the parents, chunks, vectors and BM25 scores of one corpus in one folder.

Layout of the folder::

    header.json                 what the store is: version, embedding model, counts, checksums
    generation-5c1f.../         the files that the header vouches for
        documents.jsonl         one object a line: id, root, digest, metadata, text
        chunks.npy              int64 [c, 3]: row of the document, start, end (characters)
        vectors.npy             float32 [c, d]: unit vectors
        terms.json              the t terms of the sparse index
        postings_*.npy          its scores, a [c, t] matrix in compressed columns
        changes.jsonl           what changed since, the one file that grows (``datastores/changes.py``)
    .lock                       held by the process that writes

A write lays a new generation beside the old one and flushes it to the disk; then one rename of
``header.json`` makes it the store. A crash before the rename leaves the old store, after it the new one. A
change of a few documents is appended instead, until there are so many that a write is due.
Only npy without pickle, JSON and JSONL are read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from groundspeed.datastores.changes import StoreChange, append_change, read_changes
from groundspeed.datastores.corpus import (
    Chunking,
    Postings,
    StoreContents,
    StoredDocument,
    changed,
    deserialise,
    serialise,
)
from groundspeed.datastores.files import sync_folder, write_through
from groundspeed.errors import StoreError

__all__ = [
    "NAMESPACES",
    "Chunking",
    "DocumentStore",
    "Position",
    "Postings",
    "StoreChange",
    "StoreContents",
    "StoredDocument",
]

FORMAT = "groundspeed document store"
VERSION = 2

NAMESPACES = "namespaces"
"""A folder in that of a store where other stores may lie."""

_HEADER = "header.json"
_LOCK = ".lock"
_GENERATION = "generation-"
_GENERATIONS = f"{_GENERATION}{'[0-9a-f]' * 32}"
_CHANGES = "changes.jsonl"


class Position(NamedTuple):
    """How far a store was read.

    Attributes:
        generation: Name of its folder; no other has ever the same, not even in a store made anew.
        offset: Bytes of its changes.
    """

    generation: str
    offset: int


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

    def embedder(self) -> str:
        """Name of the model that made the vectors.

        Raises:
            StoreError: The store is missing, damaged or of a newer version.
        """
        return str(self._header()["embedder"]["model"])

    def read(self) -> StoreContents:
        """Read everything, so that a later write does not disturb the reader.

        Raises:
            StoreError: The store is missing, damaged or of a newer version.
        """
        contents, changes, _ = self.open()
        return changed(contents, changes) if changes else contents

    def open(self) -> tuple[StoreContents, list[StoreChange], Position]:
        """Read what was written whole, the changes since, and how far that reaches.

        Raises:
            StoreError: As ``read``.
        """
        header = self._header()
        while True:
            try:
                contents = self._read_generation(header)
                news = self.changes(Position(header["generation"], 0))
                if news is None:
                    raise FileNotFoundError(None, None, _CHANGES)
                return contents, *news
            except FileNotFoundError as error:
                # A writer may have replaced the generation between our two reads; then there is a new header.
                latest = self._header()
                if latest["generation"] == header["generation"]:
                    raise self._damaged(f"the file {Path(error.filename).name} is missing") from error
                header = latest

    def changes(self, since: Position) -> tuple[list[StoreChange], Position] | None:
        """The changes since a position and where they end; None where the store was written whole meanwhile.

        Raises:
            StoreError: A change is damaged.
        """
        try:
            changes, end = read_changes(self.path / since.generation / _CHANGES, since.offset)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(f"{_CHANGES}: {error}") from error
        return changes, Position(since.generation, end)

    def is_at(self, position: Position) -> bool:
        """Whether nothing has changed since."""
        try:
            size = (self.path / position.generation / _CHANGES).stat().st_size
        except FileNotFoundError:
            return False
        return size == position.offset and self._header()["generation"] == position.generation

    def append(self, change: StoreChange, position: Position) -> Position:
        """Change a few documents, whole or not at all; call it inside ``lock``.

        Args:
            change: What changes.
            position: Where the changes end now.

        Returns:
            Where they end then.

        Raises:
            StoreError: The disk refused.
        """
        line = change.encode()
        try:
            append_change(self.path / position.generation / _CHANGES, line, position.offset)
        except OSError as error:
            raise self._refused(error) from error
        return Position(position.generation, position.offset + len(line))

    @contextmanager
    def lock(self, timeout: float = 0) -> Iterator[None]:
        """Hold the store for writing; makes the folder, and takes it away again if nothing was written.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            StoreError: Another process is writing, or the folder holds something else.
        """
        from filelock import FileLock, Timeout

        fresh = not self.path.exists()
        self._refuse_foreign_folder()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK, timeout=timeout)
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
                self._remove_empty_folder()
            lock.release()

    def written_bytes(self) -> int:
        """Size of what was last written whole."""
        return sum(facts["bytes"] for facts in self._header()["files"].values())

    def write(self, contents: StoreContents) -> Position:
        """Replace what the store holds, whole or not at all; call it inside ``lock``.

        Returns:
            Where changes begin.

        Raises:
            StoreError: The disk refused.
        """
        folder = self.path / f"{_GENERATION}{uuid4().hex}"
        try:
            folder.mkdir()
            files = {}
            for name, data in serialise(contents):
                write_through(folder / name, data)
                files[name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
            write_through(folder / _CHANGES, b"")
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
            raise self._refused(error) from error
        finally:
            self._sweep()
        return Position(folder.name, 0)

    def remove(self, timeout: float = 0) -> None:
        """Remove the store; what else lies in its folder stays.

        Args:
            timeout: Seconds to wait for another writer.

        Raises:
            StoreError: Another process is writing, or the disk refused.
        """
        with self.lock(timeout):
            try:
                (self.path / _HEADER).unlink(missing_ok=True)
                sync_folder(self.path)
            except OSError as error:
                raise StoreError(
                    f"The store {self.path} cannot be removed ({error.strerror}); make its folder writable."
                ) from error
            self._sweep()
            self._remove_empty_folder()

    def _generations(self) -> list[Path]:
        return list(self.path.glob(_GENERATIONS))

    def _remove_empty_folder(self) -> None:
        """Remove the folder unless other stores lie in it."""
        ours = {self.path / _LOCK, *self._generations()}
        if all(path in ours for path in self.path.glob("*")):
            shutil.rmtree(self.path, ignore_errors=True)

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
        # By name alone: a writer that holds the lock may be making any of them meanwhile.
        ours = (_LOCK, NAMESPACES, _HEADER, f"{_HEADER}.new", _GENERATIONS)
        names = (path.name for path in self.path.iterdir())
        if foreign := next((name for name in names if not any(fnmatchcase(name, one) for one in ours)), None):
            raise StoreError(
                f"The folder {self.path} is not a store and holds other things ({foreign}); "
                "give an empty folder or one that does not exist yet."
            )

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(
            f"The store {self.path} could not be written ({error.strerror}) and stays as it was; "
            "make room or give another folder, then try again."
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
            contents = deserialise(header, data)
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
