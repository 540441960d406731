"""The manifest: which files a token datastore consists of. A change of files is made by replacing it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from groundspeed.datastores.files import replace_file
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.errors import StoreError

__all__ = ["MANIFEST", "Manifest", "SegmentEntry"]

MANIFEST = "manifest.json"
FORMAT = "groundspeed token datastore"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A sealed segment.

    Attributes:
        file: Its name.
        namespace: Whose it is.
        dead: Numbers of the documents deleted when the manifest was written, rising.
    """

    file: str
    namespace: str
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of the folder.

    Attributes:
        tokenizer: Of all ids.
        segments: Oldest first within a namespace.
        logs: Oldest first; the last one is written to. Whatever they hold came after the segments.
        log_bytes: What the last log holds at least.
        generation: Counts the replacements.
        serial: Of the newest file.
    """

    tokenizer: TokenizerFingerprint
    segments: tuple[SegmentEntry, ...] = ()
    logs: tuple[str, ...] = ()
    log_bytes: int = 0
    generation: int = 0
    serial: int = 0

    def files(self) -> set[str]:
        """All that belongs to the store."""
        return {entry.file for entry in self.segments} | set(self.logs)

    def write(self, folder: Path) -> Manifest:
        """Make this the state of the folder, as the next generation, which is returned.

        Raises:
            StoreError: The disk refused; the folder is as it was.
        """
        written = replace(self, generation=self.generation + 1)
        body = json.dumps({"format": FORMAT, "version": VERSION, **asdict(written)}, indent=1).encode()
        try:
            replace_file(folder / MANIFEST, b"%08x\n%b" % (crc32(body), body))
        except OSError as error:
            raise StoreError(
                f"The store {folder} could not be written ({error.strerror}) and stays as it was; "
                "make room and try again."
            ) from error
        return written

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the state of a folder.

        Raises:
            StoreError: There is none, or it is damaged or of a newer version.
        """
        path = folder / MANIFEST
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"There is no token datastore at {folder}; "
                f"make one with `groundspeed datastore build PATH --store {folder}`."
            ) from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}).") from error
        checksum, _, body = data.partition(b"\n")
        if checksum != b"%08x" % crc32(body):
            raise StoreError(
                f"{path} is damaged (byte 0 on): it does not fit its checksum. Put back a copy of this one "
                "file, or build the store again."
            )
        facts: dict[str, Any] = json.loads(body)
        if facts.pop("format") != FORMAT or facts.pop("version") != VERSION:
            raise StoreError(
                f"{path} is not a {FORMAT} of version {VERSION}; upgrade groundspeed, or build it again."
            )
        segments = tuple(
            SegmentEntry(s["file"], s["namespace"], tuple(s["dead"])) for s in facts.pop("segments")
        )
        tokenizer = TokenizerFingerprint(**facts.pop("tokenizer"))
        return cls(tokenizer, segments, tuple(facts.pop("logs")), **facts)
