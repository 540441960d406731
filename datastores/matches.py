"""The rows that match a context in any number of pieces, without those of deleted documents."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.pointers import GAP_COUNT, GAPS, KEY_COUNT, KEYS, ROWS, SIZE, TEXT
from groundspeed.datastores.search import LONGEST, find, widen
from groundspeed.datastores.views import prefetch, view
from groundspeed.jit import inlined, kernel

__all__ = ["LENGTH", "MATCH_COLUMNS", "NO_LIMIT", "PIECE", "POSITION", "TOKEN", "gather"]

NO_LIMIT = 1 << 40
"""Reach, and what is enough, of a question that wants exact counts."""

# Columns of a match.
LENGTH = 0  # tokens of the context that stand before it, at most LONGEST
TOKEN = 1  # the token that follows
PIECE = 2  # row of the piece table
POSITION = 3  # of the token that follows
MATCH_COLUMNS = 4


@kernel
def gather(table, like, context, size, depth, spread, enough, reach, seed, out, weights):
    """Find what followed the longest matches of a context.

    In every piece the longest match is taken, and the next shorter ones, ``depth`` lengths in all. Of a
    length that more than ``spread`` rows have, an even sample of that many stands for all: rows are sorted by
    context, so the sample does not favour any continuation, and its weights add up to the number of rows.

    Args:
        table: int64 [p, COLUMNS] of ``piece_table``.
        like: Empty array of the text's dtype.
        context: int64 [at least size], the last token first, ids of the vocabulary.
        size: Tokens of the context; of more than ``LONGEST`` the last ones count.
        depth: Lengths wanted of each piece.
        spread: Most rows of one length in one piece.
        enough: Matches, of all pieces together, that make shorter ones needless.
        reach: Rows of one length that are looked for on each side of the longer matches; of a length with
            more the nearest stand for all, and it is the last one.
        seed: Of the sample; uint64.
        out: int64 [at least p * depth * spread, MATCH_COLUMNS].
        weights: float64 [as long], rows that a match stands for; 1 when nothing was left out.

    Returns:
        Matches found, and the shortest length whose rows are complete: shorter ones were not looked for in
        some piece.
    """
    size = min(size, LONGEST)
    complete = 1
    shortest = 1
    n = 0
    state = seed
    for k in range(min(size, 4)):
        state = mix(state ^ np.uint64(context[k]))
    for piece in range(len(table)):
        text = view(table[piece, TEXT], table[piece, SIZE], like)
        rows = view(table[piece, ROWS], table[piece, SIZE], np.uint32)
        keys = view(table[piece, KEYS], table[piece, KEY_COUNT], np.uint64)
        gaps = view(table[piece, GAPS], 2 * table[piece, GAP_COUNT], np.int64)
        if size == 0:
            break
        first = find(text, rows, keys, context, size)
        last = first - 1
        lengths = 0
        while lengths < depth:
            inner_first, inner_last = first, last
            length, first, last = widen(text, rows, context, size, first, last, shortest, reach)
            if length == 0:
                break
            begin = n
            left = inner_first - first
            count = left + last - inner_last
            state = mix(state)
            shift = np.float64(state >> np.uint64(11)) / np.float64(1 << 53)
            picks = min(count, spread)
            for k in range(picks):
                pick = k if count <= spread else min(np.int64((k + shift) * (count / spread)), count - 1)
                row = first + pick if pick < left else inner_last + 1 + pick - left
                out[begin + k, POSITION] = np.int64(rows[row]) + 1
                prefetch(text, out[begin + k, POSITION])
            for k in range(picks):
                position = out[begin + k, POSITION]
                if usable(text, gaps, position):
                    record(out, weights, n, length, text[position], piece, position, count / picks)
                    n += 1
            if n == begin and count > spread:
                # All of the sample is deleted or at the end of its document; the few that are not are sought.
                for pick in range(count):
                    row = first + pick if pick < left else inner_last + 1 + pick - left
                    position = np.int64(rows[row]) + 1
                    if usable(text, gaps, position):
                        record(out, weights, n, length, text[position], piece, position, 1.0)
                        n += 1
                        if n - begin == spread:
                            break
            if max(left, last - inner_last) > reach:
                lengths = depth
            elif n > begin:
                lengths += 1
                if lengths == depth:
                    complete = max(complete, length)
                if n >= enough:
                    shortest = max(shortest, length)
    return n, max(complete, shortest)


@inlined
def usable(text, gaps, position):
    """Whether a token stands at the position, and in a document that is not deleted."""
    if position >= len(text) or text[position] == text[0]:
        return False
    low = 0
    high = len(gaps) // 2
    while low < high:
        middle = (low + high) // 2
        if gaps[2 * middle] <= position:
            low = middle + 1
        else:
            high = middle
    return low == 0 or position >= gaps[2 * low - 1]


@inlined
def record(out, weights, n, length, token, piece, position, weight):
    """Write a match."""
    out[n, LENGTH] = length
    out[n, TOKEN] = token
    out[n, PIECE] = piece
    out[n, POSITION] = position
    weights[n] = weight


@inlined
def mix(state):
    """The next number of a SplitMix64 sequence (Steele et al. 2014)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
