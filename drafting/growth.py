"""The kernels of the blend: growing a draft tree best-first, or one path."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.datastores.search import LONGEST
from groundspeed.drafting.features import FEATURES, NONE_FEATURES
from groundspeed.drafting.node import MATCH, NODE_COLUMNS, OUTPUT, PLACE, STREAM, advance
from groundspeed.drafting.offers import (
    CANDIDATE,
    CANDIDATE_COLUMNS,
    CANDIDATE_MATCH,
    CANDIDATE_ORIGIN,
    CANDIDATE_STATE,
    CANDIDATES,
    FROM_REQUEST,
    FROM_TARGET,
    offer,
    score,
)
from groundspeed.drafting.stored import FOLLOWER_COLUMNS, FOLLOWERS, LEVELS, ask
from groundspeed.drafting.suffix import FIRST
from groundspeed.jit import kernel
from groundspeed.types import Source

__all__ = ["CERTAIN", "grow", "grow_chain", "read_context"]

_SURE = 0.97  # a child is seldom more probable than this: below the floor by it, a node is not asked
_ASKING = 8  # nodes of a tree, the most probable ones, at which stored text is asked
CERTAIN = 8
"""Stored text is asked only where the request's own text matches fewer tokens."""

_SOURCE_PASSAGE, _SOURCE_PROMPT, _SOURCE_OUTPUT = int(Source.PASSAGE), int(Source.PROMPT), int(Source.OUTPUT)
_SOURCE_DATASTORE, _SOURCE_RECYCLED = int(Source.DATASTORE), int(Source.RECYCLED)


@kernel
def read_context(tokens, end, token_ids, parents, node, context):
    """Fill ``context`` with the last tokens of a node's text, the last one first; how many there are.

    Args:
        tokens: Of the ``SuffixIndex``; the committed text ends before ``end``.
        end: Number of tokens in it.
        token_ids: int64 [n], of the tree so far, as are its ``parents``.
        parents: int64 [n].
        node: Index of the node, -1 for the root.
        context: int64 [k].
    """
    n = 0
    while node >= 0 and n < len(context):
        context[n] = token_ids[node]
        node = parents[node]
        n += 1
    while n < len(context) and tokens[end - 1] >= 0:
        end -= 1
        context[n] = tokens[end]
        n += 1
    return n


@kernel
def grow(index, end, request, starts, store, recycled, root, weights, budget, least):
    """Grow a tree best-first, of paths more probable than ``least``; returns the arrays of a tree."""
    tokens, states, _, _ = index
    nodes = np.empty((budget, NODE_COLUMNS), np.int64)
    parents = np.empty(budget, np.int64)
    probs = np.empty(budget, np.float64)
    token_ids = np.empty(budget, np.int64)
    positions = np.empty(budget, np.int64)
    origins = np.empty(budget, np.int64)
    candidates = np.empty((CANDIDATES, CANDIDATE_COLUMNS), np.int64)
    features = np.empty((CANDIDATES, FEATURES), np.int32)
    none_features = np.empty(NONE_FEATURES, np.int32)
    scores = np.empty(CANDIDATES, np.float64)
    context = np.empty(LONGEST, np.int64)
    followers = np.empty((FOLLOWERS, FOLLOWER_COLUMNS), np.int64)
    summary = np.empty((LEVELS, 3), np.int64)
    # The best candidates that are not in the tree yet, the most probable last: never more than there is room
    # for. Each lies in a slot with its parent behind it; slots that are left free wait in a stack.
    slots = np.empty((budget, CANDIDATE_COLUMNS + 1), np.int64)
    free = np.arange(budget)
    waiting = np.empty(budget, np.int64)
    waiting_probs = np.empty(budget, np.float64)
    waits = 0

    n = 0
    mass = 1.0
    node = root
    while n < budget:
        floor = waiting_probs[0] if waits == budget - n else least
        if mass * _SURE > floor:
            followed = 0
            summary[:] = 0
            if n < _ASKING and node[MATCH] < CERTAIN:
                size = read_context(tokens, end, token_ids, parents, n - 1, context)
                followed = ask(store, context, size, followers, summary)
            offered = offer(
                index, request, recycled, node, followers[:followed], summary,
                candidates, features, none_features,
            )  # fmt: skip
            score(weights, features, none_features, offered, scores)
            for i in range(offered):
                prob = mass * scores[i]
                if prob <= floor:
                    continue
                if waits < budget - n:
                    slot = free[waits]
                    at = waits
                    waits += 1
                    while at > 0 and waiting_probs[at - 1] >= prob:
                        waiting[at] = waiting[at - 1]
                        waiting_probs[at] = waiting_probs[at - 1]
                        at -= 1
                else:  # the least probable one has to go
                    slot = waiting[0]
                    at = 0
                    while at + 1 < waits and waiting_probs[at + 1] < prob:
                        waiting[at] = waiting[at + 1]
                        waiting_probs[at] = waiting_probs[at + 1]
                        at += 1
                for k in range(CANDIDATE_COLUMNS):
                    slots[slot, k] = candidates[i, k]
                slots[slot, CANDIDATE_COLUMNS] = n - 1
                waiting[at] = slot
                waiting_probs[at] = prob
                if waits == budget - n:
                    floor = waiting_probs[0]
        if waits == 0:
            break
        waits -= 1
        mass = waiting_probs[waits]
        best = slots[waiting[waits]]
        free[waits] = waiting[waits]
        token = best[CANDIDATE]
        state = best[CANDIDATE_STATE]
        parent = best[CANDIDATE_COLUMNS]
        token_ids[n] = token
        parents[n] = parent
        probs[n] = mass
        origins[n] = best[CANDIDATE_ORIGIN]
        node = nodes[n]
        for k in range(NODE_COLUMNS):
            node[k] = root[k] if parent < 0 else nodes[parent, k]
        place = node[PLACE]
        if place >= 0 and tokens[place] == token:
            positions[n] = place
        else:
            positions[n] = states[state, FIRST] if state >= 0 else -1
        advance(index, node, token, state, best[CANDIDATE_MATCH])
        n += 1
    return depth_first(n, token_ids, parents, probs, positions, origins, request[0], starts)


@kernel
def grow_chain(index, end, request, starts, store, recycled, root, weights, budget, least):
    """Grow one path, at each node by its most probable token, as ``grow`` does."""
    tokens, states, _, _ = index
    parents = np.arange(-1, budget - 1)
    probs = np.empty(budget, np.float64)
    token_ids = np.empty(budget, np.int64)
    positions = np.empty(budget, np.int64)
    origins = np.empty(budget, np.int64)
    candidates = np.empty((CANDIDATES, CANDIDATE_COLUMNS), np.int64)
    features = np.empty((CANDIDATES, FEATURES), np.int32)
    none_features = np.empty(NONE_FEATURES, np.int32)
    scores = np.empty(CANDIDATES, np.float64)
    context = np.empty(LONGEST, np.int64)
    followers = np.empty((FOLLOWERS, FOLLOWER_COLUMNS), np.int64)
    summary = np.empty((LEVELS, 3), np.int64)
    node = root.copy()

    n = 0
    mass = 1.0
    while n < budget:
        followed = 0
        summary[:] = 0
        if n < _ASKING and node[MATCH] < CERTAIN:
            size = read_context(tokens, end, token_ids, parents, n - 1, context)
            followed = ask(store, context, size, followers, summary)
        offered = offer(
            index, request, recycled, node, followers[:followed], summary,
            candidates, features, none_features,
        )  # fmt: skip
        if offered == 0:
            break
        score(weights, features, none_features, offered, scores)
        best = np.argmax(scores[:offered])
        mass *= scores[best]
        if mass <= least:
            break
        token = candidates[best, CANDIDATE]
        state = candidates[best, CANDIDATE_STATE]
        token_ids[n] = token
        probs[n] = mass
        origins[n] = candidates[best, CANDIDATE_ORIGIN]
        place = node[PLACE]
        if place >= 0 and tokens[place] == token:
            positions[n] = place
        else:
            positions[n] = states[state, FIRST] if state >= 0 else -1
        advance(index, node, token, state, candidates[best, CANDIDATE_MATCH])
        n += 1
    return depth_first(n, token_ids, parents, probs, positions, origins, request[0], starts)


@kernel
def depth_first(n, token_ids, parents, probs, positions, origins, layout, starts):
    """Bring nodes from best-first into depth-first order and say where each comes from."""
    child = np.empty(n + 1, np.int64)  # first child of node - 1, so that entry 0 is the root's
    for i in range(n + 1):
        child[i] = -1
    sibling = np.empty(n, np.int64)
    for node in range(n - 1, -1, -1):  # the most probable child, entered last, comes first
        sibling[node] = child[parents[node] + 1]
        child[parents[node] + 1] = node

    out_ids = np.empty(n, np.int32)
    out_parents = np.empty(n, np.int32)
    out_probs = np.empty(n, np.float32)
    source = np.empty(n, np.uint16)
    origin = np.empty(n, np.int64)
    renamed = np.empty(n, np.int64)
    node = child[0]
    for i in range(n):
        renamed[node] = i
        out_ids[i] = token_ids[node]
        out_parents[i] = renamed[parents[node]] if parents[node] >= 0 else -1
        out_probs[i] = probs[node]
        if origins[node] == FROM_TARGET:
            source[i] = _SOURCE_RECYCLED
            origin[i] = -1
        elif origins[node] != FROM_REQUEST:
            source[i] = _SOURCE_DATASTORE
            origin[i] = origins[node]
        else:
            position = positions[node]
            text = len(starts) - 1
            while starts[text] > position:
                text -= 1
            origin[i] = position - starts[text]
            if position < layout[STREAM]:
                source[i] = _SOURCE_PASSAGE
                origin[i] += text << 32
            else:
                source[i] = _SOURCE_PROMPT if position < layout[OUTPUT] else _SOURCE_OUTPUT
        if child[node + 1] >= 0:
            node = child[node + 1]
        else:
            while node >= 0 and sibling[node] < 0:
                node = parents[node]
            if node >= 0:
                node = sibling[node]
    return out_ids, out_parents, out_probs, source, origin
