"""What may follow a node of a draft tree, and how probable each token is.

The candidates come from the link chain of the node's state in the suffix automaton: the tokens that followed
the longest context seen before, then those that shorter contexts add (PPM, Cleary & Witten 1984), then the
tokens that resume a copy broken by a changed one, then the request's most frequent tokens (order 0).

Where PPM passes fixed escape probabilities down that chain, a log-linear model weighs all candidates of a
node against each other and against "none of them" (a conditional logit, McFadden 1974):

    P(candidate) = exp(score) / (exp(score of none) + sum of exp(score of candidate))

A score is a sum of weights, one picked per feature by a small bucket. The weights are fitted on recorded
answers (``benchmarks/fit_priors.py``), so the probabilities are calibrated: a budget can be chosen by them.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import math

from groundspeed.jit import kernel
from groundspeed.drafting.suffix import (
    COUNT,
    EDGES,
    FIRST,
    LATEST,
    LENGTH,
    LINK,
    MAX_MATCH,
    NEXT,
    TARGET,
    TOKEN,
    find_edge,
)

__all__ = ["CANDIDATES", "WEIGHTS", "advance", "offer", "score"]

CANDIDATES = 64
"""Most candidates of one node."""
PER_STATE = 24  # of one context; the newest; a frequent token's thousands of followers are not scanned
DEEP = 4  # contexts of this length say enough without order 0
PATIENCE = 6  # tokens off the copy before another place is taken up

# Columns of a node: what the candidates are computed from.
STATE = 0  # state of the node's context in the suffix automaton
MATCH = 1  # tokens of that context that are matched, at most MAX_MATCH
PLACE = 2  # position in the texts that a copy would continue at, -1 for none
ASTRAY = 3  # tokens since the copy was broken, 0 while it lasts
RUN = 4  # tokens copied before it was broken
HEAT = 5  # share of recent output that repeats earlier text, in [0, HOT]
NODE_COLUMNS = 6
HOT = 1000

# Entries of `layout`: where the texts of the request lie in SuffixIndex.tokens.
STREAM = 0  # first token of the prompt; the passages lie before it
OUTPUT = 1  # first generated token
VOCABULARY = 2  # ids at or above are never offered
LAYOUT = 3

# Features of a candidate: offsets into the weights. Buckets: length 12, small length 5, count 7.
_RANK = 0  # length of the context x share of its occurrences x context's rank x how many candidates it adds
_RESUMED = _RANK + 1  # offered by a broken copy only; no context has length 0, so its entries are free
_ORDER_0 = _RANK + 2  # offered by order 0 only: place among the frequent tokens
_SEEN = _RANK + 12 * 7 * 3 * 7  # times seen after the context x length
_RESUMES = _SEEN + 7 * 12  # agrees with the copy: tokens skipped x tokens astray x run, x small length
_NEAR = _RESUMES + (8 + 3 * 5 * 7) * 5  # distance from the copy x small length
_COMMON = _NEAR + 10 * 5  # times seen at all x length
_WHERE = _COMMON + 7 * 12  # first seen in passage, prompt or output x seen in the output x small length
# Features of "none of them".
_LONGEST = _WHERE + 3 * 2 * 5  # length of the longest context x candidates it has x its occurrences
_COPYING = _LONGEST + 12 * 7 * 7  # run x tokens astray
_HEAT = _COPYING + 7 * 7  # heat
_CROWD = _HEAT + 10  # candidates in all
WEIGHTS = _CROWD + 7
"""Number of weights."""
FEATURES = 6  # of a candidate
NONE_FEATURES = 4  # of "none of them"


@kernel
def _length_bucket(length):
    if length <= 4:
        return length
    if length <= 8:
        return 5 if length <= 6 else 6
    if length <= 16:
        return 7 if length <= 12 else 8
    if length <= 24:
        return 9
    return 10 if length <= 40 else 11


@kernel
def _small_length_bucket(length):
    if length <= 2:
        return length
    return 3 if length <= 4 else 4


@kernel
def _count_bucket(count):
    if count <= 2:
        return count
    if count <= 8:
        return 3 if count <= 4 else 4
    return 5 if count <= 16 else 6


@kernel
def _share_bucket(count, total):
    if count == total:
        return 0
    share = count / total
    if share > 0.25:
        return 1 if share > 0.6 else 2 if share > 0.4 else 3
    return 4 if share > 0.12 else 5 if share > 0.05 else 6


@kernel
def _distance_bucket(distance):
    if distance < 0:
        if distance >= -32:
            return 6 if distance >= -8 else 7
        return 8 if distance >= -256 else 9
    if distance <= 4:
        return 0 if distance == 0 else 1
    if distance <= 64:
        return 2 if distance <= 16 else 3
    return 4 if distance <= 256 else 5


@kernel
def offer(tokens, states, edges, table, layout, frequent, node, candidates, features, none_features):
    """Collect the candidates of a node.

    Args:
        tokens: Of the ``SuffixIndex``, as are the next three.
        states: int64 [s, STATE_COLUMNS].
        edges: int64 [e, EDGE_COLUMNS].
        table: int64 [t].
        layout: int64 [LAYOUT].
        frequent: int64 [f], the request's most frequent tokens.
        node: int64 [NODE_COLUMNS].
        candidates: int64 [CANDIDATES, 3], filled with token, state of its node, match of its node.
        features: int32 [CANDIDATES, FEATURES], filled with the weights that make up the score.
        none_features: int32 [NONE_FEATURES], filled likewise.

    Returns:
        Number of candidates.
    """
    n = 0
    rank = 0
    state = node[STATE]
    length = node[MATCH]
    none_features[0] = _LONGEST
    longest = 0
    while state > 0:
        start = n
        total = 0
        edge = states[state, EDGES]
        for _ in range(PER_STATE):
            if edge < 0 or n == CANDIDATES:
                break
            token = edges[edge, TOKEN]
            if token < layout[VOCABULARY] and _index_of(candidates, start, token) < 0:
                target = edges[edge, TARGET]
                candidates[n, 0] = token
                candidates[n, 1] = target
                candidates[n, 2] = length + 1
                total += states[target, COUNT]
                n += 1
            edge = edges[edge, NEXT]
        if n > start:
            bucket = _length_bucket(length)
            added = _count_bucket(n - start)
            if rank == 0:
                longest = length
                none_features[0] += (bucket * 7 + added) * 7 + _count_bucket(total)
            for i in range(start, n):
                count = states[candidates[i, 1], COUNT]
                features[i, 0] = (
                    _RANK + ((bucket * 7 + _share_bucket(count, total)) * 3 + min(rank, 2)) * 7 + added
                )
                features[i, 1] = _SEEN + _count_bucket(count) * 12 + bucket
            rank += 1
        state = states[state, LINK]
        length = states[state, LENGTH]

    place = node[PLACE]
    astray = node[ASTRAY]
    # A copy that lasts goes on with the next token; a broken one resumes at the token that was missed
    # (insertion), past it (substitution), or one later (deletion).
    resumes = 0
    if place >= 0:
        while resumes < (3 if astray > 0 else 1) and tokens[place + resumes] >= 0:
            token = tokens[place + resumes]
            if n < CANDIDATES and token < layout[VOCABULARY] and _index_of(candidates, n, token) < 0:
                state = node[STATE]
                edge = find_edge(edges, table, state, token)
                while edge < 0:
                    state = states[state, LINK]
                    edge = find_edge(edges, table, state, token)
                candidates[n, 0] = token
                candidates[n, 1] = edges[edge, TARGET]
                candidates[n, 2] = min(states[state, LENGTH], node[MATCH]) + 1
                features[n, 0] = _RESUMED
                features[n, 1] = _SEEN
                n += 1
            resumes += 1
    if longest < DEEP:
        for i in range(len(frequent)):
            token = frequent[i]
            if n < CANDIDATES and _index_of(candidates, n, token) < 0:
                candidates[n, 0] = token
                candidates[n, 1] = edges[find_edge(edges, table, 0, token), TARGET]
                candidates[n, 2] = 1
                features[n, 0] = _ORDER_0 + _count_bucket(i)
                features[n, 1] = _SEEN + min(rank, 6) * 12
                n += 1

    run = _count_bucket(node[RUN])
    for i in range(n):
        token = candidates[i, 0]
        length = candidates[i, 2] - 1
        small = _small_length_bucket(length)
        agreement = 0
        for skipped in range(resumes):
            if tokens[place + skipped] == token:
                agreement = 1 + run if astray == 0 else 8 + (skipped * 5 + min(astray, 5) - 1) * 7 + run
                break
        first = states[candidates[i, 1], FIRST]
        features[i, 2] = _RESUMES + agreement * 5 + small
        features[i, 3] = _NEAR + (_distance_bucket(first - place) if place >= 0 else 9) * 5 + small
        count = states[edges[find_edge(edges, table, 0, token), TARGET], COUNT]
        features[i, 4] = _COMMON + _count_bucket(count) * 12 + _length_bucket(length)
        where = 0 if first < layout[STREAM] else 1 if first < layout[OUTPUT] else 2
        repeated = 1 if states[candidates[i, 1], LATEST] >= layout[OUTPUT] else 0
        features[i, 5] = _WHERE + (where * 2 + repeated) * 5 + small
    none_features[1] = _COPYING + run * 7 + (_count_bucket(astray) if place >= 0 else 6)
    none_features[2] = _HEAT + node[HEAT] * 10 // (HOT + 1)
    none_features[3] = _CROWD + _count_bucket(n)
    return n


@kernel
def _index_of(candidates, n, token):
    for i in range(n):
        if candidates[i, 0] == token:
            return i
    return -1


@kernel
def score(weights, features, none_features, n, probs):
    """Fill ``probs`` [n] with the probability of each candidate; what is missing to 1 is "none of them"."""
    total = 0.0
    for k in range(NONE_FEATURES):
        total += weights[none_features[k]]
    total = math.exp(total)
    for i in range(n):
        value = 0.0
        for k in range(FEATURES):
            value += weights[features[i, k]]
        probs[i] = math.exp(value)
        total += probs[i]
    for i in range(n):
        probs[i] /= total


@kernel
def advance(tokens, states, node, token, state, match):
    """Move ``node`` on by a token that leads to ``state`` with ``match`` tokens matched."""
    if match > MAX_MATCH:
        match = MAX_MATCH
        while states[states[state, LINK], LENGTH] >= match:
            state = states[state, LINK]
    node[STATE] = state
    node[MATCH] = match
    place = node[PLACE]
    if place >= 0 and tokens[place] == token:
        node[PLACE] = place + 1
        node[RUN] = node[RUN] + 1 if node[ASTRAY] == 0 else 1
        node[ASTRAY] = 0
    elif place >= 0 and match < 3 and node[ASTRAY] > 0 and tokens[place] >= 0 and tokens[place + 1] == token:
        node[PLACE] = place + 2
        node[RUN] = 1
        node[ASTRAY] = 0
    elif match >= 3 or place < 0 or node[ASTRAY] >= PATIENCE:
        node[PLACE] = states[state, FIRST] + 1
        node[RUN] = match
        node[ASTRAY] = 0
    else:
        node[ASTRAY] += 1
