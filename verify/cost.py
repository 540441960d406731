"""Measuring c(n), the cost of a verification pass by the number of its draft nodes."""

from __future__ import annotations

import time

import numpy as np

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import CostModel
from groundspeed.drafting.tree import chain
from groundspeed.verify.base import TargetModel

__all__ = ["measure_cost"]

_NODES = (0, 4, 8, 16, 32, 48)
_CONTEXT = 256
_ROUNDS = 3
_SECONDS = 1.0
"""No further round begins after this long; one is always measured."""


def measure_cost(target: TargetModel) -> CostModel:
    """Time verification passes of several sizes over a made-up context, in turn, best of a few rounds.

    Args:
        target: The model. One that verifies neither trees nor chains, or holds too short a text to time any,
            is never given drafts.
    """
    passes = len(_NODES) * (_ROUNDS + 1)  # each leaves a token behind
    room = target.context_length or _CONTEXT + passes + _NODES[-1]
    sizes = [n for n in _NODES if 1 + passes + n <= room]
    if not sizes or not target.capability.supports_chain:
        return CostModel(np.array([0]), np.array([1.0]))
    context = min(_CONTEXT, room - passes - sizes[-1])
    session = target.open(context + passes + sizes[-1])
    rng = np.random.default_rng(0)
    ids = rng.integers(0, target.vocab_size, context + sizes[-1], dtype=np.int32)
    session.prefill(ids[:context].tolist())
    seconds = np.full(len(sizes), np.inf)
    begun = time.perf_counter()
    for warm in range(_ROUNDS + 1):
        if warm > 1 and time.perf_counter() - begun > _SECONDS:
            break
        for i, n in enumerate(sizes):
            tree = chain(ids[:n]) if n else DraftTree.empty()
            start = time.perf_counter()
            session.verify([int(ids[0])], tree)[:, 0].tolist()
            if warm:
                seconds[i] = min(seconds[i], time.perf_counter() - start)
            session.commit([])
    return CostModel(np.array(sizes, np.int64), seconds)
