"""The way from the last committed token down to every draft node."""
# mypy: allow-untyped-defs

from __future__ import annotations

from groundspeed.jit import kernel

__all__ = ["trace_paths"]


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
        above = row - 1
        if row >= committed:
            parent = parents[row - committed]
            above = committed - 1 if parent < 0 else committed + parent
        offsets[row] = offsets[above] + 1 if above >= 0 else 0
        if above >= 0:
            paths[row, : offsets[row]] = paths[above, : offsets[row]]
        paths[row, offsets[row]] = row
