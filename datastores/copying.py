"""A copy of a token datastore in another folder, as machines keep it that share no disk with the store.

Segments are copied under names that hold a digest of their contents, so that one travels once, arrives whole
or is refused, and cannot be taken for another one. The manifest comes last: readers see the state before or
the new one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from groundspeed.datastores.files import sync_folder
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.folder import SEGMENT_SUFFIX, acquire_lock, create_store, sweep
from groundspeed.datastores.manifest import MANIFEST, Manifest, SegmentEntry
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import StoreError

__all__ = ["SealedStore", "StoreCopy", "seal_store"]

_BEFORE_DIGEST = "-"


@dataclass(frozen=True, slots=True)
class SealedStore:
    """All that a store holds, in segments.

    Attributes:
        tokenizer: Of its ids.
        entries: Its segments, under the names that they have in copies.
        files: Where they are, by these names.
    """

    tokenizer: TokenizerFingerprint
    entries: tuple[SegmentEntry, ...]
    files: Mapping[str, Path]


def seal_store(writer: TokenDatastoreWriter) -> SealedStore:
    """Bring a store into segments and name them by what they hold; each is read once.

    Args:
        writer: Without a thread in the background, and left alone until the copies are made.

    Raises:
        StoreError: The disk refused.
    """
    writer.seal()
    manifest = Manifest.read(writer.path)
    names = {entry.file: _name_of(writer.path / entry.file, entry.file) for entry in manifest.segments}
    entries = tuple(replace(entry, file=names[entry.file]) for entry in manifest.segments)
    files = {name: writer.path / file for file, name in names.items()}
    return SealedStore(manifest.tokenizer, entries, files)


class StoreCopy:
    """The folder of a copy, while it is brought to a new state. Its readers may go on."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is touched yet."""
        self._folder = folder

    def begin(self, tokenizer: TokenizerFingerprint, names: Iterable[str]) -> list[str]:
        """Take the folder, which is made if it is missing; those of the wanted segments that it lacks.

        Raises:
            StoreError: It is being written, or holds something else than a copy of a store of this tokenizer.
        """
        self._lock = acquire_lock(self._folder)
        try:
            if not (self._folder / MANIFEST).is_file():
                create_store(self._folder, tokenizer)
            self._manifest = Manifest.read(self._folder)
            self._check(tokenizer)
            sweep(self._folder, self._manifest)  # what an earlier try has left
        except BaseException:
            self.close()
            raise
        return self._lacking(names)

    def write(self, name: str, data: bytes) -> None:
        """Take the next piece of a segment that was lacking.

        Raises:
            StoreError: The disk refused; the copy is as it was.
        """
        try:
            with self._arriving(name).open("ab") as handle:
                handle.write(data)
        except OSError as error:
            raise self._refused(error) from error

    def finish(self, entries: Sequence[SegmentEntry]) -> None:
        """Make these segments the copy's, delete those that it had beside them, and let the folder go.

        Raises:
            StoreError: A segment is missing or arrived damaged, or the disk refused; the copy is as it was.
        """
        try:
            for name in self._lacking(entry.file for entry in entries):
                arrived = self._arriving(name)
                if not arrived.exists() or _name_of(arrived, name) != name:
                    raise StoreError(
                        f"The segment {name} did not arrive whole in {self._folder}, which stays as it was; "
                        "publish again."
                    )
                with arrived.open("rb") as handle:
                    os.fsync(handle.fileno())
                arrived.replace(self._folder / name)
            sync_folder(self._folder)
        except OSError as error:
            raise self._refused(error) from error
        self._manifest = replace(self._manifest, segments=tuple(entries)).write(self._folder)
        sweep(self._folder, self._manifest)
        self.close()

    def close(self) -> None:
        """Let the folder go, whatever was written; the end of the process does so too."""
        self._lock.release()

    def _lacking(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not (self._folder / name).exists()]

    def _arriving(self, name: str) -> Path:
        return self._folder / f"{name}.new"  # of a kind that the next sweep removes

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(
            f"The copy {self._folder} could not be written ({error.strerror}) and stays as it was; make room "
            "and publish again."
        )

    def _check(self, tokenizer: TokenizerFingerprint) -> None:
        own = self._manifest
        if not own.tokenizer.same_ids(tokenizer):
            raise StoreError(
                f"The folder {self._folder} holds ids of the tokenizer {own.tokenizer.name}, those of "
                f"{tokenizer.name} were to be copied there; give another folder."
            )
        changed = any((self._folder / log).stat().st_size for log in own.logs)
        if changed or any(_BEFORE_DIGEST not in entry.file for entry in own.segments):
            raise StoreError(
                f"The store {self._folder} is no copy but was written itself, which a copy would undo; give "
                "another folder."
            )


def _name_of(path: Path, file: str) -> str:
    """What copies call a segment: its name in the store, and a digest of what it holds."""
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return f"{Path(file).stem.partition(_BEFORE_DIGEST)[0]}{_BEFORE_DIGEST}{digest}{SEGMENT_SUFFIX}"
