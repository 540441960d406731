"""Trees and the formula of attention, for tests of the ways to compute it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st


@st.composite
def parent_lists(draw, most=12):
    size = draw(st.integers(0, most))
    return np.array([draw(st.integers(-1, node - 1)) for node in range(size)], np.int32)


def ancestors(parents, node):
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found[::-1]


def formula(query, keys, values, scaling, softcap, sink):
    """One row of one head."""
    scores = (keys.double() @ query.double()) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if sink is not None:
        scores = torch.cat((scores, sink.double()[None]))
    return scores.softmax(0)[: len(keys)] @ values.double()
