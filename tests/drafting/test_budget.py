from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import CostModel, fit_budget


@st.composite
def trees(draw):
    parents: list[int] = []
    probs: list[float] = []
    for node in range(draw(st.integers(0, 12))):
        parents.append(draw(st.integers(-1, node - 1)))
        ceiling = probs[parents[-1]] if parents[-1] >= 0 else 1.0
        probs.append(ceiling * draw(st.floats(0.01, 1.0)))
    n = len(parents)
    return DraftTree(
        np.arange(n, dtype=np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.ones(n, np.uint16),
        np.arange(n, dtype=np.int64),
    )


@given(trees(), st.lists(st.floats(0, 0.5), min_size=12, max_size=12))
def test_no_number_of_nodes_gives_more_expected_tokens_per_time(tree, rises):
    cost = np.concatenate(([1.0], 1.0 + np.cumsum(rises)))
    kept = fit_budget(tree, cost)
    kept.validate(100)
    assert set(kept.token_ids.tolist()) <= set(tree.token_ids.tolist())

    def worth(probs):
        return (1 + float(np.sum(probs, dtype=np.float64))) / cost[len(probs)]

    ranked = np.sort(tree.probs)[::-1]
    best = max(worth(ranked[:n]) for n in range(len(tree) + 1))
    assert np.isclose(worth(kept.probs), best)


def test_nothing_is_drafted_where_a_larger_pass_costs_as_much_as_another_step():
    tree = DraftTree(
        np.array([1, 2], np.int32),
        np.array([-1, 0], np.int32),
        np.array([0.9, 0.8], np.float32),
        np.ones(2, np.uint16),
        np.zeros(2, np.int64),
    )
    assert len(fit_budget(tree, np.array([1.0, 2.0, 3.0]))) == 0
    assert len(fit_budget(tree, np.array([1.0, 1.0, 1.0]))) == 2


def test_measured_costs_are_read_between_the_sizes_and_never_fall():
    cost = CostModel(np.array([0, 4, 8]), np.array([2.0, 1.9, 4.0]))
    assert np.allclose(cost.relative(), [1, 1, 1, 1, 1, 1.2375, 1.475, 1.7375 - 0.025, 2.0], atol=0.03)
    assert (np.diff(cost.relative()) >= 0).all()
    assert cost.max_nodes == 8
