"""The token datastore as a draft source: what followed a node's context in stored text."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.matches import LENGTH, MATCH_COLUMNS, NO_LIMIT, PIECE, POSITION, TOKEN, gather
from groundspeed.jit import kernel

__all__ = ["FOLLOWERS", "FOLLOWER_COLUMNS", "LEVELS", "ask"]

LEVELS = 2
"""The longest match, and the next shorter one that more places have. A third brought nothing in replays."""

FOLLOWERS = 32  # most tokens of an answer
_SAMPLE = 8  # places looked at of a level in each piece
_REACH = 16  # on each side; that a context is more frequent still says nothing more

# Columns of a follower.
FOLLOWER = 0  # token
FOLLOWED = 1  # times it followed, an estimate where the places were sampled
LEVEL = 2  # the longest level it was seen at
ORIGIN = 3  # piece << 40 | position of one place
FOLLOWER_COLUMNS = 4

# Columns of a level.
MATCHED = 0  # tokens matched, 0 for none
PLACES = 1  # places that match so much, of the longer levels too, an estimate likewise
DISTINCT = 2  # followers that this level adds


@kernel
def ask(store, context, size, followers, summary):
    """Tally what followed the two longest matches of a context.

    Args:
        store: Table and example of text of a ``Snapshot``.
        context: int64 [at least size], the last token first.
        size: Tokens of the context.
        followers: int64 [FOLLOWERS, FOLLOWER_COLUMNS], filled.
        summary: int64 [LEVELS, 3], filled with MATCHED, PLACES, DISTINCT by level.

    Returns:
        Number of followers.
    """
    summary[:] = 0
    table, like = store
    if len(table) == 0:
        return 0
    matches = np.empty((len(table) * LEVELS * _SAMPLE, MATCH_COLUMNS), np.int64)
    weights = np.empty(len(matches), np.float64)
    found, _ = gather(
        table, like, context, size, LEVELS, _SAMPLE, NO_LIMIT, _REACH, np.uint64(0), matches, weights
    )
    for i in range(found):
        length = matches[i, LENGTH]
        if length > summary[0, MATCHED]:
            summary[1, MATCHED] = summary[0, MATCHED]
            summary[0, MATCHED] = length
        elif summary[0, MATCHED] > length > summary[1, MATCHED]:
            summary[1, MATCHED] = length
    n = 0
    for level in range(LEVELS):
        start = n
        for i in range(found):
            if matches[i, LENGTH] != summary[level, MATCHED]:
                continue
            token = matches[i, TOKEN]
            weight = max(np.int64(weights[i] + 0.5), 1)
            summary[level, PLACES] += weight
            at = 0
            while at < n and followers[at, FOLLOWER] != token:
                at += 1
            if at == n:
                if n == FOLLOWERS:
                    continue
                n += 1
                followers[at, FOLLOWER] = token
                followers[at, FOLLOWED] = 0
                followers[at, LEVEL] = level
                followers[at, ORIGIN] = (matches[i, PIECE] << 40) | matches[i, POSITION]
            if at >= start:
                followers[at, FOLLOWED] += weight
        summary[level, DISTINCT] = n - start
    summary[1, PLACES] += summary[0, PLACES]
    return n
