"""Requests side by side: each holds to its own grammar and stop strings."""

from __future__ import annotations

import threading

import pytest
from helpers.engines import FREE
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer

from groundspeed.drafting.none import NoDrafter
from groundspeed.errors import InputError
from groundspeed.types import GenerationRequest, Grammar
from groundspeed.verify.engine import Engine
from groundspeed.verify.grammar import GrammarState
from groundspeed.verify.target import TransformersTarget

TOKENIZER = byte_tokenizer("ab", "bb", "abb", "ba", "aab")
PROMPT = "Say it. "


@pytest.fixture(scope="module", params=["llama", "gemma3", "bloom"])
def target(request):
    config = {**TREE_FAMILIES, "bloom": OTHER_FAMILIES["bloom"][1]}[request.param]()
    config.vocab_size = 300
    config.max_position_embeddings = 1024
    model = tiny_model(config)
    model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    return TransformersTarget(model)


def engine_of(target):
    return Engine(target, TOKENIZER, drafter=NoDrafter, cost=FREE)


def test_requests_in_one_batch_hold_each_to_its_own_grammar_and_stop_strings(target, monkeypatch):
    requests = [
        GenerationRequest(PROMPT, max_tokens=40, grammar=Grammar.json_object()),
        GenerationRequest(PROMPT, max_tokens=40, grammar=Grammar.regex("[ab]{4,}x"), stop=("aba", "bb")),
        GenerationRequest(PROMPT, max_tokens=40, temperature=1.0, seed=1, grammar=Grammar.regex("[ab]+")),
        GenerationRequest(PROMPT, max_tokens=40, temperature=1.0, seed=2, stop=("e", "t", "a")),
        GenerationRequest(PROMPT, max_tokens=40, temperature=1.0, seed=3),
    ]
    alone = [engine_of(target).generate(request) for request in requests]
    queued, sizes, verify = threading.Event(), [], target.verify

    def once_all_are_queued(segments):
        assert queued.wait(60)
        sizes.append(len(segments))
        return verify(segments)

    def all_of_them():
        yield from requests
        queued.set()

    monkeypatch.setattr(target, "verify", once_all_are_queued)
    together = engine_of(target).generate_all(all_of_them())
    assert max(sizes) == (len(requests) if target.capability.supports_tree else 1)
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        assert (one.finish_reason, one.stop) == (other.finish_reason, other.stop)


def test_a_grammar_that_fails_over_a_draft_ends_its_request_only(target, monkeypatch):
    def fails(state, tree, budget):
        raise InputError("too much")

    monkeypatch.setattr(GrammarState, "weave", fails)
    with engine_of(target) as engine:
        held, free = (
            engine.stream(GenerationRequest(PROMPT, max_tokens=20, grammar=grammar))
            for grammar in (Grammar.regex("a{9}"), None)
        )
        with pytest.raises(InputError, match="too much"):
            list(held)
        assert len(list(free)[-1].token_ids) == 20
