"""From matches to draft candidates: the tree of what went on after them."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.matches import LENGTH, MATCH_COLUMNS, NO_LIMIT, PIECE, POSITION, gather
from groundspeed.datastores.pointers import SIZE, TEXT
from groundspeed.datastores.views import prefetch, view
from groundspeed.jit import inlined, kernel

__all__ = ["candidates"]

# Columns of a node that waits or waited.
PARENT = 0
NODE = 1
BEGIN = 2  # of its matches in their order
END = 3
DEPTH = 4
NEXT = 5  # node of the same mass that came after it
NODE_COLUMNS = 6

_AHEAD = 16  # tokens of text that are fetched before they are read
_ENOUGH = 4  # matches; what fewer tokens match takes room of what these went on with, and accepts less
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
    n, _ = gather(table, like, context, size, depth, spread, _ENOUGH, NO_LIMIT, seed, matches, weights)
    weigh(matches, weights, n)

    budget = len(token_ids)
    order = np.arange(n)
    tokens = np.empty(n, np.int64)
    waiting = np.empty((budget + n, NODE_COLUMNS), np.int64)
    # Nodes of the same mass queue, so that none starves. Masses rise: the last queue has the next node.
    queue_masses = np.empty(n, np.float64)
    queues = np.empty((n, 2), np.int64)  # first and last node
    met, queued = expand(
        table, like, matches, weights, tokens, order, waiting, queue_masses, queues, 0, n, 0, -1, 0, 0
    )
    nodes = 0
    while nodes < budget and queued > 0:
        top = queued - 1
        best = queues[top, 0]
        token_ids[nodes] = waiting[best, NODE]
        parents[nodes] = waiting[best, PARENT]
        masses[nodes] = queue_masses[top]
        if best == queues[top, 1]:
            queued = top
        else:
            queues[top, 0] = waiting[best, NEXT]
        begin, end, depth = waiting[best, BEGIN], waiting[best, END], waiting[best, DEPTH]
        met, queued = expand(
            table, like, matches, weights, tokens, order, waiting, queue_masses, queues,
            begin, end, depth, nodes, met, queued,
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


@inlined
def expand(
    table, like, matches, weights, tokens, order, waiting, queue_masses, queues,
    low, high, deep, node, met, queued,
):  # fmt: skip
    """Sort the matches ``order[low:high]`` of a node by their next token; each token found waits."""
    end = np.int64(1) << 40  # sorts behind all tokens
    for k in range(low, high):
        match = order[k]
        piece = matches[match, PIECE]
        text = view(table[piece, TEXT], table[piece, SIZE], like)
        position = matches[match, POSITION] + deep
        token = np.int64(text[position]) if position < len(text) and text[position] != text[0] else end
        if deep % _AHEAD == 0:
            prefetch(text, position + _AHEAD)
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
        waiting[met, PARENT] = node
        waiting[met, NODE] = tokens[begin]
        waiting[met, BEGIN] = begin
        waiting[met, END] = stop
        waiting[met, DEPTH] = deep + 1
        queued = enqueue(waiting, queue_masses, queues, queued, met, mass)
        met += 1
        begin = stop
    return met, queued


@inlined
def enqueue(waiting, masses, queues, queued, entry, mass):
    """Let a node wait behind those of its mass; no node that waits has more than the last one taken."""
    at = queued
    while at > 0 and masses[at - 1] > mass:
        at -= 1
    if at > 0 and masses[at - 1] == mass:
        waiting[queues[at - 1, 1], NEXT] = entry
        queues[at - 1, 1] = entry
        return queued
    for i in range(queued, at, -1):
        masses[i] = masses[i - 1]
        queues[i, 0] = queues[i - 1, 0]
        queues[i, 1] = queues[i - 1, 1]
    masses[at] = mass
    queues[at, 0] = entry
    queues[at, 1] = entry
    return queued + 1
