"""The tree holds the most probable paths through the heads' guesses, by how often such guesses were right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.medusa import Medusa, MedusaDrafter
from groundspeed.drafting.tree import paths
from groundspeed.errors import DraftError


class FakeHeads:
    """Three heads that each hold four tokens possible."""

    count = 3
    token_ids = np.array([[5, 3, 8, 1], [3, 5, 0, 2], [9, 8, 7, 6]], np.int32)
    probs = np.array([[0.6, 0.2, 0.1, 0.05], [0.5, 0.3, 0.02, 0.004], [0.9, 0.05, 0.04, 0.001]], np.float32)

    def guess(self, target, k):
        return self.token_ids, self.probs


class FakeTarget:
    def watch(self):
        pass


def begun(shared):
    drafter = shared()
    drafter.begin(DraftRequest(np.zeros(1, np.int32), (), 10, target=FakeTarget()))
    return drafter


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 20, 84, 200])
def test_the_tree_holds_the_most_probable_paths(budget):
    shared = Medusa(FakeHeads())
    shared.rates.rates[:] = np.random.default_rng(3).uniform(0.05, 0.95, len(shared.rates.rates))
    tree = begun(shared).propose(budget)
    tree.validate(10)
    edges = np.array([0.01, 0.03, 0.06, 0.12, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95])
    rate = [
        {
            int(token): shared.rates.rates[11 * head + np.searchsorted(edges, prob)]
            for token, prob in zip(FakeHeads.token_ids[head], FakeHeads.probs[head], strict=True)
        }
        for head in range(3)
    ]
    every = {
        text: float(np.prod([rate[head][token] for head, token in enumerate(text)]))
        for length in (1, 2, 3)
        for text in product(*(rate[head] for head in range(length)))
    }
    texts = {
        tuple(tree.token_ids[path[: end + 1]].tolist()): tree.probs[path[end]]
        for path in paths(tree)
        for end in range(len(path))
    }
    assert len(tree) == len(texts) == min(budget, len(every))
    np.testing.assert_allclose(
        sorted(texts.values()), sorted(every.values())[len(every) - len(texts) :], 1e-6
    )
    assert all(texts[text] == pytest.approx(every[text], rel=1e-6) for text in texts)


def test_requests_learn_together_which_heads_are_right():
    shared = Medusa(FakeHeads())
    before = begun(shared).propose(1)
    for _ in range(40):
        drafter = begun(shared)
        drafter.propose(20)
        drafter.extend(np.array([3, 5, 0], np.int32))
    after = begun(shared).propose(1)
    assert before.token_ids.tolist() == [5]
    assert after.token_ids.tolist() == [3]
    assert after.probs[0] > 0.6


def test_a_target_that_is_not_handed_on_is_asked_for():
    shared = Medusa(FakeHeads())
    with pytest.raises(DraftError, match="need the hidden states"):
        shared().begin(DraftRequest(np.zeros(1, np.int32), (), 10))
    assert isinstance(shared(), MedusaDrafter)
