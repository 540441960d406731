"""Looking a token datastore over, and going on without what is damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from groundspeed.datastores.files import sync_folder
from groundspeed.datastores.folder import acquire_lock
from groundspeed.datastores.log import LogReader
from groundspeed.datastores.manifest import Manifest
from groundspeed.datastores.parts import token_dtype
from groundspeed.datastores.segment import check_segment, damaged
from groundspeed.errors import StoreError
from groundspeed.types import ProgressCallback

__all__ = ["find_damage", "set_aside"]

_ASIDE = "damaged"


def find_damage(path: str | Path, on_progress: ProgressCallback | None = None) -> list[StoreError]:
    """Compare every checksum of a store.

    Returns:
        An error for each damaged file, with its name and the offset of the first damage; none for a sound
        store.
    """
    folder = Path(path)
    try:
        manifest = Manifest.read(folder)
    except StoreError as error:
        return [error]
    return [error for _, error in _damage(folder, manifest, on_progress)]


def set_aside(path: str | Path) -> list[str]:
    """Take damaged files out of a store, so that the rest can be served; they are kept in ``damaged/``.

    Of a damaged log the records before the damage stay.

    Returns:
        Names of the files set aside.

    Raises:
        StoreError: The store is being written, or its manifest is damaged.
    """
    folder = Path(path)
    lock = acquire_lock(folder)
    try:
        manifest = Manifest.read(folder)
        names = [name for name, _ in _damage(folder, manifest, None)]
        if not names:
            return []
        aside = folder / _ASIDE
        aside.mkdir(exist_ok=True)
        for name in set(names) & set(manifest.logs):
            _keep_sound_records(folder / name, aside / name, token_dtype(manifest.tokenizer.vocab_size))
        segments = tuple(entry for entry in manifest.segments if entry.file not in names)
        replace(manifest, segments=segments, log_bytes=0).write(folder)
        for name in names:
            if name not in manifest.logs and (folder / name).exists():
                (folder / name).replace(aside / name)
        sync_folder(aside)
        return names
    finally:
        lock.release()


def _damage(
    folder: Path, manifest: Manifest, on_progress: ProgressCallback | None
) -> Iterator[tuple[str, StoreError]]:
    for entry in manifest.segments:
        try:
            check_segment(folder / entry.file, on_progress)
        except StoreError as error:
            yield entry.file, error
    for log in manifest.logs:
        try:
            with LogReader(folder / log, token_dtype(manifest.tokenizer.vocab_size)) as reader:
                reader.read()
            size, position = (folder / log).stat().st_size, reader.position
            if log == manifest.logs[-1] and position < manifest.log_bytes:
                raise damaged(folder / log, size, f"it had {manifest.log_bytes:,} bytes when it was closed")
        except FileNotFoundError:
            yield log, damaged(folder / log, 0, "the file is missing")
        except StoreError as error:
            yield log, error


def _keep_sound_records(log: Path, copy: Path, dtype: np.dtype[Any]) -> None:
    if not log.exists():
        log.touch()
        return
    copy.write_bytes(log.read_bytes())
    with LogReader(log, dtype) as reader, suppress(StoreError):
        reader.read()
    with log.open("r+b") as handle:
        handle.truncate(reader.position)
        handle.flush()
        os.fsync(handle.fileno())
