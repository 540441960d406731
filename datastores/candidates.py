"""From matches to draft candidates: the tree of what went on after them."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.matches import ANY_REACH, LENGTH, MATCH_COLUMNS, PIECE, POSITION, gather
from groundspeed.datastores.pointers import SIZE, TEXT
from groundspeed.datastores.views import view
from groundspeed.jit import kernel

__all__ = ["candidates"]

_ESCAPE = 0.25  # share of the probability that a length leaves to all shorter ones


@kernel
def candidates(table, like, context, size, depth, spread, seed, token_ids, parents, masses):
    """Grow the tree of the continuations of a context best-first; the store alone as a drafter.

    Args:
        table: int64 [p, COLUMNS] of ``piece_table``.
        like: Empty array of the text's dtype.
        context: int64 [at least size], the last token first.
        size: Tokens of the context.
        depth: Lengths of match taken of each piece, see ``gather``.
        spread: Most rows of one length in one piece.
        seed: Of the sample; uint64.
        token_ids: int64 [budget], filled.
        parents: int64 [budget], filled; -1 for a child of the context.
        masses: float64 [budget], filled with the share of the matches that a node's path has.

    Returns:
        Number of nodes, at most the budget.
    """
    room = len(table) * depth * spread
    matches = np.empty((room, MATCH_COLUMNS), np.int64)
    weights = np.empty(room, np.float64)
    n, _ = gather(table, like, context, size, depth, spread, ANY_REACH, seed, matches, weights)
    weigh(matches, weights, n)

    budget = len(token_ids)
    order = np.arange(n)
    tokens = np.empty(n, np.int64)
    # Nodes met and not in the tree yet: parent, token, first and past the last of its matches, depth.
    waiting = np.empty((budget * 2 + n * 2, 5), np.int64)
    waiting_masses = np.empty(len(waiting), np.float64)
    waits = expand(table, like, matches, weights, order, tokens, 0, n, 0, -1, waiting, waiting_masses, 0)
    nodes = 0
    while nodes < budget and waits > 0:
        best = 0
        for i in range(1, waits):
            if waiting_masses[i] > waiting_masses[best]:
                best = i
        token_ids[nodes] = waiting[best, 1]
        parents[nodes] = waiting[best, 0]
        masses[nodes] = waiting_masses[best]
        low, high, deep = waiting[best, 2], waiting[best, 3], waiting[best, 4]
        waits -= 1
        waiting[best] = waiting[waits]
        waiting_masses[best] = waiting_masses[waits]
        waits = expand(
            table, like, matches, weights, order, tokens, low, high, deep, nodes,
            waiting, waiting_masses, waits,
        )  # fmt: skip
        nodes += 1
    return nodes


@kernel
def weigh(matches, weights, n):
    """Turn weights into shares: each length has all but an escape of what longer ones have left."""
    left = 1.0
    longest = 1 << 30
    while True:
        length = 0
        total = 0.0
        for i in range(n):
            if matches[i, LENGTH] < longest:
                if matches[i, LENGTH] > length:
                    length = matches[i, LENGTH]
                    total = 0.0
                if matches[i, LENGTH] == length:
                    total += weights[i]
        if length == 0:
            break
        for i in range(n):
            if matches[i, LENGTH] == length:
                weights[i] *= left * (1.0 - _ESCAPE) / total
        left *= _ESCAPE
        longest = length


@kernel
def expand(
    table, like, matches, weights, order, tokens, low, high, deep, node, waiting, masses, waits
):  # fmt: skip
    """Sort the matches ``order[low:high]`` of a node by their next token; each token found waits."""
    end = np.int64(1) << 40  # sorts behind all tokens
    for k in range(low, high):
        match = order[k]
        piece = matches[match, PIECE]
        text = view(table[piece, TEXT], table[piece, SIZE], like)
        position = matches[match, POSITION] + deep
        token = np.int64(text[position]) if position < len(text) and text[position] != text[0] else end
        at = k
        while at > low and tokens[at - 1] > token:
            tokens[at] = tokens[at - 1]
            order[at] = order[at - 1]
            at -= 1
        tokens[at] = token
        order[at] = match
    begin = low
    while begin < high and tokens[begin] != end:
        stop = begin
        mass = 0.0
        while stop < high and tokens[stop] == tokens[begin]:
            mass += weights[order[stop]]
            stop += 1
        waiting[waits, 0] = node
        waiting[waits, 1] = tokens[begin]
        waiting[waits, 2] = begin
        waiting[waits, 3] = stop
        waiting[waits, 4] = deep + 1
        masses[waits] = mass
        waits += 1
        begin = stop
    return waits
