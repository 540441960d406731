"""Changes of a document store since it was last written whole: a file of lines that only grows.

A line is a JSON array of a SHA-256 and the object that it is of. A change is one line, so it is there whole
or not at all: a writer that is killed leaves at most a line without an end, which the next one takes away.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.corpus import StoredDocument

__all__ = ["StoreChange", "append_change", "read_changes"]


@dataclass(frozen=True, slots=True, eq=False)
class StoreChange:
    """What one call changes, all of it or nothing.

    Attributes:
        deleted: Ids of documents that go, before any come.
        added: Documents that come.
        chunks: int64 [c, 3], theirs: row of the document in ``added``, start, end; in that order.
        vectors: float32 [c, d], one a chunk; of any shape where c is 0.
    """

    deleted: tuple[str, ...]
    added: tuple[StoredDocument, ...]
    chunks: NDArray[np.int64]
    vectors: NDArray[np.float32]

    def pieces(self) -> Iterator[tuple[StoredDocument, NDArray[np.int64], NDArray[np.float32]]]:
        """The documents that come, each with start and end of its chunks, int64 [k, 2], and their vectors."""
        edges = np.searchsorted(self.chunks[:, 0], np.arange(len(self.added) + 1))
        for stored, begin, end in zip(self.added, edges[:-1], edges[1:], strict=True):
            yield stored, self.chunks[begin:end, 1:], self.vectors[begin:end]

    def encode(self) -> bytes:
        """The line of the file."""
        facts = {
            "deleted": self.deleted,
            "added": [stored.facts() for stored in self.added],
            "chunks": self.chunks.tolist(),
            "vectors": [b64encode(vector.tobytes()).decode() for vector in self.vectors.astype("<f4")],
        }
        body = json.dumps(facts, ensure_ascii=False).encode()
        return b'["%s", %s]\n' % (sha256(body).hexdigest().encode(), body)

    @classmethod
    def decode(cls, line: bytes) -> StoreChange:
        """Read what ``encode`` wrote, without the line's end.

        Raises:
            ValueError: It does not fit its checksum.
        """
        body = line[69:-1]
        if line[:69] != b'["%s", ' % sha256(body).hexdigest().encode() or line[-1:] != b"]":
            raise ValueError("a change does not fit its checksum")
        facts = json.loads(body)
        return cls(
            tuple(facts["deleted"]),
            tuple(map(StoredDocument.of, facts["added"])),
            np.array(facts["chunks"], np.int64).reshape(-1, 3),
            np.array([np.frombuffer(b64decode(vector), "<f4") for vector in facts["vectors"]], np.float32),
        )


def read_changes(path: Path, start: int = 0) -> tuple[list[StoreChange], int]:
    """The changes from an offset on, and the offset behind the last of them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A change does not fit its checksum.
    """
    with path.open("rb") as handle:
        handle.seek(start)
        data = handle.read()
    # Only \n ends a line: str.splitlines would cut at separators that stand inside JSON strings.
    *lines, rest = data.split(b"\n")
    return list(map(StoreChange.decode, lines)), start + len(data) - len(rest)


def append_change(path: Path, line: bytes, end: int) -> None:
    """Write a change and wait until it is on the disk.

    Args:
        path: The file.
        line: What ``StoreChange.encode`` gave.
        end: The offset behind the last whole change; what is there beyond is cut off.

    Raises:
        OSError: The disk refused; the file holds what it held.
    """
    with path.open("r+b", buffering=0) as handle:
        handle.truncate(end)
        handle.seek(end)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[handle.write(rest) :]
            os.fsync(handle.fileno())
        except OSError:
            handle.truncate(end)
            raise
