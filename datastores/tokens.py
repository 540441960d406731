"""The token datastore as its readers see it; ``writer`` changes it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from groundspeed.datastores.contents import Contents
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.log import LogReader
from groundspeed.datastores.manifest import MANIFEST, Manifest
from groundspeed.datastores.segment import damaged
from groundspeed.datastores.snapshot import Snapshot
from groundspeed.errors import StoreError

__all__ = ["NamespaceStats", "TokenDatastore", "is_token_datastore"]


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """What a namespace holds.

    Attributes:
        documents: That can be found.
        tokens: Of these documents.
        deleted_tokens: Tokens and separators of deleted documents that a merge will drop.
        segments: Sealed segments.
        parts: Parts in memory, which are in the log only.
    """

    documents: int
    tokens: int
    deleted_tokens: int
    segments: int
    parts: int


def is_token_datastore(folder: Path) -> bool:
    """Whether a folder is a token datastore."""
    return (folder / MANIFEST).is_file()


class TokenDatastore:
    """A store opened for reading: any number of them, in threads and processes, beside one writer.

    A snapshot is what the store held at one moment. It stays as it is while the store moves on.
    """

    def __init__(self, path: Path, tokenizer: TokenizerFingerprint | None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._snapshots: dict[tuple[str, ...] | None, Snapshot] = {}
        self._readers: dict[str, LogReader] = {}
        self._seen: object = None
        manifest = Manifest.read(path)
        _check_tokenizer(path, manifest.tokenizer, tokenizer)
        try:
            self._contents = self._load(manifest, None)
            self._read_logs()
        except BaseException:
            TokenDatastore.close(self)
            raise

    @classmethod
    def open(cls, path: str | Path, tokenizer: TokenizerFingerprint | None = None) -> Self:
        """Open a store; takes the same time and memory whatever its size.

        Args:
            path: Its folder.
            tokenizer: Of the ids that will be asked for; None does not check.

        Raises:
            StoreError: The store is missing, damaged, of a newer version or of another tokenizer.
        """
        return cls(Path(path), tokenizer)

    @property
    def tokenizer(self) -> TokenizerFingerprint:
        """Whose ids the store holds."""
        return self._contents.manifest.tokenizer

    def snapshot(self, namespaces: Sequence[str] | None = None) -> Snapshot:
        """What some namespaces hold now, everything committed before the call included.

        Microseconds when nothing has changed; otherwise the new log records are read and sorted.

        Args:
            namespaces: Those that may be seen; one that does not exist holds nothing. None means all.

        Raises:
            StoreError: The store was damaged since.
        """
        key = None if namespaces is None else tuple(sorted(set(namespaces)))
        with self._lock:
            self._refresh()
            if key not in self._snapshots:
                self._snapshots[key] = Snapshot(
                    [
                        (name, piece)
                        for name, piece in self._contents.all_pieces()
                        if key is None or name in key
                    ],
                    self._contents.dtype,
                )
            return self._snapshots[key]

    def held(self, namespace: str, document_ids: Iterable[str]) -> list[str]:
        """Those of some documents that a namespace holds."""
        with self._lock:
            self._refresh()
            find = self._contents.find
            return [document_id for document_id in document_ids if find(namespace, document_id) is not None]

    def documents(self, namespace: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The ids and metadata of what a namespace holds now, oldest first."""
        with self._lock:
            self._refresh()
            pieces = list(self._contents.pieces.get(namespace, ()))
        for piece in pieces:
            for number in range(len(piece.part.documents)):
                if not piece.is_dead(number):
                    yield piece.part.documents.id(number), piece.part.documents.metadata(number)

    def stats(self) -> Mapping[str, NamespaceStats]:
        """What each namespace holds."""
        with self._lock:
            self._refresh()
            return {
                name: NamespaceStats(
                    documents=sum(piece.live_documents for piece in pieces),
                    tokens=sum(piece.live_tokens for piece in pieces),
                    deleted_tokens=sum(len(p.part.text) - p.live_symbols for p in pieces),
                    segments=sum(map(self._contents.is_sealed, pieces)),
                    parts=sum(not self._contents.is_sealed(piece) for piece in pieces),
                )
                for name, pieces in sorted(self._contents.pieces.items())
                if any(piece.live_documents for piece in pieces)
            }

    def disk_bytes(self) -> int:
        """Bytes of all files of the store."""
        with self._lock:
            files = self._contents.manifest.files()
        return sum((self.path / name).stat().st_size for name in (*files, MANIFEST))

    def close(self) -> None:
        """Let go of the files; snapshots stay usable."""
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _refresh(self) -> None:
        """Take in what the writer has done since; the lock is held."""
        status = (self.path / MANIFEST).stat()
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            manifest = Manifest.read(self.path)
            if manifest.generation != self._contents.manifest.generation:
                self._contents = self._load(manifest, self._contents)
                self._snapshots.clear()
            self._seen = seen
        self._read_logs()

    def _read_logs(self) -> None:
        for log in self._contents.manifest.logs:
            if changes := self._readers[log].read():
                self._contents.apply(log, changes)
                self._snapshots.clear()

    def _load(self, manifest: Manifest, before: Contents | None) -> Contents:
        """Open what a manifest names, or what a newer one does: a writer may have deleted it meanwhile."""
        while True:
            try:
                contents = Contents(self.path, manifest, before)
                for log in manifest.logs:
                    if log not in self._readers:
                        self._readers[log] = LogReader(self.path / log, contents.dtype)
                break
            except FileNotFoundError as error:
                latest = Manifest.read(self.path)
                if latest.generation == manifest.generation:
                    raise damaged(self.path / Path(error.filename).name, 0, "the file is missing") from error
                manifest = latest
        for log in self._readers.keys() - set(manifest.logs):
            self._readers.pop(log).close()
        newest = self.path / manifest.logs[-1]
        size = os.fstat(self._readers[newest.name].descriptor).st_size
        if size < manifest.log_bytes:
            raise damaged(newest, size, f"it had {manifest.log_bytes:,} bytes when it was closed")
        return contents


def _check_tokenizer(path: Path, own: TokenizerFingerprint, given: TokenizerFingerprint | None) -> None:
    if given is not None and not own.same_ids(given):
        raise StoreError(
            f"The store {path} holds ids of the tokenizer {own.name} ({own.vocab_size:,} ids, "
            f"{own.digest[:8]}), {given.name} ({given.vocab_size:,} ids, {given.digest[:8]}) was given; give "
            f"{own.name}, or build another store."
        )
