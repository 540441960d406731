"""The kernels of the blend that take in committed tokens, and learn from them."""
# mypy: allow-untyped-defs

from __future__ import annotations

import math

import numpy as np

from groundspeed.datastores.search import LONGEST
from groundspeed.drafting.features import FEATURES, NONE_FEATURES
from groundspeed.drafting.forms import follow_form
from groundspeed.drafting.growth import CERTAIN, read_context
from groundspeed.drafting.node import FORM_PLACE, FORM_RUN, HEAT, HOT, MATCH, advance
from groundspeed.drafting.offers import CANDIDATE, CANDIDATE_COLUMNS, CANDIDATES, offer, score
from groundspeed.drafting.stored import FOLLOWER_COLUMNS, FOLLOWERS, LEVELS, ask
from groundspeed.drafting.suffix import (
    CONTEXT,
    CONTEXT_LENGTH,
    COUNT,
    EDGES,
    LENGTH,
    NEXT,
    SIZE,
    TARGET,
    TOKEN,
    append,
    followed,
)
from groundspeed.jit import kernel

__all__ = ["commit", "most_frequent", "offer_root"]

_RATE = 0.06  # of learning
_COOLING = 12  # tokens over which HEAT forgets


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
def offer_root(index, end, request, store, recycled, node, candidates, features, none_features):
    """Collect the candidates of what may follow the committed text; how many there are."""
    context = np.empty(LONGEST, np.int64)
    followers = np.empty((FOLLOWERS, FOLLOWER_COLUMNS), np.int64)
    summary = np.zeros((LEVELS, 3), np.int64)
    followed = 0
    if node[MATCH] < CERTAIN:
        size = read_context(index[0], end, context, context, -1, context)
        followed = ask(store, context, size, followers, summary)
    return offer(
        index, request, recycled, node, followers[:followed], summary,
        candidates, features, none_features,
    )  # fmt: skip


@kernel
def commit(index, registers, form_index, request, store, recycled, node, weights, seen, token_ids):
    """Append committed tokens, int32 [k], and keep ``node``, the root of the next tree, up to date.

    The weights learn from each token before it is appended (``learn``).
    """
    tokens, states, edges, table = index
    counts = request[2]
    candidates = np.empty((CANDIDATES, CANDIDATE_COLUMNS), np.int64)
    features = np.empty((CANDIDATES, FEATURES), np.int32)
    none_features = np.empty(NONE_FEATURES, np.int32)
    probs = np.empty(CANDIDATES, np.float64)
    for committed in token_ids:
        token = np.int64(committed)
        if len(seen):
            offered = offer_root(
                index, registers[SIZE], request, store, recycled, node,
                candidates, features, none_features,
            )  # fmt: skip
            score(weights, features, none_features, offered, probs)
            learn(weights, seen, candidates, features, none_features, offered, probs, token)
        append(tokens, states, edges, table, registers, token)
        if token < len(counts):
            counts[token] += 1
        state = followed(states, registers[CONTEXT])
        match = min(states[state, LENGTH], registers[CONTEXT_LENGTH])
        advance(index, node, token, state, match)
        place, forms = follow_form(form_index, token)
        if forms > match:
            node[FORM_PLACE] = place
            node[FORM_RUN] = forms
        node[HEAT] += ((HOT if match >= 2 else 0) - node[HEAT]) // _COOLING


@kernel
def learn(weights, seen, candidates, features, none_features, n, probs, token):
    """One step of AdaGrad (Duchi et al. 2011) on the log-likelihood of the token that came.

    Args:
        weights: float32 [WEIGHTS], changed in place.
        seen: float32 [WEIGHTS], sums of squared gradients, likewise.
        candidates: int64 [CANDIDATES, CANDIDATE_COLUMNS], of ``offer``, as are the next three.
        features: int32 [CANDIDATES, FEATURES].
        none_features: int32 [NONE_FEATURES].
        n: Number of candidates.
        probs: float64 [CANDIDATES], of ``score``.
        token: What came.
    """
    none = 1.0
    missed = 1.0
    for i in range(n):
        gradient = -probs[i]
        none -= probs[i]
        if candidates[i, CANDIDATE] == token:
            gradient += 1.0
            missed = 0.0
        for k in range(FEATURES):
            _step(weights, seen, features[i, k], gradient)
    for k in range(NONE_FEATURES):
        _step(weights, seen, none_features[k], missed - none)


@kernel
def _step(weights, seen, at, gradient):
    seen[at] += gradient * gradient
    weights[at] += _RATE * gradient / math.sqrt(seen[at])
