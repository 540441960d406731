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

import numpy as np

from groundspeed.drafting.features import (
    BOTH_LONGEST,
    COMMON,
    COPYING,
    COUNTS,
    CROWD,
    DISTANCES,
    FEATURES,
    FORMS,
    HEATED,
    LENGTHS,
    LONGEST,
    NEAR,
    NONE_FEATURES,
    ORDER_0,
    RECYCLED,
    RECYCLED_ONLY,
    RESUMED,
    RESUMES,
    ROW,
    ROW_FOUND,
    SEEN,
    SHARES,
    SMALL_LENGTHS,
    STORED,
    STORED_LONGEST,
    STORED_ONLY,
    STORED_SEEN,
    STORED_TOO,
    WHERE,
    count_bucket,
    distance_bucket,
    length_bucket,
    rank_weight,
    share_bucket,
    small_length_bucket,
)
from groundspeed.drafting.node import (
    ASTRAY,
    FORM_PLACE,
    FORM_RUN,
    HEAT,
    HOT,
    LAST,
    MATCH,
    OTHERS,
    OUTPUT,
    PLACE,
    PREVIOUS,
    RUN,
    SECOND,
    STATE,
    STREAM,
    VOCABULARY,
)
from groundspeed.drafting.recycled import lookup
from groundspeed.drafting.stored import DISTINCT, FOLLOWED, FOLLOWER, LEVEL, MATCHED, ORIGIN, PLACES
from groundspeed.drafting.suffix import (
    COUNT,
    EDGES,
    FIRST,
    LATEST,
    LENGTH,
    LINK,
    NEXT,
    TARGET,
    TOKEN,
    find_edge,
)
from groundspeed.jit import kernel

__all__ = ["CANDIDATES", "CANDIDATE_COLUMNS", "offer", "score"]

OWN = 64  # candidates of one node that the request itself offers, at most
CANDIDATES = OWN + 40
"""Most candidates of one node."""
PER_STATE = 16  # of one context; the newest; a frequent token's thousands of followers are not scanned
DEEP = 4  # contexts of this length say enough without order 0

# Columns of a candidate.
CANDIDATE = 0  # token
CANDIDATE_STATE = 1  # state of its node, -1 where the request's text does not have the token
CANDIDATE_MATCH = 2  # match of its node
CANDIDATE_ORIGIN = 3  # the ORIGIN of a follower where only stored text offers it, or one of these:
FROM_REQUEST = -1
FROM_TARGET = -2  # recycled logits alone
CANDIDATE_COLUMNS = 4


@kernel
def offer(index, request, recycled, node, followers, summary, candidates, features, none_features):
    """Collect the candidates of a node.

    Args:
        index: The arrays of the ``SuffixIndex``.
        request: int64 [LAYOUT] layout, int64 [f] most frequent tokens, int32 [vocab] occurrences of each.
        recycled: Keys and rows of ``RecycledTokens``.
        node: int64 [NODE_COLUMNS].
        followers: int64 [f, FOLLOWER_COLUMNS], what ``stored.ask`` found, as is the ``summary``.
        summary: int64 [LEVELS, 3].
        candidates: int64 [CANDIDATES, CANDIDATE_COLUMNS], filled.
        features: int32 [CANDIDATES, FEATURES], filled with the weights that make up the score.
        none_features: int32 [NONE_FEATURES], filled likewise.

    Returns:
        Number of candidates.
    """
    layout, frequent, counts = request
    n, longest, rank = _offer_contexts(index, layout, node, candidates, features, none_features)
    n, resumes = _offer_copies(index, layout, node, n, candidates, features)
    if longest < DEEP:
        n = _offer_frequent(index, frequent, n, rank, candidates, features)
    own = n
    for i in range(own):
        candidates[i, CANDIDATE_ORIGIN] = FROM_REQUEST
    n = _offer_stored(index, layout, own, longest, followers, summary, candidates, features, none_features)
    n = _offer_recycled(
        index, layout, recycled, node, own, n, longest, summary, candidates, features, none_features
    )  # fmt: skip
    _describe(index, layout, counts, node, n, resumes, candidates, features, none_features)
    return n


@kernel
def _offer_contexts(index, layout, node, candidates, features, none_features):
    """What followed the node's contexts, longest first: how many, the longest context, contexts used."""
    _, states, edges, _ = index
    n = 0
    rank = 0
    state = node[STATE]
    length = node[MATCH]
    none_features[0] = LONGEST
    longest = 0
    while state > 0:
        start = n
        total = 0
        edge = states[state, EDGES]
        for _ in range(PER_STATE):
            if edge < 0 or n == OWN:
                break
            token = edges[edge, TOKEN]
            if token < layout[VOCABULARY] and _index_of(candidates, start, token) < 0:
                target = edges[edge, TARGET]
                candidates[n, CANDIDATE] = token
                candidates[n, CANDIDATE_STATE] = target
                candidates[n, CANDIDATE_MATCH] = length + 1
                total += states[target, COUNT]
                n += 1
            edge = edges[edge, NEXT]
        if n > start:
            bucket = length_bucket(length)
            added = count_bucket(n - start)
            if rank == 0:
                longest = length
                none_features[0] += (bucket * COUNTS + added) * COUNTS + count_bucket(total)
            for i in range(start, n):
                count = states[candidates[i, CANDIDATE_STATE], COUNT]
                features[i, 0] = rank_weight(bucket, share_bucket(count, total), rank, added)
                features[i, 1] = SEEN + count_bucket(count) * LENGTHS + bucket
            rank += 1
        state = states[state, LINK]
        length = states[state, LENGTH]
    return n, longest, rank


@kernel
def _offer_copies(index, layout, node, n, candidates, features):
    """How copies go on: candidates afterwards, and the tokens at the node's place that may be next.

    A copy that lasts goes on with the next token; a broken one resumes at the token that was missed
    (insertion), past it (substitution), or one later (deletion).
    """
    tokens = index[0]
    place = node[PLACE]
    resumes = 0
    if place >= 0:
        while resumes < (3 if node[ASTRAY] > 0 else 1) and tokens[place + resumes] >= 0:
            n = _offer_copy(index, layout, node, n, tokens[place + resumes], candidates, features)
            resumes += 1
    if node[FORM_PLACE] >= 0 and tokens[node[FORM_PLACE]] >= 0:
        n = _offer_copy(index, layout, node, n, tokens[node[FORM_PLACE]], candidates, features)
    return n, resumes


@kernel
def _offer_copy(index, layout, node, n, token, candidates, features):
    _, states, edges, table = index
    if n < OWN and token < layout[VOCABULARY] and _index_of(candidates, n, token) < 0:
        state = node[STATE]
        edge = find_edge(edges, table, state, token)
        while edge < 0:
            state = states[state, LINK]
            edge = find_edge(edges, table, state, token)
        candidates[n, CANDIDATE] = token
        candidates[n, CANDIDATE_STATE] = edges[edge, TARGET]
        candidates[n, CANDIDATE_MATCH] = min(states[state, LENGTH], node[MATCH]) + 1
        features[n, 0] = RESUMED
        features[n, 1] = SEEN
        n += 1
    return n


@kernel
def _offer_frequent(index, frequent, n, rank, candidates, features):
    for i in range(len(frequent)):
        token = frequent[i]
        if n < OWN and _index_of(candidates, n, token) < 0:
            _stand_alone(index, token, n, candidates)
            features[n, 0] = ORDER_0 + count_bucket(i)
            features[n, 1] = SEEN + min(rank, 6) * LENGTHS
            n += 1
    return n


@kernel
def _stand_alone(index, token, i, candidates):
    """Make a token candidate ``i`` whose context does not stand before it in the request's text."""
    _, _, edges, table = index
    edge = find_edge(edges, table, 0, token)
    candidates[i, CANDIDATE] = token
    candidates[i, CANDIDATE_STATE] = edges[edge, TARGET] if edge >= 0 else -1
    candidates[i, CANDIDATE_MATCH] = 1


@kernel
def _offer_stored(index, layout, own, longest, followers, summary, candidates, features, none_features):
    """What stored text offers to the ``own`` candidates there are; their number afterwards."""
    stored_longest = length_bucket(summary[0, MATCHED])
    none_features[4] = (
        STORED_LONGEST
        + (stored_longest * COUNTS + count_bucket(summary[0, DISTINCT])) * COUNTS
        + count_bucket(summary[0, PLACES])
    )
    none_features[5] = BOTH_LONGEST + length_bucket(longest) * LENGTHS + stored_longest
    n = own
    for i in range(own):  # unless it turns out to be stored
        features[i, 6] = STORED + stored_longest
        features[i, 7] = STORED_SEEN
        features[i, 8] = STORED_TOO + small_length_bucket(candidates[i, CANDIDATE_MATCH] - 1) + 1
    for k in range(len(followers)):
        token = followers[k, FOLLOWER]
        i = _index_of(candidates, own, token)
        if i < 0:
            if n == CANDIDATES or token >= layout[VOCABULARY]:
                continue
            i = n
            n += 1
            _stand_alone(index, token, i, candidates)
            candidates[i, CANDIDATE_ORIGIN] = followers[k, ORIGIN]
            features[i, 0] = STORED_ONLY + length_bucket(longest)
            features[i, 1] = SEEN
        level = followers[k, LEVEL]
        bucket = length_bucket(summary[level, MATCHED])
        share = share_bucket(followers[k, FOLLOWED], summary[level, PLACES])
        added = count_bucket(summary[level, DISTINCT])
        small = small_length_bucket(candidates[i, CANDIDATE_MATCH] - 1) + 1 if i < own else 0
        features[i, 6] = STORED + ((bucket * SHARES + share) * 2 + level) * COUNTS + added
        features[i, 7] = STORED_SEEN + count_bucket(followers[k, FOLLOWED]) * LENGTHS + bucket
        features[i, 8] = STORED_TOO + (bucket * SHARES + share) * (SMALL_LENGTHS + 1) + small
    return n


@kernel
def _offer_recycled(
    index, layout, recycled, node, own, n, longest, summary, candidates, features, none_features
):  # fmt: skip
    """What the target showed after the node's last tokens before; number of candidates afterwards."""
    keys, rows = recycled
    slot, order = lookup(keys, node[PREVIOUS], node[LAST])
    none_features[6] = ROW_FOUND + order * SMALL_LENGTHS + small_length_bucket(longest)
    absent = RECYCLED + (max(order - 1, 0) * (ROW + 1) + ROW) * (SMALL_LENGTHS + 1)
    for i in range(n):
        small = small_length_bucket(candidates[i, CANDIDATE_MATCH] - 1) + 1 if i < own else 0
        features[i, 10] = absent + small if order else RECYCLED
    if order == 0:
        return n
    old = n
    for k in range(min(ROW, rows.shape[1])):
        token = np.int64(rows[slot, k])
        if token < 0:
            break
        i = _index_of(candidates, n, token)
        if i >= old:  # a row that another thread is writing may hold a token twice
            continue
        if i < 0:
            if n == CANDIDATES or token >= layout[VOCABULARY]:
                continue
            i = n
            n += 1
            _stand_alone(index, token, i, candidates)
            candidates[i, CANDIDATE_ORIGIN] = FROM_TARGET
            features[i, 0] = RECYCLED_ONLY + length_bucket(longest)
            features[i, 1] = SEEN
            features[i, 6] = STORED + length_bucket(summary[0, MATCHED])
            features[i, 7] = STORED_SEEN
            features[i, 8] = STORED_TOO
        small = small_length_bucket(candidates[i, CANDIDATE_MATCH] - 1) + 1 if i < own else 0
        features[i, 10] = RECYCLED + ((order - 1) * (ROW + 1) + k) * (SMALL_LENGTHS + 1) + small
    return n


@kernel
def _describe(index, layout, counts, node, n, resumes, candidates, features, none_features):
    """The features of all candidates that do not depend on who offers them."""
    tokens, states, _, _ = index
    place = node[PLACE]
    astray = node[ASTRAY]
    run = count_bucket(node[RUN])
    form_token = tokens[node[FORM_PLACE]] if node[FORM_PLACE] >= 0 else -1
    copying = 2 if place < 0 else 0 if astray == 0 else 1
    for i in range(n):
        token = candidates[i, CANDIDATE]
        state = candidates[i, CANDIDATE_STATE]
        length = candidates[i, CANDIDATE_MATCH] - 1
        small = small_length_bucket(length)
        agreement = 0
        for skipped in range(resumes):
            if tokens[place + skipped] == token:
                agreement = 1 + run if astray == 0 else 8 + (skipped * 5 + min(astray, 5) - 1) * COUNTS + run
                break
        features[i, 2] = RESUMES + agreement * SMALL_LENGTHS + small
        distance = DISTANCES - 1
        count = 0
        where = 5
        repeated = 0
        if state >= 0:
            first = states[state, FIRST]
            if place >= 0:
                distance = distance_bucket(first - place)
            count = counts[token]
            if first < layout[STREAM]:
                where = 0 if first < layout[SECOND] else 1 if first < layout[OTHERS] else 2
            else:
                where = 3 if first < layout[OUTPUT] else 4
            repeated = 1 if states[state, LATEST] >= layout[OUTPUT] else 0
        features[i, 3] = NEAR + distance * SMALL_LENGTHS + small
        features[i, 4] = COMMON + count_bucket(count) * LENGTHS + length_bucket(length)
        features[i, 5] = WHERE + (where * 2 + repeated) * SMALL_LENGTHS + small
        agreement = 0 if form_token < 0 else count_bucket(node[FORM_RUN]) if token == form_token else COUNTS
        features[i, 9] = FORMS + (agreement * SMALL_LENGTHS + small) * 3 + copying
    none_features[1] = COPYING + run * COUNTS + (count_bucket(astray) if place >= 0 else 6)
    none_features[2] = HEATED + node[HEAT] * 10 // (HOT + 1)
    none_features[3] = CROWD + count_bucket(n)


@kernel
def _index_of(candidates, n, token):
    for i in range(n):
        if candidates[i, CANDIDATE] == token:
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
