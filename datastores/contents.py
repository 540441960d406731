"""The state that a manifest and its logs describe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.log import Change
from groundspeed.datastores.manifest import Manifest, SegmentEntry
from groundspeed.datastores.parts import Addition, Part, Piece, token_dtype
from groundspeed.datastores.segment import open_segment

__all__ = ["Contents"]

_MERGED_AT_ONCE = 1 << 15
"""Symbols up to which parts in memory are merged while their writer waits: about 3 ms."""


class Contents:
    """The pieces of all namespaces. Changed in place by its owner, who sees to threads; pieces never change.

    Attributes:
        manifest: What it was opened from.
        pieces: By namespace, oldest first: sealed segments, then parts in memory.
    """

    def __init__(self, folder: Path, manifest: Manifest, before: Contents | None = None) -> None:
        """Open the segments of a manifest; logs are read by ``apply``.

        Args:
            folder: The store.
            manifest: Its state.
            before: An earlier state, whose open segments and log records are taken over where they still
                belong to the store.

        Raises:
            FileNotFoundError: A segment is missing: deleted meanwhile, or lost.
            StoreError: A segment is damaged.
        """
        self.manifest = manifest
        self.dtype = token_dtype(manifest.tokenizer.vocab_size)
        self.pieces: dict[str, list[Piece]] = {}
        opened: dict[str, Part] = {}
        # Deletions read from each listed log. They came after all sealed segments, so a segment that was
        # written meanwhile is told them again; those that its manifest knows have no effect.
        self._deleted: dict[str, list[tuple[str, str]]] = {log: [] for log in manifest.logs}
        if before is not None:
            opened = {piece.part.name: piece.part for _, piece in before.all_pieces()}
            self._deleted |= {
                log: list(known) for log, known in before._deleted.items() if log in self._deleted
            }
        # Reading in large pages warms a store that fits into memory, and would thrash one that does not.
        sizes = [_size(folder / entry.file, opened.get(entry.file)) for entry in manifest.segments]
        fits = sum(sizes) <= _memory_bytes() // 2
        for entry in manifest.segments:
            piece = Piece(opened.get(entry.file) or open_segment(folder / entry.file, large_pages=fits))
            if entry.dead:
                piece = Piece(piece.part, _as_numbers(entry.dead))
            self.pieces.setdefault(entry.namespace, []).append(piece)
        for log in manifest.logs:
            for namespace, document_id in self._deleted[log]:
                self._delete(namespace, document_id)
        if before is not None:
            for namespace, piece in before.all_pieces():
                if piece.part.name in manifest.logs:
                    self.pieces.setdefault(namespace, []).append(piece)

    def all_pieces(self) -> Iterable[tuple[str, Piece]]:
        """Every namespace with each of its pieces."""
        return ((name, piece) for name, pieces in self.pieces.items() for piece in pieces)

    def is_sealed(self, piece: Piece) -> bool:
        """Whether a piece is a segment on the disk."""
        return piece.part.name not in self.manifest.logs

    def in_memory(self) -> dict[str, list[Piece]]:
        """The pieces by namespace that are in logs only."""
        found: dict[str, list[Piece]] = {}
        for name, piece in self.all_pieces():
            if not self.is_sealed(piece):
                found.setdefault(name, []).append(piece)
        return found

    def oldest(self, namespace: str) -> Iterator[tuple[str, int]]:
        """The documents of a namespace that are not deleted and their tokens, oldest first."""
        for piece in self.pieces.get(namespace, ()):
            starts = piece.part.starts
            for number in range(piece.first_live(), len(piece.part.documents)):
                if not piece.is_dead(number):
                    tokens = int(starts[number + 1]) - int(starts[number]) - 1
                    yield piece.part.documents.id(number), tokens

    def entries(self) -> tuple[SegmentEntry, ...]:
        """The segments as a manifest lists them, with what is deleted now."""
        return tuple(
            SegmentEntry(piece.part.name, name, tuple(piece.dead.tolist()))
            for name, piece in self.all_pieces()
            if self.is_sealed(piece)
        )

    def delete(self, namespace: str, document_ids: Iterable[str]) -> None:
        """Delete documents that a change outside the logs takes away."""
        for document_id in document_ids:
            self._delete(namespace, document_id)

    def find(self, namespace: str, document_id: str) -> tuple[int, int] | None:
        """The index of the piece that holds a document, and the document's number in it."""
        for index, piece in enumerate(self.pieces.get(namespace, ())):
            number = piece.find(document_id)
            if number is not None:
                return index, number
        return None

    def apply(self, log: str, changes: Sequence[Change]) -> None:
        """Take in records of a log."""
        fresh: dict[str, dict[str, Addition]] = {}
        for change in changes:
            added = fresh.setdefault(change.namespace, {})
            for document_id in change.deleted:
                self._deleted[log].append((change.namespace, document_id))
                if added.pop(document_id, None) is None:
                    self._delete(change.namespace, document_id)
            added.update((addition.id, addition) for addition in change.added)
        for namespace, added in fresh.items():
            if added:
                self._add(namespace, Part.of(list(added.values()), self.dtype, log))

    def _add(self, namespace: str, part: Part) -> None:
        """Append a part in memory; parts of the same log are merged so that few are left to search."""
        from groundspeed.datastores.merging import merge_in_memory

        pieces = self.pieces.setdefault(namespace, [])
        pieces.append(Piece(part))
        while len(pieces) > 1:
            older, newer = pieces[-2:]
            symbols = len(older.part.text) + len(newer.part.text)
            if (
                older.part.name != newer.part.name
                or len(older.part.text) > 2 * len(newer.part.text)
                or symbols > _MERGED_AT_ONCE
            ):
                break
            live = [piece for piece in (older, newer) if piece.live_documents]
            pieces[-2:] = [Piece(merge_in_memory(live, part.name))]

    def _delete(self, namespace: str, document_id: str) -> None:
        found = self.find(namespace, document_id)
        if found is not None:
            index, number = found
            pieces = self.pieces[namespace]
            pieces[index] = pieces[index].without(number)


def _as_numbers(dead: tuple[int, ...]) -> NDArray[np.int64]:
    return np.array(dead, np.int64)


def _size(path: Path, part: Part | None) -> int:
    """Bytes of a segment; one that is open needs its file no longer."""
    return path.stat().st_size if part is None else part.text.nbytes + part.rows.nbytes


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no such figure here, nor large pages
        return 0
