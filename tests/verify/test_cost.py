from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.drafters import RightAnswer
from helpers.engines import FixedCost, engine_for
from helpers.families import TREE_FAMILIES, tiny_model

from groundspeed.types import GenerationRequest
from groundspeed.verify.base import Capability
from groundspeed.verify.cost import measure_cost
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget

PROMPT = (5, 6, 7, 8, 5, 6, 7, 8)


@pytest.fixture(scope="module")
def target():
    return TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))


def test_every_step_refines_the_cost_and_the_next_draft_is_cut_by_it(target):
    answer = engine_for(target).generate(GenerationRequest(PROMPT, max_tokens=30, speculate=False)).token_ids

    class Told(FixedCost):
        steps: list[tuple[int, int]] = []  # noqa: RUF012

        def observe(self, nodes, context, seconds):
            super().observe(nodes, context, seconds)
            self.steps.append((nodes, context))

        def relative(self, context):
            assert context == len(PROMPT) + sum(1 + nodes for nodes, _ in self.steps)
            return super().relative(context)

    cost = Told([0, 24], [1.0, 1.0])
    engine = Engine(target, engine_for(target).tokenizer, drafter=lambda: RightAnswer(answer), cost=cost)
    result = engine.generate(GenerationRequest(PROMPT, max_tokens=30))
    assert result.token_ids == answer
    assert len(cost.steps) == result.stats.steps
    assert sum(nodes for nodes, _ in cost.steps) == result.stats.drafted > 20


def test_the_cost_of_a_pass_is_measured_from_a_plain_step_up(target):
    cost = measure_cost(target)
    assert cost.nodes[0] == 0
    for context in (0, 100, 100_000):
        assert (cost.seconds(context) > 0).all()
        assert np.isfinite(cost.seconds(context)).all()


@pytest.mark.parametrize("length", [8, 24, 25, 30, 60, 73])
def test_a_short_context_is_never_overrun_while_measuring(length):
    config = TREE_FAMILIES["opt"]()
    config.max_position_embeddings = length
    cost = measure_cost(TransformersTarget(tiny_model(config)) if length > 30 else Short(length))
    assert cost.max_nodes <= max(0, length - 25)


class Short:
    """A model of a short context that counts what it is given."""

    capability = Capability("tree")
    vocab_size = 9

    def __init__(self, length):
        self.context_length = length
        self.length = 0

    def open(self, capacity):
        assert capacity <= self.context_length
        return self

    def verify(self, segments):
        [segment] = segments
        self.length += len(segment.token_ids)
        assert self.length + len(segment.tree) <= self.context_length
        return [torch.zeros(segment.rows + len(segment.tree), self.vocab_size)]

    def commit(self, path):
        assert not path


class Slow(Short):
    """Its clock runs with what it is given: a tenth of a second a token."""

    def __init__(self, clock):
        super().__init__(100_000)
        self.clock = clock
        self.passes = 0

    def verify(self, segments):
        [segment] = segments
        self.passes += segment.rows
        self.clock[0] += 0.1 * (len(segment.token_ids) + len(segment.tree))
        return super().verify(segments)


def test_a_slow_model_is_measured_in_one_round_of_a_short_context(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("groundspeed.verify.cost.time.perf_counter", lambda: clock[0])
    slow = Slow(clock)
    cost = measure_cost(slow)
    assert slow.passes == 7  # one to warm up, one of each size
    assert np.allclose(cost.relative(0)[cost.nodes], 1 + cost.nodes)
    assert np.allclose(cost.relative(10_000)[cost.nodes], 1 + cost.nodes)
