"""Building a corpus into a token datastore in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.merging import Merge
from groundspeed.datastores.parts import Addition, Part, Piece, check_addition, token_dtype
from groundspeed.datastores.segment import write_segment
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError, StoreError
from groundspeed.types import ProgressCallback

__all__ = ["BuildReport", "SortedPart", "build", "publish_parts", "sort_documents"]

_ROW_BYTES = 12
"""Of a row and its key while it is sorted."""

_COPIES = 6
"""Copies of the text that are held at once, with what the allocator keeps to itself: four are ours."""

_DOCUMENT_BYTES = 1 << 10
"""Of a document beside its text: Python objects, and some metadata."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did.

    Attributes:
        documents: Documents added.
        replaced: How many of them took the place of one with the same id.
        tokens: Tokens added.
        segments: Segments that were sorted in memory, before they were merged.
    """

    documents: int
    replaced: int
    tokens: int
    segments: int


@dataclass(frozen=True, slots=True)
class SortedPart:
    """A segment that is written and in no store yet.

    Attributes:
        path: The file.
        ids: Of its documents.
        tokens: In them.
    """

    path: Path
    ids: Sequence[str]
    tokens: int


def build(
    writer: TokenDatastoreWriter,
    namespace: str,
    additions: Iterable[Addition],
    *,
    memory_bytes: int = 2 << 30,
    on_progress: ProgressCallback | None = None,
) -> BuildReport:
    """Add many documents at once; readers see none of them before the end, then all.

    Documents are gathered up to the memory limit, sorted and written as a segment; at the end the segments
    are merged in one pass that needs little memory. A document whose id is there already is replaced.

    Args:
        writer: Of the store.
        namespace: Where to.
        additions: The documents; an id may occur once.
        memory_bytes: Most memory to gather and sort in, beside what is used already and the ids of all.
        on_progress: Is told about the stages ``sort`` (tokens in segments) and ``merge``.

    Raises:
        InputError: An id occurs twice, or a document cannot be kept; nothing was added.
        StoreError: The disk refused; nothing was added.
    """
    parts = sort_documents(writer.tokenizer, namespace, additions, memory_bytes, writer.new_segment_path)
    return publish_parts(writer, namespace, parts, on_progress)


def sort_documents(
    tokenizer: TokenizerFingerprint,
    namespace: str,
    additions: Iterable[Addition],
    memory_bytes: int,
    new_path: Callable[[], Path],
) -> Iterator[SortedPart]:
    """Gather documents up to a memory limit, sort them and write them, as often as it takes.

    Args:
        tokenizer: Of the store.
        namespace: Where they will go.
        additions: The documents.
        memory_bytes: Most memory to gather and sort in.
        new_path: Where to write the next segment. One that fails is removed.

    Raises:
        InputError: A document cannot be kept.
        StoreError: The disk refused.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    symbol_bytes = _ROW_BYTES + _COPIES * dtype.itemsize
    waiting: list[Addition] = []
    used = 0
    for addition in additions:
        checked = check_addition(tokenizer, namespace, addition)
        size = _DOCUMENT_BYTES + len(checked.token_ids) * symbol_bytes
        if waiting and used + size > memory_bytes:
            yield _write(waiting, dtype, new_path())
            waiting.clear()
            used = 0
        waiting.append(checked)
        used += size
    if waiting:
        yield _write(waiting, dtype, new_path())


def publish_parts(
    writer: TokenDatastoreWriter,
    namespace: str,
    parts: Iterable[SortedPart],
    on_progress: ProgressCallback | None = None,
) -> BuildReport:
    """Add segments to a store as they are finished, visible together at the end, and merge them.

    Args:
        writer: Of the store.
        namespace: Where to.
        parts: Segments at paths of ``new_segment_path``; removed if anything fails.
        on_progress: Is told about the stages ``sort`` and ``merge``.

    Raises:
        InputError: An id occurs twice; nothing was added.
        StoreError: The disk refused; nothing was added.
    """
    seen: set[str] = set()
    paths: list[Path] = []
    tokens = 0
    try:
        for part in parts:
            paths.append(part.path)
            for document_id in part.ids:
                if document_id in seen:
                    raise InputError(
                        f"Two documents have the id {document_id!r}; ids must be unique, rename one."
                    )
                seen.add(document_id)
            tokens += part.tokens
            if on_progress is not None:
                on_progress("sort", tokens, 0)
        replaced = writer.held(namespace, seen)
        if paths:
            writer.publish(namespace, paths, replaced)
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    if len(paths) > 1:
        writer.merge(on_progress)
    return BuildReport(len(seen), len(replaced), tokens, len(paths))


def _write(additions: Sequence[Addition], dtype: np.dtype[Any], path: Path) -> SortedPart:
    ids = [addition.id for addition in additions]
    try:
        write_segment(path, Merge([Piece(Part.of(additions, dtype, path.name))]))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StoreError(
            f"The segment {path} could not be written ({error.strerror}); nothing was added. Make room and "
            "try again."
        ) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return SortedPart(path, ids, sum(len(addition.token_ids) for addition in additions))
