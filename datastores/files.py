"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["replace_file", "sync_folder", "write_through"]


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file anew; a crash leaves the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    write_through(fresh, data)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; Windows cannot open folders and does without."""
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
