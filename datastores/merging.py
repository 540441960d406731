"""Merging sorted parts: one pass over their rows, without sorting again."""
# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.parts import Addition, DocumentList, Part, Piece
from groundspeed.datastores.pointers import ROWS, SIZE, TEXT, piece_table
from groundspeed.datastores.search import LONGEST, key_layout, top_keys
from groundspeed.datastores.views import view
from groundspeed.jit import kernel

__all__ = ["Merge", "merge_in_memory", "warm_up"]

_BATCH = 1 << 20  # rows between two looks at the progress
_STRETCH = 1 << 25  # symbols written at once: in long stretches the system keeps a file in large pages


class Merge:
    """The live documents of some pieces, oldest piece first, as one text with sorted rows.

    Memory is bounded: the pieces may be mapped files, and text and rows come in batches.

    Attributes:
        symbols: Length of the merged text.
        starts: uint32 [d + 1], see ``Part``.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._records = [piece.part.documents.records() for piece in pieces]
        # The first separator of every piece but the first is dropped as if it were a deleted document.
        self._gaps = [
            np.concatenate([np.array([[0, 1]], np.int64), piece.gaps]) if i else piece.gaps
            for i, piece in enumerate(pieces)
        ]
        kept = [
            len(piece.part.text) - int((gaps[:, 1] - gaps[:, 0]).sum())
            for piece, gaps in zip(pieces, self._gaps, strict=True)
        ]
        self._bases = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
        self.symbols = int(self._bases[-1])
        self.starts = self._merged_starts()

    def live(self) -> Iterator[tuple[Piece, int]]:
        """The documents that stay: the piece and the number in it."""
        for piece in self.pieces:
            mask = np.ones(len(piece.part.documents), np.bool_)
            mask[piece.dead] = False
            for number in np.flatnonzero(mask).tolist():
                yield piece, number

    def offsets(self) -> NDArray[np.int64]:
        """Where each record starts, see ``Records``."""
        lengths = [
            np.delete(np.diff(records.offsets), piece.dead)
            for piece, records in zip(self.pieces, self._records, strict=True)
        ]
        return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)

    def records(self) -> Iterator[NDArray[np.uint8]]:
        """The records of the documents that stay, in stretches."""
        for piece, records in zip(self.pieces, self._records, strict=True):
            begin = 0
            for dead in [*piece.dead.tolist(), len(records.order)]:
                yield records.data[records.offsets[begin] : records.offsets[dead]]
                begin = dead + 1

    def order(self) -> NDArray[np.uint32]:
        """The documents that stay by their ids, see ``Records``."""
        table = np.empty((len(self.pieces), 4), np.int64)
        numbers, live = [], 0
        for row, piece, records in zip(table, self.pieces, self._records, strict=True):
            stays = np.ones(len(records.order), np.bool_)
            stays[piece.dead] = False
            numbers.append(np.where(stays, live + np.cumsum(stays) - 1, -1))
            live += int(np.count_nonzero(stays))
            row[:] = (
                records.order.ctypes.data,
                records.offsets.ctypes.data,
                records.data.ctypes.data,
                len(records.order),
            )
        out = np.zeros(live, np.uint32)
        merge_orders(table, np.concatenate(numbers), out)
        return out

    def text(self) -> Iterator[NDArray[Any]]:
        """The merged text, in stretches."""
        for piece, gaps in zip(self.pieces, self._gaps, strict=True):
            text, position = piece.part.text, 0
            for start, end in [*gaps.tolist(), [len(text), len(text)]]:
                for begin in range(position, start, _STRETCH):
                    yield text[begin : min(begin + _STRETCH, start)]
                position = end

    def rows(self) -> Iterator[NDArray[np.uint32]]:
        """The rows of the merged text, in batches."""
        if self._as_it_is:
            rows = self.pieces[0].part.rows
            yield from (rows[begin : begin + _STRETCH] for begin in range(0, len(rows), _STRETCH))
            return
        table = piece_table(self.pieces)
        like = np.empty(0, self.pieces[0].part.text.dtype)
        removed = [np.concatenate([[0], np.cumsum(gaps[:, 1] - gaps[:, 0])]) for gaps in self._gaps]
        gap_offsets = np.concatenate([[0], np.cumsum([len(gaps) for gaps in self._gaps])]).astype(np.int64)
        gaps = np.concatenate(
            [np.column_stack([g, r[:-1]]) for g, r in zip(self._gaps, removed, strict=True)]
        ).astype(np.int64)
        cursors = np.zeros(len(self.pieces), np.int64)
        while True:
            batch = np.empty(min(_BATCH, self.symbols), np.uint32)
            count = merge_rows(table, like, gaps, gap_offsets, self._bases, cursors, batch)
            if count == 0:
                return
            yield batch[:count]

    @property
    def keys(self) -> NDArray[np.uint64] | None:
        """The keys of the merged rows where they are known already, see ``Part``."""
        return self.pieces[0].part.keys if self._as_it_is else None

    @property
    def _as_it_is(self) -> bool:
        return len(self.pieces) == 1 and not len(self._gaps[0])

    def _merged_starts(self) -> NDArray[np.uint32]:
        parts = []
        for piece, gaps, base in zip(self.pieces, self._gaps, self._bases[:-1], strict=True):
            starts = np.delete(piece.part.starts[:-1].astype(np.int64), piece.dead)
            before = np.concatenate([[0], np.cumsum(gaps[:, 1] - gaps[:, 0])])
            parts.append(starts + base - before[np.searchsorted(gaps[:, 0], starts, side="right")])
        return np.concatenate([*parts, [self.symbols]]).astype(np.uint32)


def warm_up(dtype: np.dtype[Any]) -> None:
    """Load what appending runs, or compile it: seconds that the first append of a process would wait."""
    part = Part.of([Addition("", np.zeros(1, dtype))], dtype, "")
    merge_in_memory([Piece(part), Piece(part)], "")


def merge_in_memory(pieces: Sequence[Piece], name: str) -> Part:
    """Merge small pieces into a part."""
    merge = Merge(pieces)
    text = np.concatenate(list(merge.text()))
    rows = np.concatenate(list(merge.rows()))
    live = list(merge.live())
    documents = DocumentList(
        [piece.part.documents.id(number) for piece, number in live],
        [piece.part.documents.metadata(number) for piece, number in live],
    )
    return Part(text, rows, top_keys(text, rows), merge.starts, documents, name)


@kernel
def merge_rows(table, like, gaps, gap_offsets, bases, cursors, out):
    """Fill ``out`` with the next rows of the merged text.

    Args:
        table: int64 [p, COLUMNS] of ``piece_table``.
        like: Empty array of the text's dtype.
        gaps: int64 [g, 3], the dropped stretches of all pieces: start, end, symbols dropped before.
        gap_offsets: int64 [p + 1], piece i owns ``gaps[gap_offsets[i]:gap_offsets[i + 1]]``.
        bases: int64 [p + 1], where each piece begins in the merged text.
        cursors: int64 [p], rows consumed of each piece; moved on.
        out: uint32 [at most the batch].

    Returns:
        Rows written; 0 at the end.
    """
    pieces = len(table)
    heads = np.empty(pieces, np.int64)  # position of each piece's next row, -1 at its end
    moved = np.empty(pieces, np.int64)  # the same in the merged text
    keys = np.empty(pieces, np.uint64)
    for i in range(pieces):
        advance(table, like, gaps, gap_offsets, bases, cursors, heads, moved, keys, i)
    n = 0
    while n < len(out):
        best = -1
        for i in range(pieces):
            if heads[i] < 0:
                continue
            if (
                best < 0
                or keys[i] < keys[best]
                or (keys[i] == keys[best] and sorts_before(table, like, i, heads[i], best, heads[best]))
            ):
                best = i
        if best < 0:
            break
        out[n] = moved[best]
        n += 1
        cursors[best] += 1
        advance(table, like, gaps, gap_offsets, bases, cursors, heads, moved, keys, best)
    return n


@kernel
def advance(table, like, gaps, gap_offsets, bases, cursors, heads, moved, keys, i):
    """Make row ``cursors[i]`` of piece ``i`` its head, passing over rows of what is dropped."""
    text = view(table[i, TEXT], table[i, SIZE], like)
    rows = view(table[i, ROWS], table[i, SIZE], np.uint32)
    heads[i] = -1
    while cursors[i] < len(rows):
        position = np.int64(rows[cursors[i]])
        low = gap_offsets[i]
        high = gap_offsets[i + 1]
        while low < high:  # first gap that starts after the position
            middle = (low + high) // 2
            if gaps[middle, 0] <= position:
                low = middle + 1
            else:
                high = middle
        dropped = np.int64(0)
        if low > gap_offsets[i]:
            if position < gaps[low - 1, 1]:
                cursors[i] += 1
                continue
            dropped = gaps[low - 1, 2] + gaps[low - 1, 1] - gaps[low - 1, 0]
        heads[i] = position
        moved[i] = bases[i] + position - dropped
        keys[i] = row_key(text, position)
        break


@kernel
def row_key(text, position):
    """The packed last tokens before a separator, so that rows equal up to a separator have equal keys."""
    bits, width = key_layout(text)
    key = np.uint64(0)
    ended = False
    for k in range(width):
        token = np.uint64(0)
        if not ended:
            ended = text[position - k] == text[0]
            token = np.uint64(text[position - k]) & np.uint64((1 << bits) - 1)
        key = (key << np.uint64(bits)) | token
    return key


@kernel
def sorts_before(table, like, i, position, j, other):
    """Whether a row of piece ``i`` sorts strictly before one of piece ``j``, by at most LONGEST tokens."""
    left = view(table[i, TEXT], table[i, SIZE], like)
    right = view(table[j, TEXT], table[j, SIZE], like)
    for k in range(LONGEST):
        a = left[position - k]
        b = right[other - k]
        if a != b:
            return a < b
        if a == left[0]:  # the separator
            return False
    return False


@kernel
def merge_orders(table, numbers, out):
    """Merge the orders of the documents of some pieces.

    Args:
        table: int64 [p, 4], addresses of the order, the offsets and the data of each piece's ``Records``, and
            how many documents it has.
        numbers: int64 [all documents], what each is numbered in the merged text, -1 for one that is dropped.
        out: uint32 [documents that stay], filled.
    """
    cursors = np.zeros(len(table), np.int64)
    firsts = np.cumsum(table[:, 3]) - table[:, 3]
    heads = np.empty(len(table), np.int64)
    for n in range(len(out)):
        best = -1
        for i in range(len(table)):
            order = view(table[i, 0], table[i, 3], np.uint32)
            while cursors[i] < len(order) and numbers[firsts[i] + order[cursors[i]]] < 0:
                cursors[i] += 1
            if cursors[i] < len(order):
                heads[i] = order[cursors[i]]
                if best < 0 or id_before(table, i, heads[i], best, heads[best]):
                    best = i
        if best < 0:
            break
        out[n] = numbers[firsts[best] + heads[best]]
        cursors[best] += 1


@kernel
def id_before(table, i, number, j, other):
    """Whether the id of a document of piece ``i`` sorts strictly before that of one of piece ``j``."""
    left, right = record_of(table, i, number), record_of(table, j, other)
    for k in range(min(len(left), len(right))):  # an id ends with a quote, so no id begins another
        if left[k] != right[k]:
            return left[k] < right[k]
    return False


@kernel
def record_of(table, i, number):
    """The record of a document, from its id on."""
    offsets = view(table[i, 1], table[i, 3] + 1, np.int64)
    data = view(table[i, 2], offsets[table[i, 3]], np.uint8)
    record = data[offsets[number] : offsets[number + 1]]
    return record[1:] if record[0] == 91 else record  # "[" stands before an id with metadata
