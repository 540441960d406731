"""The write-ahead log: every change of a store, before it is in a segment.

A log is a file of records. Each has a head of three unsigned 32-bit numbers (length of the body, CRC-32 of
the body, CRC-32 of the two before) and a body. A change is one record, so it is there whole or not at all.
A writer that is killed leaves at most one unfinished record at the end; anything else that does not fit its
checksum is damage.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.files import sync_folder
from groundspeed.datastores.parts import Addition
from groundspeed.datastores.segment import damaged
from groundspeed.errors import StoreError

__all__ = ["Change", "LogReader", "LogWriter"]

_HEAD = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CHECK.size
_META = struct.Struct("<I")


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What one call changes in one namespace, all of it or nothing.

    Attributes:
        namespace: Where.
        deleted: Ids of documents that go, before anything is added.
        added: Documents that come.
    """

    namespace: str
    deleted: tuple[str, ...] = ()
    added: tuple[Addition, ...] = ()

    def encode(self, dtype: np.dtype[Any]) -> bytes:
        """The record's body: facts as JSON, then the tokens."""
        documents = [[a.id, len(a.token_ids), dict(a.metadata)] for a in self.added]
        facts = json.dumps([self.namespace, self.deleted, documents], ensure_ascii=False).encode()
        tokens = b"".join(np.ascontiguousarray(a.token_ids, dtype).tobytes() for a in self.added)
        return _META.pack(len(facts)) + facts + tokens

    @classmethod
    def decode(cls, body: bytes, dtype: np.dtype[Any]) -> Change:
        """Read what ``encode`` wrote."""
        (length,) = _META.unpack_from(body)
        namespace, deleted, documents = json.loads(body[_META.size : _META.size + length])
        position, added = _META.size + length, []
        for document_id, tokens, metadata in documents:
            token_ids: NDArray[Any] = np.frombuffer(body, dtype, tokens, position)
            added.append(Addition(document_id, token_ids, metadata))
            position += tokens * dtype.itemsize
        return cls(namespace, tuple(deleted), tuple(added))


class LogReader:
    """Reads a log from where it stopped last, while another process may be writing it."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        """Start at the beginning.

        Raises:
            FileNotFoundError: There is no such log.
        """
        self.path = path
        self.position = 0
        self._dtype = dtype
        self._handle = path.open("rb", buffering=0)

    @property
    def descriptor(self) -> int:
        """Of the open file."""
        return self._handle.fileno()

    def read(self) -> list[Change]:
        """The changes that have come in since the last call.

        Raises:
            StoreError: A record is damaged; names the file and the offset.
        """
        size = os.fstat(self.descriptor).st_size
        if size <= self.position:
            return []
        data = os.pread(self.descriptor, size - self.position, self.position)
        changes: list[Change] = []
        at = 0
        while len(data) - at >= _HEAD_BYTES:
            length, checksum = _HEAD.unpack_from(data, at)
            (head_checksum,) = _CHECK.unpack_from(data, at + _HEAD.size)
            if crc32(data[at : at + _HEAD.size]) != head_checksum:
                if not data[at:].strip(b"\0"):
                    break  # the disk made the file longer and lost power before the bytes came
                raise damaged(self.path, self.position, "the head of a record does not fit its checksum")
            body = data[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
            if len(body) < length:
                break
            if crc32(body) != checksum:
                raise damaged(self.path, self.position, "a record does not fit its checksum")
            changes.append(Change.decode(body, self._dtype))
            at += _HEAD_BYTES + length
            self.position += _HEAD_BYTES + length
        return changes

    def close(self) -> None:
        """Let go of the file."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LogWriter:
    """Appends to a log; one thread at a time."""

    def __init__(self, path: Path, dtype: np.dtype[Any], size: int | None = None) -> None:
        """Make a log, or go on with one.

        Args:
            path: The file.
            dtype: Of the tokens.
            size: Where the last whole record of an existing log ends; what follows is cut off. None makes a
                new log.
        """
        self.path = path
        self._dtype = dtype
        self._handle = path.open("xb" if size is None else "r+b", buffering=0)
        self.size = size or 0
        if size is None:
            sync_folder(path.parent)
        self._handle.truncate(self.size)
        self._handle.seek(self.size)
        self._broken = False

    def append(self, change: Change, *, durable: bool) -> None:
        """Write a record; it survives the end of this process, and with ``durable`` that of the machine.

        Raises:
            StoreError: The disk refused; the log is as it was.
        """
        if self._broken:
            raise StoreError(
                f"{self.path} could not be put back after the disk refused; open the store again for writing."
            )
        body = change.encode(self._dtype)
        head = _HEAD.pack(len(body), crc32(body))
        record = memoryview(head + _CHECK.pack(crc32(head)) + body)
        try:
            written = 0
            while written < len(record):
                written += self._handle.write(record[written:])
            if durable:
                os.fsync(self._handle.fileno())
        except OSError as error:
            self._take_back()
            raise StoreError(
                f"{self.path} could not be written ({error.strerror}); the change was not made. "
                "Make room and try again."
            ) from error
        self.size += len(record)

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._handle.close()

    def _take_back(self) -> None:
        try:
            self._handle.truncate(self.size)
            self._handle.seek(self.size)
        except OSError:
            self._broken = True
