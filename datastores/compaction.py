"""When segments are merged: as in a log-structured merge tree (O'Neil et al. 1996), by size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from groundspeed.datastores.parts import Piece

__all__ = ["MAX_SYMBOLS", "due_merge", "neighbours"]

MAX_SYMBOLS = int(np.iinfo(np.uint32).max)
"""Most tokens and separators of a segment: what its rows can number."""

_RATIO = 4  # a segment stays while it is so many times larger than all newer ones together
_DEAD = 0.25  # share of deleted text from which a segment is written anew


def due_merge(sealed: Mapping[str, Sequence[Piece]]) -> tuple[str, Sequence[Piece]] | None:
    """The namespace and the neighbouring segments that should become one now; None when all is well.

    A namespace of n tokens keeps about log n segments, and a token is written again about as often.

    Args:
        sealed: The segments of each namespace, oldest first.
    """
    for name, pieces in sealed.items():
        begin, newer = len(pieces), 0
        for index in range(len(pieces) - 1, -1, -1):
            size = pieces[index].live_symbols
            if newer + size > MAX_SYMBOLS:
                break
            if newer and size <= _RATIO * newer:
                begin = index
            newer += size
        if begin < len(pieces):
            return name, pieces[begin:]
        for piece in pieces:
            if len(piece.part.text) - piece.live_symbols > _DEAD * len(piece.part.text):
                return name, [piece]
    return None


def neighbours(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Cut pieces into runs that fit one segment each."""
    run: list[Piece] = []
    for piece in pieces:
        if run and sum(member.live_symbols for member in run) + piece.live_symbols > MAX_SYMBOLS:
            yield run
            run = []
        run.append(piece)
    if run:
        yield run
