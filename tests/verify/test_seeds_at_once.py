"""One seed gives one text: with drafts and without, alone and in a batch of eight."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import pytest
from helpers.drafters import ADVERSARIES
from helpers.many import ByPrompt, engine_of, some_prompts, texts_of, watched

from groundspeed.drafting.blend import BlendDrafter
from groundspeed.types import GenerationRequest

SETTINGS = [{"temperature": t, "top_p": p} for t, p in product((0.3, 0.8, 1.2), (0.9, 1.0))]


def in_eights(engine, requests):
    eights = [requests[first : first + 8] for first in range(0, len(requests), 8)]
    return [result for eight in eights for result in engine.generate_all(eight)]


def accepted_of_the_same_texts(target, prompts, settings):
    """Checks all ways to the texts of some prompts; how many drafted tokens were accepted on them."""
    requests = [GenerationRequest(p, max_tokens=7, seed=i, **settings) for i, p in enumerate(prompts)]
    plain = [replace(request, speculate=False) for request in requests]
    with engine_of(target) as engine:
        texts = texts_of(engine.generate(request) for request in plain)
    with engine_of(target) as engine:
        assert texts_of(in_eights(engine, plain)) == texts
    accepted = 0
    kinds = cycle(ADVERSARIES)
    answers = dict(zip(prompts, texts, strict=True))
    for drafter in (BlendDrafter, lambda: ByPrompt(next(kinds), answers)):
        with engine_of(target, drafter) as engine:
            results = in_eights(engine, requests)
        assert texts_of(results) == texts
        accepted += sum(result.stats.accepted for result in results)
    return accepted


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_hundred_seeds_give_two_hundred_texts_however_they_are_made(settings):
    target = watched("llama", num_hidden_layers=2)
    assert accepted_of_the_same_texts(target, some_prompts(200, 16), settings) > 200


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "qwen3", "bloom", "mamba"])
def test_seeds_give_their_texts_on_models_of_other_families(family):
    target = watched(family)
    accepted = [accepted_of_the_same_texts(target, some_prompts(8, 24), settings) for settings in SETTINGS]
    assert min(accepted) > 8 or not target.capability.supports_chain
