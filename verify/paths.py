"""The way from the last committed token down to every draft node."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.jit import kernel

__all__ = ["trace_paths", "trace_spans"]


@kernel
def _above(parents, committed, row):
    """The row that a row stands behind, row >= 1."""
    if row < committed:
        return row - 1
    parent = parents[row - committed]
    return committed - 1 if parent < 0 else committed + parent


@kernel
def trace_paths(parents, committed, paths, offsets):
    """Fill in what each row of a stretch sees of it.

    Args:
        parents: int32 [n], of the draft nodes; -1 for a child of the last committed token.
        committed: m tokens before the nodes.
        paths: int32 [m + n, m + n], filled: by row the rows that it sees, in order of position, itself last.
        offsets: int32 [m + n], filled: of a row's position from the first one's.
    """
    for row in range(committed + len(parents)):
        above = _above(parents, committed, row) if row else -1
        offsets[row] = offsets[above] + 1 if above >= 0 else 0
        if above >= 0:
            paths[row, : offsets[row]] = paths[above, : offsets[row]]
        paths[row, offsets[row]] = row


@kernel
def trace_spans(parents, committed, enter, leave, offsets):
    """Number the rows of a stretch so that two numbers a row tell who sees whom.

    They are numbered in depth-first order: row a sees row b exactly if enter[b] <= enter[a] < leave[b].

    Args:
        parents: int32 [n], of the draft nodes; -1 for a child of the last committed token.
        committed: m >= 1 tokens before the nodes.
        enter: int64 [m + n], filled.
        leave: int64 [m + n], filled: just past the numbers of the rows that see this one.
        offsets: int64 [m + n], filled: of a row's position from the first one's.
    """
    rows = committed + len(parents)
    for row in range(rows):
        leave[row] = 1  # how many rows see it, for now
    for row in range(rows - 1, 0, -1):
        leave[_above(parents, committed, row)] += leave[row]
    following = np.zeros(rows, np.int64)  # number of the next child
    for row in range(rows):
        enter[row] = offsets[row] = 0
        if row:
            above = _above(parents, committed, row)
            enter[row] = following[above]
            following[above] += leave[row]
            offsets[row] = offsets[above] + 1
        following[row] = enter[row] + 1
    for row in range(rows):
        leave[row] += enter[row]
