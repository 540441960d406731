"""The one writer of a token datastore."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.compaction import due_merge, neighbours
from groundspeed.datastores.contents import Contents
from groundspeed.datastores.files import sync_folder
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.folder import LOG_PREFIX, SEGMENT_SUFFIX, acquire_lock, create_store, sweep
from groundspeed.datastores.log import Change, LogWriter
from groundspeed.datastores.manifest import MANIFEST, Manifest, SegmentEntry
from groundspeed.datastores.merging import Merge, warm_up
from groundspeed.datastores.parts import Addition, Piece, check_addition
from groundspeed.datastores.segment import write_segment
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.errors import InputError, StoreError
from groundspeed.types import ProgressCallback

__all__ = ["TokenDatastoreWriter"]


class TokenDatastoreWriter(TokenDatastore):
    """A store opened for writing, by one process at a time. All methods may be called from any thread.

    A change is in the log before its call returns. When the log holds ``seal_at`` tokens they become a
    segment, and segments are merged so that few are left to search; with ``background`` a thread does this.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: TokenizerFingerprint | None,
        *,
        background: bool,
        seal_at: int,
    ) -> None:
        if tokenizer is None:
            Manifest.read(path)  # nothing may be made, so it has to be there
        self._file_lock = acquire_lock(path)
        try:
            if tokenizer is not None and not (path / MANIFEST).is_file():
                create_store(path, tokenizer)
            super().__init__(path, tokenizer)
            sweep(path, self._contents.manifest)
            newest = self._readers[self._contents.manifest.logs[-1]]
            self._log = LogWriter(newest.path, self._contents.dtype, newest.position)
            warm_up(self._contents.dtype)
        except BaseException:
            self._file_lock.release()
            raise
        self._seal_at = seal_at
        self._rewriting = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closing = False
        self._changed = True  # a crash may have left something to do
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()

    @classmethod
    def open(
        cls,
        path: str | Path,
        tokenizer: TokenizerFingerprint | None = None,
        *,
        background: bool = True,
        seal_at: int = 1 << 18,
    ) -> Self:
        """Open a store for writing; makes it when there is none and a tokenizer is given.

        Args:
            path: Its folder.
            tokenizer: Of the ids; None takes the store's own without checking.
            background: Seal and merge in a thread of its own; otherwise the call that makes it due does it.
            seal_at: Tokens and separators in memory that become a segment.

        Raises:
            StoreError: Another writer has it, or it is damaged, of a newer version or of another tokenizer.
        """
        return cls(Path(path), tokenizer, background=background, seal_at=seal_at)

    def append(
        self,
        namespace: str,
        document_id: str,
        token_ids: NDArray[Any] | Sequence[int],
        metadata: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
        durable: bool = True,
    ) -> None:
        """Add a document; the next snapshot has it.

        Args:
            namespace: Where to.
            document_id: Unique in the namespace.
            token_ids: int [k], ids of the store's tokenizer.
            metadata: Anything JSON can hold.
            replace: Take the place of the document with this id, if there is one; no snapshot has both or
                neither.
            durable: Return when the disk has it; otherwise it survives the end of the process, not that of
                the machine.

        Raises:
            InputError: The id is taken, or the document cannot be stored.
            StoreError: The disk refused; nothing has changed.
        """
        addition = check_addition(
            self.tokenizer, namespace, Addition(document_id, np.asarray(token_ids), metadata or {})
        )
        with self._lock:
            exists = self._contents.find(namespace, document_id) is not None
            if exists and not replace:
                raise InputError(
                    f"The namespace {namespace!r} has a document {document_id!r} already; "
                    "delete or replace it."
                )
            self._commit(Change(namespace, (document_id,) if exists else (), (addition,)), durable)
        self._tidy_if_alone()

    def delete(self, namespace: str, document_ids: Sequence[str], *, durable: bool = True) -> int:
        """Delete documents; the next snapshot has none of them. Returns how many there were.

        Raises:
            StoreError: The disk refused; nothing has changed.
        """
        with self._lock:
            found = tuple(
                dict.fromkeys(
                    name for name in document_ids if self._contents.find(namespace, name) is not None
                )
            )
            if found:
                self._commit(Change(namespace, found), durable)
        self._tidy_if_alone()
        return len(found)

    def learn(
        self,
        namespace: str,
        token_ids: NDArray[Any] | Sequence[int],
        *,
        max_tokens: int,
        metadata: Mapping[str, Any] | None = None,
        durable: bool = False,
    ) -> str:
        """Add an answer to a namespace that keeps the newest ones. Returns the id it got.

        Args:
            namespace: Where to; should hold nothing but answers.
            token_ids: int [k]; of more than ``max_tokens`` the first ones are kept.
            max_tokens: The oldest documents are deleted until the namespace holds at most so many.
            metadata: Anything JSON can hold.
            durable: As for ``append``.

        Raises:
            InputError: The answer cannot be stored.
            StoreError: The disk refused; nothing has changed.
        """
        answer = Addition(uuid4().hex, np.asarray(token_ids)[:max_tokens], metadata or {})
        answer = check_addition(self.tokenizer, namespace, answer)
        with self._lock:
            pieces = self._contents.pieces.get(namespace, [])
            excess = sum(piece.live_tokens for piece in pieces) + len(answer.token_ids) - max_tokens
            evicted = []
            for document_id, tokens in self._contents.oldest(namespace):
                if excess <= 0:
                    break
                evicted.append(document_id)
                excess -= tokens
            self._commit(Change(namespace, tuple(evicted), (answer,)), durable)
        self._tidy_if_alone()
        return answer.id

    def new_segment_path(self) -> Path:
        """Where to write a segment that ``publish`` will take."""
        with self._lock:
            return self.path / self._next_name("", SEGMENT_SUFFIX)

    def publish(self, namespace: str, segments: Sequence[Path], deleted: Sequence[str] = ()) -> None:
        """Add finished segments to a namespace, all at once.

        Args:
            namespace: Where to.
            segments: Files at paths of ``new_segment_path``; no id in them is taken, or it is in ``deleted``.
            deleted: Documents that go at the same moment.

        Raises:
            StoreError: A segment is damaged, or the disk refused; nothing has changed.
        """
        self.seal()  # most of it, while others go on
        with self._rewriting, self._lock:
            # What a manifest lists must be older than its logs, so these are emptied first.
            self._seal()
            manifest = self._contents.manifest
            entries = [SegmentEntry(path.name, namespace) for path in segments]
            fresh = Contents(self.path, manifest, self._contents)
            fresh.delete(namespace, deleted)
            listed = replace(manifest, segments=(*fresh.entries(), *entries))
            self._install(Contents(self.path, listed, self._contents))
        self._tidy_if_alone()

    def seal(self) -> None:
        """Write everything in memory into segments."""
        with self._rewriting:
            self._seal()

    def merge(self, on_progress: ProgressCallback | None = None) -> None:
        """Bring every namespace into one segment without deleted documents, as far as a segment can hold it.

        Raises:
            StoreError: The disk refused; nothing has changed.
        """
        with self._rewriting:
            self._seal()
            with self._lock:
                work = {
                    name: pieces
                    for name, pieces in self._contents.pieces.items()
                    if len(pieces) > 1 or any(len(piece.dead) for piece in pieces)
                }
            for name, pieces in work.items():
                for group in neighbours(pieces):
                    self._rewrite({name: group}, (), on_progress)

    def close(self) -> None:
        """Wait for the work in progress, flush the log and let another writer in.

        Raises:
            StoreError: Work in the background has failed; no change is lost.
        """
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        try:
            with self._lock:
                self._log.sync()
                manifest = self._contents.manifest
                if manifest.log_bytes != self._log.size:
                    self._contents.manifest = replace(manifest, log_bytes=self._log.size).write(self.path)
        finally:
            self._log.close()
            super().close()
            self._file_lock.release()
        if self._failure is not None:
            raise StoreError(
                f"Segments of {self.path} could not be sealed or merged: {self._failure} What was added is "
                "in the log; it will be tried again."
            ) from self._failure

    def _refresh(self) -> None:
        """Nothing changes but by this object."""

    def _commit(self, change: Change, durable: bool) -> None:
        """Log a change and take it in; the lock is held."""
        if self._closing:
            raise StoreError(f"The store {self.path} was closed; open it again.")
        self._log.append(change, durable=durable)
        self._contents.apply(self._log.path.name, [change])
        self._snapshots.clear()
        self._changed = True
        self._wake.notify()

    def _tidy_if_alone(self) -> None:
        if self._thread is None:
            while self._tidy():
                pass

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._changed or self._closing)
                if self._closing:
                    return
                self._changed = False
            try:
                while not self._closing and self._tidy():
                    self._failure = None
            except (StoreError, OSError) as error:
                self._failure = error  # tried again after the next change

    def _tidy(self) -> bool:
        """Do one thing that is due; False when nothing is."""
        with self._rewriting:
            with self._lock:
                memory = self._contents.in_memory()
                symbols = sum(len(p.part.text) for pieces in memory.values() for p in pieces)
                if symbols >= self._seal_at or len(self._contents.manifest.logs) > 1:
                    due = None
                else:
                    sealed = {
                        name: [piece for piece in pieces if self._contents.is_sealed(piece)]
                        for name, pieces in self._contents.pieces.items()
                    }
                    due = due_merge(sealed)
                    if due is None:
                        return False
            if due is None:
                self._seal()
            else:
                self._rewrite({due[0]: due[1]}, ())
            return True

    def _seal(self) -> None:
        """Turn what is in memory into segments. New changes go to a new log meanwhile."""
        with self._lock:
            manifest = self._contents.manifest
            if self._log.size == 0 and len(manifest.logs) == 1:
                return
            if self._log.size:
                name = self._next_name(LOG_PREFIX, "")
                log = LogWriter(self.path / name, self._contents.dtype)
                listed = replace(self._contents.manifest, logs=(*manifest.logs, name), log_bytes=0)
                try:
                    self._install(Contents(self.path, listed, self._contents))
                except StoreError:
                    log.close()
                    raise
                self._log.close()
                self._log = log
            closed = self._contents.manifest.logs[:-1]
            memory = {
                name: [piece for piece in pieces if piece.part.name in closed]
                for name, pieces in self._contents.in_memory().items()
            }
        self._rewrite({name: pieces for name, pieces in memory.items() if pieces}, closed)

    def _rewrite(
        self,
        work: Mapping[str, Sequence[Piece]],
        closed: Sequence[str],
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Put one new segment in the place of some neighbouring pieces of each namespace.

        Args:
            work: The pieces by namespace.
            closed: Logs that hold nothing but what is written now.
            on_progress: Is told about the stage ``merge``.
        """
        written: dict[str, SegmentEntry] = {}
        try:
            for namespace, pieces in work.items():
                live = [piece for piece in pieces if piece.live_documents]
                if live:
                    path = self.new_segment_path()
                    write_segment(path, Merge(live), on_progress)
                    written[namespace] = SegmentEntry(path.name, namespace)
        except OSError as error:
            raise StoreError(
                f"A segment of {self.path} could not be written ({error.strerror}); the store stays as "
                "it was. Make room and try again."
            ) from error
        sync_folder(self.path)
        with self._lock:
            entries: list[SegmentEntry] = []
            replaced = {piece.part.name for pieces in work.values() for piece in pieces}
            for entry in self._contents.entries():
                if entry.file not in replaced:
                    entries.append(entry)
                elif entry.namespace in written:
                    entries.append(written.pop(entry.namespace))
            entries.extend(written.values())  # what was in memory is newer than all segments
            manifest = self._contents.manifest
            logs = tuple(log for log in manifest.logs if log not in closed)
            listed = replace(manifest, segments=tuple(entries), logs=logs)
            self._install(Contents(self.path, listed, self._contents))

    def _install(self, fresh: Contents) -> None:
        """Make a state the store's, on the disk first; the lock is held."""
        fresh.manifest = replace(fresh.manifest, segments=fresh.entries()).write(self.path)
        before = self._contents.manifest.files()
        self._contents = fresh
        self._snapshots.clear()
        for name in before - fresh.manifest.files():
            if name in self._readers:
                self._readers.pop(name).close()
            with suppress(OSError):
                (self.path / name).unlink()

    def _next_name(self, prefix: str, suffix: str) -> str:
        manifest = self._contents.manifest
        self._contents.manifest = manifest = replace(manifest, serial=manifest.serial + 1)
        return f"{prefix}{manifest.serial:06d}{suffix}"
