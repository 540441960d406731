"""The tree holds the most probable paths through the heads' guesses, by how often such guesses were right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.hit_rates import ABSENT
from groundspeed.drafting.medusa import Medusa, MedusaDrafter
from groundspeed.drafting.tree import paths
from groundspeed.errors import DraftError


class FakeHeads:
    """Three heads that each hold four tokens possible."""

    count = 3
    token_ids = np.array([[5, 3, 8, 1], [3, 5, 0, 2], [9, 8, 7, 6]], np.int32)
    probs = np.array(
        [[0.6, 0.22, 0.11, 0.06], [0.52, 0.3, 0.03, 0.004], [0.91, 0.06, 0.04, 0.001]], np.float32
    )

    def guess(self, target, k):
        return Outlook(self.token_ids, np.log(self.probs))


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
    rng = np.random.default_rng(3)
    for rate, probs in zip(shared.rates, FakeHeads.probs, strict=True):
        cells = rate.cells(probs.astype(float), np.full(4, ABSENT), np.arange(4))
        for cell in cells:
            hits = rng.integers(0, 2, 100).astype(bool)
            rate.learn(np.full(100, cell), hits & (rng.random() > hits.mean() / 2))
    tree = begun(shared).propose(budget)
    tree.validate(10)
    rate = [
        dict(
            zip(
                FakeHeads.token_ids[head].tolist(),
                counted.rates(
                    counted.cells(probs, np.full(4, ABSENT), np.arange(4)), probs, np.full(4, ABSENT)
                ),
                strict=True,
            )
        )
        for head, (counted, probs) in enumerate(zip(shared.rates, FakeHeads.probs.astype(float), strict=True))
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
