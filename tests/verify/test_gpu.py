"""On a GPU: what the CPU tests hold, over recorded passes, and that nothing waits in between."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from helpers.drafters import RandomTrees, RightAnswerLast
from helpers.engines import FREE, Words
from helpers.families import TREE_FAMILIES, VOCABULARY, tiny_model
from helpers.many import ByPrompt, texts_of

from groundspeed.types import GenerationRequest
from groundspeed.verify.devices import CudaDriver
from groundspeed.verify.engine import Engine
from groundspeed.verify.generation import Generation
from groundspeed.verify.target import TransformersTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NEW = 24
PROMPTS = [tuple(np.random.default_rng(n).integers(3, VOCABULARY, n).tolist()) for n in (1, 5, 70, 150)]
REQUESTS = [GenerationRequest(prompt, max_tokens=NEW) for prompt in PROMPTS]
CACHE = 1 << 24
RECORDED = [family for family in TREE_FAMILIES if family != "gpt_oss"]
"""Whether its experts can be recorded is up to the library."""


def on_gpu(family):
    return tiny_model(TREE_FAMILIES[family]()).to("cuda")


def generated(model):
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt], device="cuda")
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0
        )
        answers.append(tuple(whole[0, len(prompt) :].tolist()))
    return answers


def engine_of(target, adversary, answers):
    known = dict(zip(PROMPTS, answers, strict=True))
    return Engine(target, Words(), drafter=lambda: ByPrompt(adversary, known), cost=FREE, cache_bytes=CACHE)


def looks_at_its_input(module, args, output):
    """A hook that asks the device for a value."""
    float(args[0].sum())


@contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("family", TREE_FAMILIES)
def test_requests_side_by_side_get_what_generate_gives(family):
    model = on_gpu(family)
    target = TransformersTarget(model)
    assert target.capability.decoding == "tree", target.capability.reason
    assert target.paged is not None
    answers = generated(model)
    with Engine(target, Words(), cost=FREE, cache_bytes=CACHE) as engine:
        assert texts_of(engine.generate_all(REQUESTS)) == answers
    for adversary in (RandomTrees, RightAnswerLast):
        with engine_of(target, adversary, answers) as engine:
            results = engine.generate_all(REQUESTS)
            assert texts_of(results) == answers
            assert texts_of([engine.generate(request) for request in REQUESTS]) == answers
    assert sum(result.stats.accepted for result in results) > NEW


@pytest.mark.parametrize("family", RECORDED)
def test_what_was_recorded_is_replayed_and_nothing_waits_between_upload_and_read(family, monkeypatch):
    model = on_gpu(family)
    replayed = []
    capture = CudaDriver.capture

    def counting(self, run):
        replay = capture(self, run)
        return lambda: (replayed.append(1), replay())

    monkeypatch.setattr(CudaDriver, "capture", counting)
    target = TransformersTarget(model)
    answers = generated(model)
    with engine_of(target, RightAnswerLast, answers) as engine:
        engine.generate_all(REQUESTS)  # records
        verify, take = target.verify, Generation.take

        def watched_verify(segments):
            with no_waiting():
                return verify(segments)

        def watched_take(self, *args):
            with no_waiting():
                events = list(take(self, *args))
            yield from events

        monkeypatch.setattr(target, "verify", watched_verify)
        monkeypatch.setattr(Generation, "take", watched_take)
        engine.forget_prefixes()
        recorded, before = len(target.paged.replays), len(replayed)
        assert recorded > 0
        assert texts_of([engine.generate(request) for request in REQUESTS]) == answers
        engine.forget_prefixes()
        assert texts_of([engine.generate(request) for request in REQUESTS]) == answers
        assert len(replayed) > before


def test_a_model_that_cannot_be_recorded_runs_all_the_same(caplog):
    model = on_gpu("llama")
    answers = generated(model)
    asks = model.model.layers[1].register_forward_hook(looks_at_its_input)
    target = TransformersTarget(model)
    with engine_of(target, RandomTrees, answers) as engine:
        assert texts_of(engine.generate_all(REQUESTS)) == answers
    asks.remove()
    assert len(target.paged.replays) == 0
    assert sum("not recorded" in record.message for record in caplog.records) == 1


def test_a_seed_gives_one_text_with_drafts_and_without():
    target = TransformersTarget(on_gpu("llama"))
    with Engine(target, Words(), cost=FREE, cache_bytes=CACHE) as engine:
        drafted, plain = (
            texts_of(
                engine.generate_all(
                    GenerationRequest(
                        prompt, max_tokens=NEW, temperature=0.8, top_p=0.9, seed=7, speculate=speculate
                    )
                    for prompt in PROMPTS
                )
            )
            for speculate in (True, False)
        )
    assert drafted == plain
