"""The folder of a token datastore: who may write it, what belongs in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundspeed.datastores.files import write_through
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.manifest import MANIFEST, Manifest
from groundspeed.errors import InputError, StoreError

__all__ = ["LOG_PREFIX", "SEGMENT_SUFFIX", "acquire_lock", "create_store", "sweep"]

LOG_PREFIX = "log-"
SEGMENT_SUFFIX = ".segment"
_LOCK = ".lock"
_FIRST_LOG = f"{LOG_PREFIX}{1:06d}"
_MAX_VOCABULARY = (1 << 21) - 1  # an id has 21 bits in the top table, and the separator is one more


def acquire_lock(path: Path) -> Any:
    """Take the store for writing, making the folder; the system takes the lock back when its holder dies.

    Raises:
        StoreError: Another writer has it, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / _LOCK, timeout=0, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise StoreError(
            f"The store {path} is being written by another process or object; wait until it is closed."
        ) from error
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be written ({error.strerror}); give a writable folder."
        ) from error
    return lock


def create_store(path: Path, tokenizer: TokenizerFingerprint) -> None:
    """Make an empty store in an empty folder; the lock is held.

    Raises:
        StoreError: The folder holds something else.
        InputError: The tokenizer has too many ids.
    """
    if tokenizer.vocab_size > _MAX_VOCABULARY:
        raise InputError(
            f"{tokenizer.name} has {tokenizer.vocab_size:,} ids; a store takes at most {_MAX_VOCABULARY:,}."
        )
    unfinished = {_LOCK, _FIRST_LOG, f"{MANIFEST}.new"}
    foreign = next((entry.name for entry in path.iterdir() if entry.name not in unfinished), None)
    if foreign is not None:
        raise StoreError(
            f"The folder {path} is no token datastore and holds other things ({foreign}); give an empty "
            "folder or one that does not exist yet."
        )
    write_through(path / _FIRST_LOG, b"")
    Manifest(tokenizer, logs=(_FIRST_LOG,), serial=1).write(path)


def sweep(path: Path, manifest: Manifest) -> None:
    """Remove what a crash left behind: files that no manifest came to name; the lock is held."""
    for entry in path.iterdir():
        ours = entry.name.startswith(LOG_PREFIX) or entry.name.endswith((SEGMENT_SUFFIX, ".new"))
        if ours and entry.name not in manifest.files():
            entry.unlink()
