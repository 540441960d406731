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
_CONTEXT = 384
_ROUNDS = 3


def measure_cost(target: TargetModel) -> CostModel:
    """Time verification passes of several sizes over a made-up context, in turn, best of a few rounds.

    Args:
        target: A model that verifies trees or chains; a plain one is never given drafts, so nothing is timed.
    """
    if not target.capability.supports_chain:
        return CostModel(np.array([0]), np.array([1.0]))
    room = target.context_length or _CONTEXT + _NODES[-1] + 1
    sizes = [n for n in _NODES if n + 2 < room]
    context = max(1, min(_CONTEXT, room - sizes[-1] - 1))
    session = target.open(context + sizes[-1] + len(sizes) * (_ROUNDS + 1) + 1)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, target.vocab_size, context + sizes[-1] + 1, dtype=np.int32)
    session.prefill(ids[: context - len(sizes) * _ROUNDS].tolist() or ids[:1].tolist())
    seconds = np.full(len(sizes), np.inf)
    for warm in range(_ROUNDS + 1):
        for i, n in enumerate(sizes):
            tree = chain(ids[:n]) if n else DraftTree.empty()
            start = time.perf_counter()
            session.verify([int(ids[-1])], tree)[:, 0].tolist()
            if warm:
                seconds[i] = min(seconds[i], time.perf_counter() - start)
            session.commit([])
    return CostModel(np.array(sizes, np.int64), seconds)
