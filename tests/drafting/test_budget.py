from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.budget import BatchCost, CostModel, share_budget


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


@settings(deadline=None)  # the first example compiles
@given(trees(), st.lists(st.floats(0, 0.5), min_size=12, max_size=12))
def test_no_number_of_nodes_gives_more_expected_tokens_per_time(tree, rises):
    cost = np.concatenate(([1.0], 1.0 + np.cumsum(rises)))
    kept = share_budget([tree], cost)[0]
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
    assert len(share_budget([tree], np.array([1.0, 2.0, 3.0]))[0]) == 0
    assert len(share_budget([tree], np.array([1.0, 1.0, 1.0]))[0]) == 2


def test_costs_are_read_between_the_sizes_and_contexts_and_never_fall():
    cost = CostModel([0, 4, 8], [2.0, 1.9, 4.0], [0.001, 0.001, 0.002])
    assert np.allclose(cost.seconds(0), [1.9] * 5 + [2.425, 2.95, 3.475, 4.0])
    assert np.allclose(cost.seconds(700)[[4, 8]], [2.6, 5.4])
    assert np.allclose(cost.relative(700), cost.seconds(700) / 2.6)
    assert cost.relative(10**9)[0] == 1
    assert cost.max_nodes == 8


class Machine:
    """Passes of known cost, disturbed by noise."""

    def __init__(self, noise: float = 0.03) -> None:
        self.rng = np.random.default_rng(0)
        self.noise = noise
        self.slower = 1.0

    def true(self, nodes: ArrayLike, context: int) -> NDArray[np.float64]:
        return (0.027 + 0.0006 * np.maximum(np.asarray(nodes) - 3, 0)) * (1 + context / 4000)

    def step(self, nodes: int, context: int) -> float:
        return float(self.true(nodes, context)) * self.slower * float(np.exp(self.rng.normal(0, self.noise)))

    def drive(self, cost: CostModel, steps: int, context: int = 700, best: float = 0.9) -> float:
        """Draft by ``cost`` for so many steps; the speed reached, relative to knowing the true costs."""
        got = ideal = 0.0
        for _ in range(steps):
            probs = np.sort(self.rng.random(cost.max_nodes) ** 4 * best)[::-1]
            gain = 1 + np.concatenate(([0.0], np.cumsum(probs)))
            true = self.true(np.arange(cost.max_nodes + 1), context)
            nodes = int(np.argmax(gain / cost.relative(context)))
            cost.observe(nodes, context, self.step(nodes, context))
            got += gain[nodes] / true[nodes]
            ideal += (gain / true).max()
        return got / ideal


NODES = (0, 4, 8, 16, 32, 48)
STARTS = {
    "right": lambda machine: CostModel(NODES, machine.true(NODES, 0), machine.true(NODES, 0) / 4000),
    "flat": lambda machine: CostModel(NODES, [0.03] * 6),
    "three times too steep": lambda machine: CostModel(NODES, 0.03 + 0.0018 * np.array(NODES)),
    "a plain step timed twice too slow": lambda machine: CostModel(
        NODES, machine.true(NODES, 700) * [2, 1, 1, 1, 1, 1]
    ),
    "drafts timed twice too slow": lambda machine: CostModel(
        NODES, machine.true(NODES, 700) * [1, 2, 2, 2, 2, 2]
    ),
}


@pytest.mark.parametrize("best", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("start", STARTS)
def test_whatever_was_measured_at_first_the_steps_lead_to_the_best_size(start, best):
    machine = Machine()
    cost = STARTS[start](machine)
    machine.drive(cost, 2500, best=best)
    assert machine.drive(cost, 500, best=best) > 0.98


def test_a_machine_that_becomes_slower_is_followed_and_drafts_go_on_as_before():
    machine = Machine()
    cost = STARTS["right"](machine)
    before = cost.relative(700)
    machine.drive(cost, 300)
    machine.slower = 2.0
    assert machine.drive(cost, 100) > 0.98
    assert np.allclose(cost.seconds(700)[8], 2 * machine.true(8, 700), rtol=0.1)
    assert np.allclose(cost.relative(700), before, rtol=0.25)


def test_one_slow_step_changes_nothing_much():
    machine = Machine()
    cost = STARTS["right"](machine)
    for nodes in NODES * 20:
        cost.observe(nodes, 700, machine.step(nodes, 700))
    before = cost.relative(700)
    cost.observe(8, 700, 100 * machine.step(8, 700))
    assert np.allclose(cost.relative(700), before, rtol=0.03)


def test_a_size_that_looked_too_dear_is_tried_again():
    cost = CostModel([0, 8], [1.0, 1.3])
    assert cost.relative(0)[8] == pytest.approx(1.3)
    for _ in range(600):
        cost.observe(0, 0, 1.0)
    assert cost.relative(0)[8] < 1.05
    cost.observe(8, 0, 1.3)
    assert cost.relative(0)[8] == pytest.approx(1.3, rel=0.02)


def test_long_contexts_are_learned_apart_from_short_ones():
    cost = CostModel([0, 48], [1.0, 2.0])
    for _ in range(300):
        cost.observe(0, 300, 1.0)
        cost.observe(48, 300, 2.0)
        cost.observe(0, 16_384, 3.0)
        cost.observe(48, 16_384, 12.0)
    assert cost.relative(300)[48] == pytest.approx(2, rel=0.15)
    assert cost.relative(16_384)[48] == pytest.approx(4, rel=0.15)


def test_threads_may_share_a_model_of_costs():
    cost = CostModel(NODES, np.linspace(1, 2, 6))

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        curves = []
        for _ in range(200):
            nodes = int(rng.choice(NODES))
            cost.observe(nodes, int(rng.integers(0, 9000)), 1 + nodes / 48)
            curves.append(cost.relative(int(rng.integers(0, 9000))))
        return all((np.diff(curve) >= 0).all() and np.isfinite(curve).all() for curve in curves)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
    assert np.allclose(cost.relative(1024)[list(NODES)], 1 + np.array(NODES) / 48, rtol=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clock_that_fails_teaches_nothing(seconds: float) -> None:
    cost = CostModel([0, 4, 8], [1.0, 1.1, 1.2])
    before = cost.relative(10).copy()
    cost.observe(4, 10, seconds)
    assert np.array_equal(cost.relative(10), before)


def test_a_large_pass_that_was_measured_as_quick_makes_no_time_negative():
    cost = BatchCost(CostModel([0, 4, 48], [2.0, 2.1, 1.0]))
    for texts in (2, 5, 16):
        model = cost.of(texts)
        for nodes in (0, 48, model.max_nodes):
            model.observe(nodes, 300, 1.0)
        assert (model.seconds(0) > 0).all()
