"""Measuring the cost of a verification pass by the number of its draft nodes, before the first request."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import CostModel
from groundspeed.drafting.tree import chain
from groundspeed.verify.base import Segment, TargetModel

__all__ = ["measure_cost"]

_NODES = (0, 4, 8, 16, 32, 48)
_CONTEXTS = (64, 576)
_ROUNDS = 2
_PASSES = len(_CONTEXTS) * (_ROUNDS * len(_NODES) + 1)  # each leaves a token behind
_SECONDS = 1.5
"""Nothing is begun that would end later, but for one round in the short context."""


def measure_cost(target: TargetModel) -> CostModel:
    """Time verification passes of several sizes behind a short and a longer made-up text.

    A first guess, in bounded time: ``CostModel.observe`` corrects it while answers are made. Where the model
    is slow the longer text is left out, and the context is taken to cost nothing.

    Args:
        target: The model. One that verifies neither trees nor chains, or holds too short a text to time any,
            is never given drafts.
    """
    room = target.context_length or _CONTEXTS[-1] + _PASSES + _NODES[-1]
    sizes = [n for n in _NODES if 1 + _PASSES + n <= room]
    if not sizes or not target.capability.supports_chain:
        return CostModel([0], [1.0])
    begun = time.perf_counter()
    far = min(_CONTEXTS[-1], room - _PASSES - sizes[-1])
    near = min(_CONTEXTS[0], far)
    session = target.open(far + _PASSES + sizes[-1])
    ids = np.random.default_rng(0).integers(0, target.vocab_size, far + sizes[-1], dtype=np.int32)

    def one(nodes: int) -> float:
        start = time.perf_counter()
        tree = chain(ids[:nodes]) if nodes else DraftTree.empty()
        target.verify([Segment(session, [0], tree)])[0].argmax(-1).tolist()
        took = time.perf_counter() - start
        session.commit([])
        return took

    def best(until: float) -> NDArray[np.float64]:
        one(0)  # warms up, as the first round does if there is time for a second
        rounds = [[one(n) for n in sizes]]
        while len(rounds) < _ROUNDS and time.perf_counter() - begun + sum(rounds[-1]) < until:
            rounds.append([one(n) for n in sizes])
        return np.asarray(np.min(rounds, axis=0))

    target.verify([Segment(session, ids[:near].tolist(), rows=0)])
    seconds = best(_SECONDS / 2)
    reading = seconds[-1] * (far - near) / (sizes[-1] + 1)
    if far == near or time.perf_counter() - begun + reading + 1.5 * seconds.sum() > _SECONDS:
        return CostModel(sizes, seconds)
    first = session.length
    target.verify([Segment(session, ids[near:far].tolist(), rows=0)])
    slopes = (best(_SECONDS) - seconds) / (session.length - first)
    # Attention to the context takes so long per token of the pass: a straight line has less noise.
    line = np.polynomial.Polynomial.fit(sizes, slopes, min(1, len(sizes) - 1))
    slopes = np.maximum(line(np.array(sizes)), 0)
    return CostModel(sizes, np.maximum(seconds - slopes * near, seconds / 2), slopes)
