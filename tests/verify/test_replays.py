"""Passes over pages, recorded and replayed by stand-ins for a device, against the engine on the CPU."""

from __future__ import annotations

import gc
import logging
import weakref

import numpy as np
import pytest
import torch
from helpers.drafters import RandomTrees, RightAnswer, RightAnswerLast, tree_of
from helpers.engines import FREE, Words, engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.many import ByPrompt, some_prompts, text_of, texts_of
from helpers.recorder import Counting, NoValues, OnDeviceOnly, Recorder, outside

from groundspeed.types import GenerationRequest
from groundspeed.verify import paged_passes
from groundspeed.verify.base import Segment
from groundspeed.verify.engine import Engine
from groundspeed.verify.paged_attention import PagedAttention
from groundspeed.verify.paged_passes import PagedPasses
from groundspeed.verify.target import TransformersTarget

PROMPTS = some_prompts(5, 150)
REQUESTS = [GenerationRequest(prompt, max_tokens=14) for prompt in PROMPTS]


def engine_of(target, adversary, answers):
    """An engine whose drafts lie around the answers that are known."""
    known = dict(zip(PROMPTS, answers, strict=True))
    return Engine(target, Words(), drafter=lambda: ByPrompt(adversary, known), cost=FREE, cache_bytes=1 << 21)


def recorded(model):
    recorder = Recorder()
    target = TransformersTarget(model, driver=lambda device: recorder)
    assert target.paged is not None
    return target, recorder


def looks_at_its_input(module, args, output):
    """A hook that asks the device for a value."""
    float(args[0].sum())


@pytest.fixture(scope="module")
def model():
    return tiny_model(TREE_FAMILIES["gemma3"]())


@pytest.fixture(scope="module")
def answers(model):
    return texts_of(engine_for(TransformersTarget(model)).generate_all(REQUESTS))


@pytest.fixture(scope="module")
def replayed(model):
    return recorded(model)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt_oss", "opt"])
def test_replayed_passes_give_the_same_tokens_and_read_nothing_but_what_stays(family):
    model = tiny_model(TREE_FAMILIES[family]())
    answers = texts_of(engine_for(TransformersTarget(model)).generate_all(REQUESTS))
    target, recorder = recorded(model)
    for adversary in (RandomTrees, RightAnswerLast):
        with engine_of(target, adversary, answers) as engine:
            results = engine.generate_all(REQUESTS)
        assert texts_of(results) == answers
    assert sum(result.stats.accepted for result in results) > 30
    assert sum(tape.replays for tape in recorder.tapes) > 5
    replays = target.paged.replays
    stays = [*model.parameters(), *model.buffers(), replays._logits]
    stays += (own for own, _ in replays._recorded.values())
    stays += (states for layer in target.layout.kinds for states in target.paged.pool.states(layer))
    live = [replay.__self__ for _, replay in replays._recorded.values()]
    assert all(tape.found for tape in live)
    assert not outside(live, stays)


def test_draws_and_what_was_read_before_are_as_on_the_cpu(model, replayed):
    target, _ = replayed
    shared = text_of(180, 7)
    prompts = [(*shared, 5, 6), (*shared, 7), (*shared[:130], 9)]
    requests = [
        GenerationRequest(prompt, max_tokens=14, temperature=0.9, top_p=0.9, seed=3, speculate=bool(i % 2))
        for i, prompt in enumerate(prompts * 2)
    ]
    plain = engine_for(TransformersTarget(model))
    want = [plain.generate(request).token_ids for request in requests]
    with Engine(target, Words(), cost=FREE, cache_bytes=1 << 21) as engine:
        results = [engine.generate(request) for request in requests]
        assert texts_of(results) == want
        assert texts_of(engine.generate_all(requests)) == want
    assert all(result.stats.cached_tokens >= 130 for result in results[1:])


def test_where_memory_is_short_requests_wait_and_the_pool_stays_where_it_is(model, answers):
    target, _ = recorded(model)
    room = 600 * target.bytes_per_token  # for two of them
    with Engine(target, Words(), cost=FREE, cache_bytes=room) as engine:
        pool = target.paged.pool
        before = pool.moved, pool.pages
        for _ in range(2):
            assert texts_of(engine.generate_all(REQUESTS)) == answers
        assert (pool.moved, pool.pages) == before
        engine.forget_prefixes()
        assert pool.free == pool.pages - 2


def test_a_pass_uploads_once_is_read_once_and_asks_for_nothing_else():
    # On tensors without values, whatever wants one raises: in the pass, the acceptance, or the cache.
    for family in ("llama", "gemma3", "gpt_neox"):
        target = TransformersTarget(tiny_model(TREE_FAMILIES[family]()))
        target.model.to("meta")
        target.device = torch.device("meta")
        for layer, pair in target.layout.kinds.items():
            target.layout.kinds[layer] = tuple(kind._replace(device=target.device) for kind in pair)
        driver = NoValues()
        target.paged = PagedPasses(target, driver)
        verify, passes = target.verify, []

        def watched(segments, verify=verify, passes=passes, driver=driver):
            before = driver.uploads, driver.fetches
            with OnDeviceOnly():
                logits = verify(segments)
            long = sum(len(segment.token_ids) > 64 for segment in segments)
            groups = long + (long < len(segments))
            assert (driver.uploads - before[0], driver.fetches - before[1]) == (groups, 1)
            passes.append(len(segments))
            return logits

        target.verify = watched
        requests = [GenerationRequest(prompt, max_tokens=14) for prompt in some_prompts(3, 150)]
        engine = Engine(
            target, Words(), drafter=lambda: RightAnswerLast([0] * 30), cost=FREE, cache_bytes=1 << 20
        )
        results = engine.generate_all(requests)
        assert all(set(result.token_ids) == {0} for result in results)
        assert all(result.stats.accepted >= 8 for result in results)
        assert len(passes) < 14


def test_shapes_come_from_few_sizes_and_what_does_not_fit_is_computed_as_it_comes(model, monkeypatch):
    target = TransformersTarget(model, driver=lambda device: Counting())
    shapes = []
    init = PagedAttention.__init__

    def noted(self, pool, shape, *rest):
        shapes.append(tuple(shape))
        init(self, pool, shape, *rest)

    monkeypatch.setattr(PagedAttention, "__init__", noted)
    rng = np.random.default_rng(0)
    sessions = [target.open(250) for _ in range(3)]
    for length in range(1, 65):
        tree = tree_of(rng.integers(3, 90, length - 1), range(-1, length - 2))
        target.verify(
            [
                Segment(session, [5], tree if session is sessions[0] else tree_of([], []))
                for session in sessions
            ]
        )
        for session in sessions:
            session.commit([])
    assert set(shapes) == {(4, rows, 4) for rows in (4, 8, 16, 32, 64)}
    shapes.clear()
    target.verify(
        [Segment(session, [5] * count) for session, count in zip(sessions, (65, 2, 100), strict=True)]
    )
    assert list(dict.fromkeys(shapes)) == [(1, 4, 4), (1, 65, 2), (1, 100, 2)]


def test_a_model_that_cannot_be_recorded_runs_all_the_same_and_says_why_once(model, answers, caplog):
    asks = model.model.layers[1].register_forward_hook(looks_at_its_input)
    try:
        with caplog.at_level(logging.WARNING):
            target, recorder = recorded(model)
            with engine_of(target, RandomTrees, answers) as engine:
                assert texts_of(engine.generate_all(REQUESTS)) == answers
    finally:
        asks.remove()
    assert not recorder.tapes
    said = [record.message for record in caplog.records if "not recorded" in record.message]
    assert len(said) == 1
    assert "aten.item" in said[0]


def test_a_model_that_pages_change_keeps_caches_of_its_own(model, answers, caplog, monkeypatch):
    monkeypatch.setattr("groundspeed.verify.target.try_tree", lambda target, opened: "node 2 is off by 0.7")
    with caplog.at_level(logging.WARNING):
        target = TransformersTarget(model, driver=lambda device: Recorder())
    assert "node 2 is off by 0.7" in caplog.text
    assert target.paged is None
    assert texts_of(engine_of(target, RightAnswer, answers).generate_all(REQUESTS)) == answers


def test_only_so_many_shapes_stay_recorded_and_none_when_the_pool_has_moved(model, answers, monkeypatch):
    monkeypatch.setattr(paged_passes, "_MOST_RECORDED", 3)
    target, recorder = recorded(model)
    with engine_of(target, RandomTrees, answers) as engine:
        assert texts_of(engine.generate_all(REQUESTS)) == answers
        assert len(target.paged.replays) == 3
        assert len(recorder.tapes) > 12
        target.reserve(100_000)
        assert texts_of(engine.generate_all(REQUESTS)) == answers


def test_a_pass_that_fails_halfway_is_tried_again_text_by_text(model, answers, monkeypatch, caplog):
    target, _ = recorded(model)
    passes = []
    replays = type(target.paged.replays)
    run = replays.__call__

    def failing(self, shape, inputs):
        passes.append(shape)
        if len(passes) > 12 and shape.texts > 1 and len(passes) % 2:
            raise RuntimeError("out of memory")
        return run(self, shape, inputs)

    monkeypatch.setattr(replays, "__call__", failing)
    with engine_of(target, RightAnswerLast, answers) as engine:
        results = engine.generate_all(REQUESTS)
    assert texts_of(results) == answers
    assert sum(result.stats.accepted for result in results) > 30
    assert "they are tried one by one" in caplog.text


def test_what_a_pass_made_is_freed_when_it_ends(model, monkeypatch):
    patterns = []
    init = PagedAttention.__init__

    def noted(self, *args):
        patterns.append(weakref.ref(self))
        init(self, *args)

    monkeypatch.setattr(PagedAttention, "__init__", noted)
    gc.disable()
    try:
        target, _ = recorded(model)
        target.verify([Segment(target.open(100), [5] * 30)])
        assert len(patterns) > 6
        assert not any(pattern() for pattern in patterns)
    finally:
        gc.enable()
