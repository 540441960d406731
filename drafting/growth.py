"""The kernels of the blend: committing tokens and growing a tree best-first."""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from groundspeed.jit import kernel
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
    """The ``count`` tokens that occur most often, int64 [at most count], most frequent first."""
    found = np.empty(count, np.int64)
    counts = np.empty(count, np.int64)
    n = 0
    edge = states[0, EDGES]
    while edge >= 0:
        occurrences = states[edges[edge, TARGET], COUNT]
        if edges[edge, TOKEN] < vocab_size and (n < count or occurrences > counts[n - 1]):
            n = min(n + 1, count)
            at = n - 1
            while at > 0 and counts[at - 1] < occurrences:
                found[at] = found[at - 1]
                counts[at] = counts[at - 1]
                at -= 1
            found[at] = edges[edge, TOKEN]
            counts[at] = occurrences
        edge = edges[edge, NEXT]
    return found[:n]


@kernel
def commit(tokens, states, edges, table, registers, node, token_ids):
    """Append committed tokens, int32 [k], and keep ``node``, the root of the next tree, up to date."""
    for committed in token_ids:
        token = np.int64(committed)
        append(tokens, states, edges, table, registers, token)
        state = registers[CONTEXT]
        while state > 0 and states[state, EDGES] < 0:  # the longest context that something has followed
            state = states[state, LINK]
        match = min(states[state, LENGTH], registers[CONTEXT_LENGTH])
        advance(tokens, states, node, token, state, match)
        node[HEAT] += ((HOT if match >= 2 else 0) - node[HEAT]) // _COOLING


@kernel
def grow(tokens, states, edges, table, layout, starts, frequent, root, weights, budget):
    """Grow a tree best-first; returns the arrays of a ``DraftTree``."""
    nodes = np.empty((budget, NODE_COLUMNS), np.int64)
    parents = np.empty(budget, np.int64)
    probs = np.empty(budget, np.float64)
    token_ids = np.empty(budget, np.int64)
    positions = np.empty(budget, np.int64)
    candidates = np.empty((CANDIDATES, 3), np.int64)
    features = np.empty((CANDIDATES, FEATURES), np.int32)
    none_features = np.empty(NONE_FEATURES, np.int32)
    scores = np.empty(CANDIDATES, np.float64)
    # Candidates that were good enough when they were met: token, state, match, parent.
    met = np.empty((budget * CANDIDATES, 4), np.int64)
    meetings = 0
    # The best of them not in the tree yet, most probable last, never more than there is room for.
    waiting = np.empty(budget, np.int64)
    waiting_probs = np.empty(budget, np.float64)
    waits = 0

    n = 0
    mass = 1.0
    node = root
    while n < budget:
        floor = waiting_probs[0] if waits == budget - n else _FLOOR
        if mass * _SURE > floor:
            found = offer(
                tokens, states, edges, table, layout, frequent, node, candidates, features, none_features
            )
            score(weights, features, none_features, found, scores)
            for i in range(found):
                prob = mass * scores[i]
                if prob <= floor:
                    continue
                for k in range(3):
                    met[meetings, k] = candidates[i, k]
                met[meetings, 3] = n - 1
                if waits < budget - n:
                    at = waits
                    waits += 1
                    while at > 0 and waiting_probs[at - 1] >= prob:
                        waiting[at] = waiting[at - 1]
                        waiting_probs[at] = waiting_probs[at - 1]
                        at -= 1
                else:  # the least probable one has to go
                    at = 0
                    while at + 1 < waits and waiting_probs[at + 1] < prob:
                        waiting[at] = waiting[at + 1]
                        waiting_probs[at] = waiting_probs[at + 1]
                        at += 1
                waiting[at] = meetings
                waiting_probs[at] = prob
                meetings += 1
                if waits == budget - n:
                    floor = waiting_probs[0]
        if waits == 0:
            break
        waits -= 1
        mass = waiting_probs[waits]
        best = waiting[waits]
        token = met[best, 0]
        state = met[best, 1]
        parent = met[best, 3]
        token_ids[n] = token
        parents[n] = parent
        probs[n] = mass
        node = nodes[n]
        for k in range(NODE_COLUMNS):
            node[k] = root[k] if parent < 0 else nodes[parent, k]
        place = node[PLACE]
        positions[n] = place if place >= 0 and tokens[place] == token else states[state, FIRST]
        advance(tokens, states, node, token, state, met[best, 2])
        n += 1
    return depth_first(n, token_ids, parents, probs, positions, layout, starts)


@kernel
def depth_first(n, token_ids, parents, probs, positions, layout, starts):
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
