"""Building a corpus into a token datastore in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from groundspeed.datastores.merging import Merge
from groundspeed.datastores.parts import Addition, Part, Piece, check_addition
from groundspeed.datastores.segment import write_segment
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError
from groundspeed.types import ProgressCallback

__all__ = ["BuildReport", "build"]

_SORT_BYTES = 20
"""Most memory that sorting takes, in bytes for each byte of text."""


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
        memory_bytes: Most memory to sort in, beside what is used already.
        on_progress: Is told about the stages ``sort`` (tokens in segments) and ``merge``.

    Raises:
        InputError: An id occurs twice, or a document cannot be kept; nothing was added.
        StoreError: The disk refused; nothing was added.
    """
    dtype = writer.snapshot([]).like.dtype
    limit = max(memory_bytes // (_SORT_BYTES * dtype.itemsize), 1)
    seen: set[str] = set()
    paths: list[Path] = []
    waiting: list[Addition] = []
    symbols = tokens = 0

    def write() -> None:
        nonlocal symbols
        path = writer.new_segment_path()
        write_segment(path, Merge([Piece(Part.of(waiting, dtype, path.name))]))
        paths.append(path)
        waiting.clear()
        symbols = 0
        if on_progress is not None:
            on_progress("sort", tokens, 0)

    try:
        for addition in additions:
            if addition.id in seen:
                raise InputError(
                    f"Two documents have the id {addition.id!r}; ids must be unique, rename one."
                )
            seen.add(addition.id)
            checked = check_addition(writer.tokenizer, namespace, addition)
            if waiting and symbols + len(checked.token_ids) > limit:
                write()
            waiting.append(checked)
            symbols += len(checked.token_ids) + 1
            tokens += len(checked.token_ids)
        if waiting:
            write()
        replaced = [document_id for document_id in seen if writer.has(namespace, document_id)]
        if paths:
            writer.publish(namespace, paths, replaced)
    except BaseException:
        for path in paths:
            path.unlink(missing_ok=True)
        raise
    if len(paths) > 1:
        writer.merge(on_progress)
    return BuildReport(len(seen), len(replaced), tokens, len(paths))
