"""The kernels of the blend: committing tokens and growing a tree best-first."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.drafting.jit import kernel
from groundspeed.drafting.offers import (
    CANDIDATES,
    FEATURES,
    HEAT,
    HOT,
    NODE_COLUMNS,
    NONE_FEATURES,
    OUTPUT,
    PLACE,
    STREAM,
    advance,
    offer,
    score,
)
from groundspeed.drafting.suffix import (
    CONTEXT,
    CONTEXT_LENGTH,
    COUNT,
    EDGES,
    FIRST,
    LENGTH,
    LINK,
    NEXT,
    TARGET,
    TOKEN,
    append,
)
from groundspeed.types import Source

__all__ = ["commit", "grow", "most_frequent"]

_FLOOR = 0.002  # paths less probable than this are not worth a node at any budget
_SURE = 0.97  # no candidate is believed to be more probable than this
_COOLING = 12  # tokens over which HEAT forgets

_SOURCE_PASSAGE, _SOURCE_PROMPT, _SOURCE_OUTPUT = int(Source.PASSAGE), int(Source.PROMPT), int(Source.OUTPUT)


@kernel
def most_frequent(states, edges, vocab_size, count):
    """The ``count`` tokens that occur most often, int32 [at most count], most frequent first."""
    found = np.empty(count, np.int32)
    counts = np.zeros(count, np.int64)
    n = 0
    edge = states[0, EDGES]
    while edge >= 0:
        occurrences = states[edges[edge, TARGET], COUNT]
        if edges[edge, TOKEN] < vocab_size and (n < count or occurrences > counts[n - 1]):
            n = min(n + 1, count)
            at = n - 1
            while at > 0 and counts[at - 1] < occurrences:
                found[at], counts[at] = found[at - 1], counts[at - 1]
                at -= 1
            found[at], counts[at] = edges[edge, TOKEN], occurrences
        edge = edges[edge, NEXT]
    return found[:n].copy()


@kernel
def commit(tokens, states, edges, table, registers, node, token_ids):
    """Append committed tokens one by one and keep ``node``, the root of the next tree, up to date."""
    for i in range(len(token_ids)):
        append(tokens, states, edges, table, registers, token_ids[i : i + 1])
        state = registers[CONTEXT]
        while state > 0 and states[state, EDGES] < 0:  # the longest context that something has followed
            state = states[state, LINK]
        match = min(states[state, LENGTH], registers[CONTEXT_LENGTH])
        advance(tokens, states, node, token_ids[i], state, match)
        node[HEAT] += ((HOT if match >= 2 else 0) - node[HEAT]) // _COOLING


@kernel
def grow(tokens, states, edges, table, size, layout, starts, frequent, root, weights, budget):
    """Grow a tree best-first; returns the arrays of a ``DraftTree``."""
    nodes = np.empty((budget, NODE_COLUMNS), np.int64)
    parents = np.empty(budget, np.int32)
    token_ids = np.empty(budget, np.int32)
    probs = np.empty(budget, np.float32)
    positions = np.empty(budget, np.int64)
    candidates = np.empty((CANDIDATES, 3), np.int64)
    features = np.empty((CANDIDATES, FEATURES), np.int32)
    none_features = np.empty(NONE_FEATURES, np.int32)
    scores = np.empty(CANDIDATES, np.float64)
    # The best candidates not yet in the tree, most probable last, never more than can still get in.
    waiting_prob = np.empty(budget, np.float64)
    waiting = np.empty((budget, 4), np.int64)
    waits = 0

    n = 0
    mass = 1.0
    parent = -1
    node = root
    while n < budget:
        room = budget - n
        floor = waiting_prob[0] if waits == room else _FLOOR
        if mass * _SURE > floor:
            found = offer(
                tokens,
                states,
                edges,
                table,
                size,
                layout,
                frequent,
                node,
                candidates,
                features,
                none_features,
            )
            score(weights, features, none_features, found, scores)
            for i in range(found):
                prob = mass * scores[i]
                if prob <= floor:
                    continue
                if waits == room:  # drop the least probable one
                    at = 0
                    while at + 1 < waits and waiting_prob[at + 1] < prob:
                        waiting_prob[at] = waiting_prob[at + 1]
                        waiting[at] = waiting[at + 1]
                        at += 1
                else:
                    at = waits
                    waits += 1
                    while at > 0 and waiting_prob[at - 1] >= prob:
                        waiting_prob[at] = waiting_prob[at - 1]
                        waiting[at] = waiting[at - 1]
                        at -= 1
                waiting_prob[at] = prob
                waiting[at, 0] = candidates[i, 0]
                waiting[at, 1] = candidates[i, 1]
                waiting[at, 2] = candidates[i, 2]
                waiting[at, 3] = parent
                if waits == room:
                    floor = waiting_prob[0]
        if waits == 0:
            break
        waits -= 1
        mass = waiting_prob[waits]
        token = waiting[waits, 0]
        state = waiting[waits, 1]
        parents[n] = waiting[waits, 3]
        token_ids[n] = token
        probs[n] = mass
        node = nodes[n]
        node[:] = root if parents[n] < 0 else nodes[parents[n]]
        place = node[PLACE]
        positions[n] = place if place >= 0 and tokens[place] == token else states[state, FIRST]
        advance(tokens, states, node, token, state, waiting[waits, 2])
        parent = n
        n += 1
    return depth_first(token_ids[:n], parents[:n], probs[:n], positions[:n], layout, starts)


@kernel
def depth_first(token_ids, parents, probs, positions, layout, starts):
    """Bring nodes from best-first into depth-first order and say where each comes from."""
    n = len(token_ids)
    child = np.full(n + 1, -1, np.int32)  # of node - 1, so that entry 0 is the root
    sibling = np.empty(n, np.int32)
    for node in range(n - 1, -1, -1):  # the most probable child, entered last, ends up first
        sibling[node] = child[parents[node] + 1]
        child[parents[node] + 1] = node

    out_ids = np.empty(n, np.int32)
    out_parents = np.empty(n, np.int32)
    out_probs = np.empty(n, np.float32)
    source = np.empty(n, np.uint16)
    origin = np.empty(n, np.int64)
    renamed = np.empty(n, np.int32)
    node = child[0]
    for i in range(n):
        renamed[node] = i
        out_ids[i] = token_ids[node]
        out_parents[i] = renamed[parents[node]] if parents[node] >= 0 else -1
        out_probs[i] = probs[node]
        position = positions[node]
        if position >= layout[STREAM]:
            source[i] = _SOURCE_PROMPT if position < layout[OUTPUT] else _SOURCE_OUTPUT
            origin[i] = position - layout[STREAM]
        else:
            passage = np.searchsorted(starts, position, side="right") - 1
            source[i] = _SOURCE_PASSAGE
            origin[i] = passage << 32 | position - starts[passage]
        if child[node + 1] >= 0:
            node = child[node + 1]
        else:
            while node >= 0 and sibling[node] < 0:
                node = parents[node]
            if node >= 0:
                node = sibling[node]
    return out_ids, out_parents, out_probs, source, origin
