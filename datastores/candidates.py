"""From matches to draft candidates: the tree of what went on after them."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.matches import LENGTH, MATCH_COLUMNS, NO_LIMIT, PIECE, POSITION, gather
from groundspeed.datastores.pointers import SIZE, TEXT
from groundspeed.datastores.search import LONGEST
from groundspeed.datastores.views import prefetch, view
from groundspeed.jit import inlined, kernel

__all__ = ["candidates"]

# Columns of a node that waits or waited.
PARENT = 0
NODE = 1
BEGIN = 2  # of its matches
END = 3
DEPTH = 4
NEXT = 5  # node of the same mass that came after it
NODE_COLUMNS = 6

_AHEAD = 16  # tokens of text that are fetched before they are read
_ENOUGH = 4  # matches; what fewer tokens match takes room of what these went on with, and accepts less
_WHOLE = float(1 << 48)  # mass of all matches; sums of whole numbers are the same in any order
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
    places = np.empty(n, np.int64)  # addresses of the tokens that follow
    n = locate(table, like, matches, budget, places, weights)

    waiting = np.empty((budget + n, NODE_COLUMNS), np.int64)
    # Nodes of the same mass queue, so that none starves. Masses rise: the last queue has the next node.
    queue_masses = np.empty(n, np.float64)
    queues = np.empty((n, 3), np.int64)  # first and last node, and how many
    met, queued = expand(like, places, weights, waiting, queue_masses, queues, 0, n, 0, -1, 0, 0)
    nodes = 0
    while nodes < budget and queued > 0:
        top = queued - 1
        best = queues[top, 0]
        token_ids[nodes] = waiting[best, NODE]
        parents[nodes] = waiting[best, PARENT]
        masses[nodes] = queue_masses[top] / _WHOLE
        nodes += 1
        queues[top, 0] = waiting[best, NEXT]
        queues[top, 2] -= 1
        before = queues[top, 2]
        if before == 0:
            queued = top
        if before < budget - nodes:  # else those before its children fill the tree
            begin, end, depth = waiting[best, BEGIN], waiting[best, END], waiting[best, DEPTH]
            met, queued = expand(
                like, places, weights, waiting, queue_masses, queues,
                begin, end, depth, nodes - 1, met, queued,
            )  # fmt: skip
    return nodes


@kernel
def weigh(matches, weights, n):
    """Turn weights into masses: each length has all but an escape of what longer ones have left."""
    factors = np.zeros(LONGEST + 1, np.float64)
    for i in range(n):
        factors[matches[i, LENGTH]] += weights[i]
    left = _WHOLE
    for length in range(LONGEST, 0, -1):
        if factors[length] > 0.0:
            factors[length] = left * (1.0 - _ESCAPE) / factors[length]
            left *= _ESCAPE
    for i in range(n):
        weights[i] = np.floor(weights[i] * factors[matches[i, LENGTH]])


@inlined
def locate(table, like, matches, budget, places, weights):
    """Find the addresses of what follows matches, with their weights in front; how many can be followed.

    A text ends with a separator, which nothing goes past; a damaged one is not followed to its end.
    """
    found = 0
    for i in range(len(places)):
        piece, position = matches[i, PIECE], matches[i, POSITION]
        begin, size = table[piece, TEXT], table[piece, SIZE]
        if position + budget < size or ends(view(begin, size, like)):
            places[found] = begin + position * like.itemsize
            weights[found] = weights[i]
            found += 1
    return found


@inlined
def ends(text):
    """Whether a text ends with a separator."""
    return text[len(text) - 1] == np.iinfo(text.dtype).max


@inlined
def expand(
    like, places, weights, waiting, queue_masses, queues,
    low, high, deep, node, met, queued,
):  # fmt: skip
    """Bring those of a node's matches ``[low, high)`` together that go on with a token; each token waits."""
    # Numbers that may be negative are indices from the end, which takes longer than all else here.
    first, beyond, one = np.uint64(low), np.uint64(high), np.uint64(1)
    ahead = deep * like.itemsize
    if deep % _AHEAD == 0:
        for k in range(first, beyond):
            prefetch(view(places[k] + ahead, 1, like), _AHEAD)
    while first < beyond:
        token = view(places[first] + ahead, 1, like)[0]
        mass = weights[first]
        stop = first + one
        for k in range(stop, beyond):
            # Each is swapped, whether it has the token or not: a branch would be mispredicted.
            place, weight = places[k], weights[k]
            places[k], weights[k] = places[stop], weights[stop]
            places[stop], weights[stop] = place, weight
            same = view(place + ahead, 1, like)[0] == token
            mass += weight * same
            stop += np.uint64(same)
        if token != np.iinfo(like.dtype).max:
            waiting[met, PARENT] = node
            waiting[met, NODE] = token
            waiting[met, BEGIN] = np.int64(first)
            waiting[met, END] = np.int64(stop)
            waiting[met, DEPTH] = deep + 1
            queued = enqueue(waiting, queue_masses, queues, queued, met, mass)
            met += 1
        first = stop
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
        queues[at - 1, 2] += 1
        return queued
    for i in range(queued, at, -1):
        masses[i] = masses[i - 1]
        queues[i, 0] = queues[i - 1, 0]
        queues[i, 1] = queues[i - 1, 1]
        queues[i, 2] = queues[i - 1, 2]
    masses[at] = mass
    queues[at, 0] = entry
    queues[at, 1] = entry
    queues[at, 2] = 1
    return queued + 1
