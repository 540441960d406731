"""Many arrays in one: how a kernel is handed any number of pieces, mapped or in memory.

A numba kernel is compiled for the number of arrays it takes, and numba's own lists are compiled anew in
every process. A table of addresses has one type whatever it points to. Whoever holds the table must hold the
pieces. The table is made without numba, which takes 70 MB that opening a store can do without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.parts import Piece

__all__ = ["COLUMNS", "GAPS", "GAP_COUNT", "KEYS", "KEY_COUNT", "ROWS", "SIZE", "TEXT", "piece_table"]

# Columns of the table, one row a piece.
TEXT = 0  # address of the text
SIZE = 1  # symbols of the text, and rows
ROWS = 2  # address of the rows, uint32 [SIZE]
KEYS = 3  # address of the keys, uint64 [KEY_COUNT]
KEY_COUNT = 4
GAPS = 5  # address of the deleted stretches, int64 [GAP_COUNT, 2]: first position, the one past the last
GAP_COUNT = 6
COLUMNS = 7


def piece_table(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    """The addresses of pieces, int64 [p, COLUMNS]; valid while the pieces live."""
    table = np.empty((len(pieces), COLUMNS), np.int64)
    for row, piece in zip(table, pieces, strict=True):
        part = piece.part
        row[:] = (
            part.text.ctypes.data,
            len(part.text),
            part.rows.ctypes.data,
            part.keys.ctypes.data,
            len(part.keys),
            piece.gaps.ctypes.data,
            len(piece.gaps),
        )
    return table
