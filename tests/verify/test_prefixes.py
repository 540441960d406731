"""What begins like an earlier text is read once, and says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.many import engine_of, side_by_side, text_of, texts_of, watched

from groundspeed.types import GenerationRequest

PROMPT = text_of(60)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "opt"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}])
def test_a_prompt_that_was_read_before_is_not_read_again_and_says_the_same(family, settings):
    target = watched(family)
    request = GenerationRequest(PROMPT, max_tokens=40, **settings)
    with engine_of(target) as engine:
        first, second = engine.generate(request), engine.generate(request)
        half = replace(request, prompt=(*PROMPT[:37], 5, 6, 7))
        other = engine.generate(half)
    with engine_of(target) as engine:
        assert engine.generate(half).token_ids == other.token_ids
    assert (first.stats.cached_tokens, second.stats.cached_tokens) == (0, len(PROMPT) - 1)
    assert other.stats.cached_tokens == 37
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("family", ["bloom", "lfm2", "mamba", "rwkv"])
def test_a_model_whose_cache_is_not_ours_reads_every_prompt(family):
    with engine_of(watched(family)) as engine:
        first, second = (engine.generate(GenerationRequest(PROMPT, max_tokens=9)) for _ in range(2))
        assert engine.scheduler.prefixes.tokens == 0
    assert second.stats.cached_tokens == 0
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_the_next_turn_of_a_conversation_reads_what_is_new(family):
    target = watched(family, max_position_embeddings=2048)
    text, cached = PROMPT, []
    with engine_of(target) as engine:
        for _ in range(4):
            request = GenerationRequest(text, max_tokens=25)
            result = engine.generate(request)
            cached.append((result.stats.cached_tokens, len(text)))
            with engine_of(target) as fresh:
                assert fresh.generate(request).token_ids == result.token_ids
            text = (*text, *result.token_ids, 9, 8, 7)
    # All but the last token of the answer, which no pass had taken in, and what the user said.
    assert cached == [(0, 60), (84, 88), (112, 116), (140, 144)]


def test_what_is_kept_of_a_text_that_goes_on_from_another_takes_its_place():
    with engine_of(watched("llama")) as engine:
        result = engine.generate(GenerationRequest(PROMPT, max_tokens=5))
        engine.generate(GenerationRequest((*PROMPT, *result.token_ids, 9), max_tokens=5))
        assert [len(ids) for ids, _ in engine.scheduler.prefixes._kept] == [60 + 5 + 1 + 4]


def test_a_text_cut_off_by_a_stop_string_is_kept_as_far_as_it_goes():
    target = watched("llama")
    with engine_of(target) as engine:
        answer = engine.generate(GenerationRequest(PROMPT, max_tokens=30)).token_ids
    for at in (3, 10, 20):
        with engine_of(target) as engine:
            stop = "".join(f"{i} " for i in answer[at : at + 2])
            cut = engine.generate(GenerationRequest(PROMPT, max_tokens=30, stop=(stop,)))
            assert cut.finish_reason == "stop"
            again = engine.generate(GenerationRequest((*PROMPT, *cut.token_ids), max_tokens=9))
        with engine_of(target) as engine:
            fresh = engine.generate(GenerationRequest((*PROMPT, *cut.token_ids), max_tokens=9))
        assert again.token_ids == fresh.token_ids
        assert again.stats.cached_tokens == len(PROMPT) + len(cut.token_ids) - 1


def test_a_few_tokens_in_common_are_not_worth_it():
    with engine_of(watched("llama")) as engine:
        engine.generate(GenerationRequest(PROMPT, max_tokens=5))
        for common, cached in ((15, 0), (16, 16)):
            request = GenerationRequest((*PROMPT[:common], 9, 9, 9, 9), max_tokens=5)
            assert engine.generate(request).stats.cached_tokens == cached


def test_the_text_that_was_not_used_for_longest_goes_first():
    target = watched("llama")
    room = 5 * 128 * target.bytes_per_token  # four texts that are over, and the one that is written
    a, b, c, d, e = (GenerationRequest(text_of(40, seed), max_tokens=20) for seed in range(5))

    def cached(request):
        return engine.generate(request).stats.cached_tokens > 0

    with engine_of(target, cache_bytes=room) as engine:
        assert [cached(request) for request in (a, b, c, d)] == [False] * 4
        assert cached(a)
        assert not cached(e)  # drives out b
        assert [cached(request) for request in (a, c, d, e)] == [True] * 4
        assert not cached(b)
        assert engine.scheduler.prefixes.tokens * target.bytes_per_token <= room


def test_what_is_kept_makes_room_for_a_request_that_needs_it():
    target = watched("llama")
    with engine_of(target, cache_bytes=512 * target.bytes_per_token) as engine:
        for seed in range(3):
            engine.generate(GenerationRequest(text_of(60, seed), max_tokens=20))
        assert engine.scheduler.prefixes.tokens == 3 * 128
        large = engine.generate(GenerationRequest(text_of(60, 2) * 3, max_tokens=76))
        assert large.stats.cached_tokens == 60  # of the last one; the other two had to go
        assert engine.scheduler.prefixes.tokens == 128 + 256


def test_a_request_takes_over_what_another_has_read_that_still_goes_on():
    target = watched("llama")
    first = GenerationRequest(PROMPT, max_tokens=60, speculate=False)
    with engine_of(target) as engine:
        alone = engine.generate(first)
    follows = GenerationRequest((*PROMPT, *alone.token_ids[:5], 9, 9), max_tokens=20)
    with engine_of(target) as engine:
        apart = engine.generate(follows)
    with engine_of(target) as engine:
        joined = []

        def join(segments):
            if not joined and segments[0].session.length > 70:
                joined.append(engine.stream(follows))

        target.before = join
        result = engine.generate(first)
        second = list(joined[0])[-1]
    assert (result.token_ids, second.token_ids) == (alone.token_ids, apart.token_ids)
    assert second.stats.cached_tokens == len(PROMPT) + 5


def test_requests_that_begin_alike_and_come_together_say_what_each_says_alone():
    target = watched("gemma3")
    requests = [
        GenerationRequest((*PROMPT[: 20 + 5 * i], *text_of(9, i)), max_tokens=20, temperature=0.7, seed=i)
        for i in range(8)
    ]
    alone = []
    for request in requests:
        with engine_of(target) as engine:
            alone.append(engine.generate(request))
    with engine_of(target) as engine:
        for _ in range(2):
            results = side_by_side(engine, requests)
            assert texts_of(results) == texts_of(alone)
        assert all(result.stats.cached_tokens >= 20 for result in results)


def test_a_prompt_whose_tokens_are_to_be_scored_is_read_whole():
    with engine_of(watched("llama")) as engine:
        request = GenerationRequest(PROMPT, max_tokens=5, logprobs=2, echo=True)
        first, second = engine.generate(request), engine.generate(request)
    assert second.stats.cached_tokens == 0
    assert second.prompt_logprobs == first.prompt_logprobs
    assert len(second.prompt_logprobs) == len(PROMPT)


def test_nothing_is_kept_of_a_request_that_failed_but_what_is_right():
    target = watched("llama")

    def fails(input_ids, scores):
        if input_ids.shape[1] > len(PROMPT) + 6:
            raise ZeroDivisionError
        return scores

    with engine_of(target) as engine:
        with pytest.raises(ZeroDivisionError):
            engine.generate(GenerationRequest(PROMPT, max_tokens=30, logits_processors=(fails,)))
        result = engine.generate(GenerationRequest(PROMPT, max_tokens=30))
    with engine_of(target) as engine:
        assert engine.generate(GenerationRequest(PROMPT, max_tokens=30)).token_ids == result.token_ids
    assert result.stats.cached_tokens == len(PROMPT) - 1
