"""Many requests at once: each gets what it would get alone, in turn, and within the memory there is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.drafters import ADVERSARIES, RightAnswer
from helpers.engines import FixedCost, Words
from helpers.many import ByPrompt, engine_of, side_by_side, some_prompts, text_of, texts_of, watched

from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.tree import chain
from groundspeed.errors import GroundspeedError, InputError
from groundspeed.types import GenerationRequest, PrefillEvent, StepEvent
from groundspeed.verify.engine import Engine

SAMPLED = {"temperature": 0.9, "top_p": 0.95}


def eight(**settings):
    """Eight requests of different lengths, every other one sampled."""
    return [
        GenerationRequest(prompt, max_tokens=12 + 3 * i, seed=i, **(SAMPLED if i % 2 else {}), **settings)
        for i, prompt in enumerate(some_prompts(8))
    ]


def plain(requests):
    return [replace(request, speculate=False) for request in requests]


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma2", "gemma3", "mistral", "gpt_oss", "opt", "bloom", "lfm2", "bamba", "mamba", "rwkv"],
)
def test_eight_at_once_say_what_each_says_alone_whatever_is_drafted(family):
    target = watched(family)
    with engine_of(target) as engine:
        alone = [engine.generate(request) for request in plain(eight())]
        target.passes.clear()
        assert texts_of(side_by_side(engine, plain(eight()))) == texts_of(alone)
        assert max(map(len, target.passes)) == (8 if target.capability.supports_tree else 1)
    answers = {
        tuple(request.prompt): result.token_ids for request, result in zip(eight(), alone, strict=True)
    }
    drafters = [BlendDrafter, *(lambda a=adversary: ByPrompt(a, answers) for adversary in ADVERSARIES)]
    accepted = 0
    for drafter in drafters:
        with engine_of(target, drafter) as engine:
            results = side_by_side(engine, eight())
        assert texts_of(results) == texts_of(alone)
        accepted += sum(result.stats.accepted for result in results)
    assert accepted > 0 or not target.capability.supports_chain


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "bamba"])
def test_requests_may_join_and_leave_between_any_passes(family):
    target = watched(family)
    with engine_of(target) as engine:
        alone = texts_of(engine.generate(request) for request in plain(eight()))
    with engine_of(target) as engine:
        streams = []
        later = iter(eight())

        def another_one(segments):
            request = next(later, None)
            if request is not None:
                streams.append(engine.stream(request))

        target.passes.clear()
        target.before = another_one
        first = engine.generate(GenerationRequest((9, 8, 7), max_tokens=40, speculate=False))
        results = [list(stream)[-1] for stream in streams]
        target.before = lambda segments: None
        assert texts_of(results) == alone
        assert engine.generate(GenerationRequest((9, 8, 7), max_tokens=40)).token_ids == first.token_ids
    sizes = [len(segments) for segments in target.passes]
    assert max(sizes) > 2 or not target.capability.supports_tree
    assert sizes[0] == sizes[-1] == 1


def test_a_long_prompt_is_read_in_pieces_beside_answers_that_go_on():
    target = watched("gemma3", max_position_embeddings=2048)
    short = GenerationRequest((5, 6, 7), max_tokens=30, speculate=False)
    long = GenerationRequest(text_of(900), max_tokens=9)
    with engine_of(target) as engine:
        alone = texts_of(map(engine.generate, [short, long]))
    with engine_of(target) as engine:
        target.passes.clear()
        joined = []

        def join(segments):
            if len(target.passes) == 4:
                joined.append(engine.stream(long))

        target.before = join
        assert engine.generate(short).token_ids == alone[0]
        assert list(joined[0])[-1].token_ids == alone[1]
    beside = [segments for segments in target.passes if segments[0] == 1 and len(segments) == 2]
    pieces = [segments[1] for segments in beside if segments[1] > 1]
    assert sum(pieces) == len(long.prompt)
    assert max(pieces) == 128


class Guess:
    """Always guesses one token, and says how sure it is."""

    def __init__(self, prob):
        self._prob = prob

    def begin(self, request):
        pass

    def extend(self, token_ids):
        pass

    def propose(self, budget):
        return chain(np.array([5], np.int32), np.array([self._prob], np.float32))

    def end(self):
        pass


@pytest.mark.parametrize(("prob", "kept"), [(0.4, False), (0.9, True)])
def test_a_prompt_that_is_read_beside_an_answer_makes_no_doubtful_draft_pay(prob, kept):
    # With two texts a pass takes 1.5 us and a node 0.5 us, two thirds of a token. Reading takes longer.
    target = watched("llama", max_position_embeddings=2048)
    cost = FixedCost([0, 24], [1e-6, 13e-6])
    beside = []
    with Engine(target, Words(), drafter=lambda: Guess(prob), cost=cost) as engine:

        def note(segments):
            if len(target.passes) == 3:
                streams.append(engine.stream(GenerationRequest(text_of(900), max_tokens=2)))
            if len(segments) == 2 and len(segments[1].token_ids) > 1:
                beside.append(len(segments[0].tree))

        target.before, streams = note, []
        engine.generate(GenerationRequest((5, 6, 7), max_tokens=30))
        list(streams[0])
    assert len(beside) > 4
    assert any(beside) is kept


def test_several_long_prompts_share_the_room_of_a_pass():
    target = watched("llama", max_position_embeddings=4096)
    requests = [GenerationRequest(text_of(900, seed), max_tokens=4) for seed in range(4)]
    with engine_of(target) as engine:
        alone = texts_of(map(engine.generate, requests))
    with engine_of(target) as engine:
        target.passes.clear()
        assert texts_of(side_by_side(engine, requests)) == alone
    assert all(sum(segments) <= 1024 for segments in target.passes)


def test_requests_begin_in_the_order_they_came():
    target = watched("llama")
    prompts = [text_of(9, seed) for seed in range(6)]
    with engine_of(target, most_active=2) as engine:
        target.passes.clear()
        target.hold()
        order = []
        target.before = lambda segments: order.extend(
            tuple(segment.token_ids) for segment in segments if tuple(segment.token_ids) in prompts
        )
        streams = [engine.stream(GenerationRequest(p, max_tokens=20 - 3 * i)) for i, p in enumerate(prompts)]
        target.release()
        for stream in streams:
            stream.close() if stream is streams[3] else list(stream)
    assert order == prompts
    assert max(map(len, target.passes)) == 2


def bytes_of(cache):
    return sum(buffer.nbytes for buffer in cache._buffers)


def test_requests_wait_until_their_caches_fit_and_none_starves():
    target = watched("llama")
    limit = 1024 * target.bytes_per_token
    short = [GenerationRequest(p, max_tokens=15) for p in some_prompts(9, 20)]
    long = GenerationRequest(text_of(100), max_tokens=100)
    requests = [*short[:4], long, *short[4:], long]
    with engine_of(target) as engine:
        alone = texts_of(map(engine.generate, requests))
    taken, seen = [], []

    def look(segments):
        active = [ticket.generation for ticket in engine.scheduler._active]
        kept = [session.cache for _, session in engine.scheduler.prefixes._kept]
        taken.append(sum(map(bytes_of, [*(one.session.cache for one in active), *kept])))
        seen.extend(one.prompt_ids for one in active if one.prompt_ids not in seen)

    with engine_of(target, cache_bytes=limit) as engine:
        target.before = look
        assert texts_of(side_by_side(engine, requests)) == alone
    assert max(taken) <= limit
    assert seen == [list(request.prompt) for request in requests[:-1]]  # the last is known already


def test_what_will_never_fit_is_refused_at_once_and_the_others_go_on():
    target = watched("llama")
    with engine_of(target, cache_bytes=256 * target.bytes_per_token) as engine:
        stream = engine.stream(GenerationRequest((5, 6), max_tokens=40))
        with pytest.raises(InputError, match=r"hold 256 at most; lower max_tokens"):
            engine.stream(GenerationRequest((5,) * 90, max_tokens=160))
        assert len(list(stream)[-1].token_ids) == 40


def test_an_answer_may_fill_the_context_beside_others():
    target = watched("opt")  # learned positions: there are none beyond the last
    requests = [GenerationRequest(((5, 6, 7) * 90)[: 256 - left], max_tokens=50) for left in (1, 2, 5, 30)]
    with engine_of(target) as engine:
        alone = [engine.generate(request) for request in plain(requests)]
    with engine_of(target) as engine:
        results = side_by_side(engine, requests)
    assert texts_of(results) == texts_of(alone)
    assert {result.finish_reason for result in results} == {"context"}


class Faulty:
    """A logits processor that raises when the answer has some tokens."""

    def __init__(self, at):
        self.left = at

    def __call__(self, input_ids, scores):
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("no more")
        return scores


@pytest.mark.parametrize("family", ["llama", "bloom", "mamba"])
def test_a_logits_processor_that_raises_ends_its_own_request_only(family):
    target = watched(family)
    with engine_of(target) as engine:
        alone = texts_of(engine.generate(request) for request in eight())
    with engine_of(target) as engine:
        target.hold()
        streams = [engine.stream(request) for request in eight()]
        bad = [
            engine.stream(GenerationRequest((7, 7, 7, 7), max_tokens=20, logits_processors=(Faulty(at),)))
            for at in (0, 1, 6)
        ]
        target.release()
        for stream in bad:
            with pytest.raises(ZeroDivisionError):
                list(stream)
        assert [list(stream)[-1].token_ids for stream in streams] == alone


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "lfm2", "mamba", "rwkv"])
def test_a_model_that_fails_over_one_text_ends_that_one_only(family):
    target = watched(family)
    evil = 90
    requests = [
        replace(request, prompt=tuple(3 + t % 80 for t in request.prompt), logit_bias={evil: -math.inf})
        for request in eight()
    ]
    with engine_of(target) as engine:
        alone = texts_of(engine.generate(request) for request in plain(requests))
    answers = {request.prompt: answer for request, answer in zip(requests, alone, strict=True)}
    answers |= {(5, 6, evil): (), (5, 6): ()}

    def fails(module, inputs):
        if (inputs[0] == evil).any():
            raise RuntimeError("an evil token")

    hook = target.model.get_input_embeddings().register_forward_pre_hook(fails)
    with hook, engine_of(target, lambda: ByPrompt(RightAnswer, answers)) as engine:
        target.hold()
        bad = [engine.stream(GenerationRequest((5, 6, evil), max_tokens=20))]
        streams = [engine.stream(request) for request in requests]
        bad.append(engine.stream(GenerationRequest((5, 6), max_tokens=20, logit_bias={evil: 1e9})))
        target.release()
        for stream in bad:
            with pytest.raises(RuntimeError, match="evil"):
                list(stream)
        assert [list(stream)[-1].token_ids for stream in streams] == alone


def test_an_error_that_somebody_keeps_keeps_no_kv_cache():
    target = watched("llama")
    sessions = set()

    def look(segments):
        sessions.update(segment.session for segment in segments)
        if len(segments) > 4 and any(len(segment.token_ids) == 9 for segment in segments):
            raise MemoryError
        if len(segments[0].token_ids) == 9:
            raise ZeroDivisionError

    with engine_of(target) as engine:
        target.before = look
        target.hold()
        streams = [engine.stream(request) for request in eight()]
        bad = engine.stream(GenerationRequest((7,) * 9, max_tokens=5))
        target.release()
        with pytest.raises(ZeroDivisionError):
            list(bad)
        assert all(len(list(stream)[-1].token_ids) > 1 for stream in streams)
    assert len(sessions) == 9
    assert sum(bytes_of(session.cache) for session in sessions) == 0


def test_events_of_each_request_tell_its_own_story():
    target = watched("llama")
    with engine_of(target) as engine:
        target.hold()
        streams = [engine.stream(request) for request in eight()]
        target.release()
        for stream, request in zip(streams, eight(), strict=True):
            events = list(stream)
            steps = [event for event in events if isinstance(event, StepEvent)]
            assert [token for step in steps for token in step.token_ids] == list(events[-1].token_ids)
            assert "".join(step.text for step in steps) == events[-1].text
            reads = [event for event in events if isinstance(event, PrefillEvent)]
            assert reads[-1].done == reads[-1].total == len(request.prompt)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_answers_no_more_says_why():
    target, request = watched("llama"), GenerationRequest(text_of(3), max_tokens=4)

    def fail(error):
        def before(segments):
            raise error

        target.before = before

    with engine_of(target) as engine:
        engine.generate(request)
        assert engine.fault is None
        fail(RuntimeError("the device is lost"))
        for number in range(9):
            assert engine.fault is None, number
            with pytest.raises(RuntimeError, match="lost"):
                engine.generate(request)
        assert engine.fault == "each of the last 9 passes failed"
        target.before = lambda segments: None
        engine.generate(request)
        assert engine.fault is None
        fail(SystemExit())
        with pytest.raises(GroundspeedError, match="has died"):
            engine.generate(request)  # nobody waits for ever
        assert engine.fault == "the thread that drives the model has died"
        with pytest.raises(GroundspeedError, match="has died; make a new engine"):
            engine.generate(request)
    assert engine.fault == "the engine was closed"
