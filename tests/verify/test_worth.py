"""The engine leaves a drafter alone that costs more time than it saves, ours or another's."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drafters import RightAnswer
from helpers.engines import FREE, FixedCost, Words
from helpers.families import TREE_FAMILIES, VOCABULARY, tiny_model

from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.types import GenerationRequest, StepEvent
from groundspeed.verify.draft_lm import TargetAsDraftLM
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget

PROMPT = tuple(np.random.default_rng(1).integers(3, VOCABULARY, 30).tolist())
QUICK = FixedCost([0, 24], [1e-7, 1e-7])
"""A pass takes less time than any draft."""


@pytest.fixture(scope="module")
def target():
    return TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))


def drafted_in(target, drafter, cost, requests=1):
    """By step of each answer whether it had a draft, and whether all are what plain decoding says."""
    engine = Engine(target, Words(), drafter=drafter, cost=cost)
    plain = engine.generate(GenerationRequest(PROMPT, max_tokens=120, speculate=False))
    found = []
    for _ in range(requests):
        *events, result = engine.stream(GenerationRequest(PROMPT, max_tokens=120))
        assert result.token_ids == plain.token_ids
        found.append([event.drafted > 0 for event in events if isinstance(event, StepEvent)][1:])
    return found


def right(target):
    plain = Engine(target, Words(), cost=FREE).generate(
        GenerationRequest(PROMPT, max_tokens=120, speculate=False)
    )

    class OneRightToken(RightAnswer):
        def propose(self, budget):
            return super().propose(1)

    return lambda: OneRightToken(plain.token_ids)


def test_a_drafter_that_is_always_right_is_switched_off_where_its_time_is_not_worth_it(target):
    (steps,) = drafted_in(target, right(target), QUICK)
    assert not all(steps[:50])
    assert any(steps[20:])


def test_it_stays_where_it_pays(target):
    (steps,) = drafted_in(target, right(target), FREE)
    assert all(steps[:-1])


@pytest.mark.parametrize("kind", ["model", "blend", "both"])
def test_the_rule_holds_for_our_own_drafters(target, kind):
    own = TargetAsDraftLM(target)
    drafter = {
        "model": DraftModel(own, depth=2),
        "blend": BlendDrafter,
        "both": DraftModel(own, depth=2, first=BlendDrafter),
    }[kind]
    (steps,) = drafted_in(target, drafter, QUICK)
    assert not all(steps[:50])


class Watched:
    """A draft model for one request that says behind which texts it was asked, by their length.

    Args:
        target: The model that drafts.
        contrary: Whether it says the least probable tokens in place of the most probable.
    """

    def __init__(self, target, *, contrary=False):
        self._lm = TargetAsDraftLM(target)
        self._contrary = contrary
        self.branches, self.vocab_size = self._lm.branches, self._lm.vocab_size
        self.context_length = self._lm.context_length
        self.asked_at = set()
        self._length = 0

    def open(self, vocab_size, target=None):
        self._text = self._lm.open(vocab_size, target)
        return self

    def read(self, token_ids, tree, held, k):
        self._length += len(token_ids)
        self.asked_at.add(self._length)
        said = self._text.read(token_ids, tree, held, VOCABULARY if self._contrary else k)
        return Outlook(said.token_ids[:, ::-1][:, :k], said.logprobs[:, :k]) if self._contrary else said

    def commit(self, path):
        self._length += len(path)
        self._text.commit(path)

    def close(self):
        self._text.close()


def asked_in(target, lm, cost, first=None):
    """By step of an answer, which must be that of plain decoding, whether the draft model was asked."""
    engine = Engine(target, Words(), drafter=DraftModel(lm, depth=2, first=first), cost=cost)
    plain = engine.generate(GenerationRequest(PROMPT, max_tokens=160, speculate=False))
    *events, result = engine.stream(GenerationRequest(PROMPT, max_tokens=160))
    assert result.token_ids == plain.token_ids
    counts = [len(event.token_ids) for event in events if isinstance(event, StepEvent)]
    return [length in lm.asked_at for length in len(PROMPT) + np.cumsum(counts[:-1])]


def is_off_and_tried_again(asked):
    off = asked.index(False)
    return off < 50 and not any(asked[off : off + 16]) and any(asked[off + 16 :])


def test_a_draft_model_that_is_right_but_slow_is_off_within_fifty_steps_and_tried_again(target):
    assert is_off_and_tried_again(asked_in(target, Watched(target), QUICK))


def test_a_draft_model_that_is_wrong_behind_the_blend_is_off_within_fifty_steps_and_tried_again(target):
    asked = asked_in(target, Watched(target, contrary=True), FREE, first=BlendDrafter)
    assert is_off_and_tried_again(asked)


def test_a_draft_model_that_pays_is_asked_for_every_step(target):
    assert all(asked_in(target, Watched(target), FREE)[:-1])


def test_a_drafter_that_did_not_pay_for_the_last_requests_is_not_asked_at_the_next_ones_start(target):
    answers = drafted_in(target, right(target), QUICK, requests=6)
    assert answers[0][0]
    assert not any(answers[-1][:10])
    assert any(answers[-1][10:30])
