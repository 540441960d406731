"""Changes of a document store since it was last written whole: a file of lines that only grows.

A line is a JSON array of a SHA-256 and the object that it is of. A change is one line, so it is there whole
or not at all: a writer that is killed leaves at most a line without an end, which the next one takes away.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
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
        added: Documents that come, each as one chunk.
        vectors: float32 [n, d], theirs; of any shape where n is 0.
    """

    deleted: tuple[str, ...]
    added: tuple[StoredDocument, ...]
    vectors: NDArray[np.float32]

    def encode(self) -> bytes:
        """The line of the file."""
        vectors = (b64encode(vector.tobytes()).decode() for vector in self.vectors.astype("<f4"))
        added = [
            {**stored.facts(), "vector": vector} for stored, vector in zip(self.added, vectors, strict=True)
        ]
        facts = {"deleted": self.deleted, "added": added}
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
        vectors = [np.frombuffer(b64decode(one["vector"]), "<f4") for one in facts["added"]]
        return cls(
            tuple(facts["deleted"]),
            tuple(map(StoredDocument.of, facts["added"])),
            np.array(vectors, np.float32),
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
