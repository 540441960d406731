from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.drafters import Adversary, RightAnswer, tree_of
from helpers.engines import FixedCost, Words, engine_for
from helpers.families import TREE_FAMILIES, tiny_model

from groundspeed.drafting.base import DraftTree
from groundspeed.errors import ContextLengthError, InputError
from groundspeed.types import GenerationRequest, GenerationResult, Passage, PrefillEvent, Source, StepEvent
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget, warn_of_processors

PROMPT = (5, 6, 7, 8, 5, 6, 7, 8)


@pytest.fixture(scope="module")
def target():
    return TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))


@pytest.fixture(scope="module")
def answer(target):
    request = GenerationRequest(PROMPT, max_tokens=30, speculate=False)
    return list(engine_for(target).generate(request).token_ids)


def test_the_events_tell_the_whole_story(target, answer):
    events = list(
        engine_for(target, lambda: RightAnswer(answer)).stream(GenerationRequest(PROMPT, max_tokens=30))
    )
    prefill = [event for event in events if isinstance(event, PrefillEvent)]
    steps = [event for event in events if isinstance(event, StepEvent)]
    result = events[-1]
    assert isinstance(result, GenerationResult)
    assert [event.done for event in prefill] == [0, len(PROMPT)]
    assert [token for step in steps for token in step.token_ids] == list(result.token_ids) == answer
    assert "".join(step.text for step in steps) == result.text == "".join(f"{i} " for i in answer)
    assert tuple(source for step in steps for source in step.sources) == result.sources
    assert sum(step.accepted for step in steps) == result.stats.accepted > 0
    assert sum(step.drafted for step in steps) == result.stats.drafted
    assert len(steps) - 1 == result.stats.steps
    assert all(len(step.origins) == len(step.token_ids) for step in steps)
    assert all(min(step.draft_s, step.forward_s, step.accept_s, step.commit_s) >= 0 for step in steps)


def test_without_speculation_every_step_is_one_token_of_the_target(target, answer):
    result = engine_for(target).generate(GenerationRequest(PROMPT, max_tokens=30, speculate=False))
    assert list(result.token_ids) == answer
    assert result.stats.steps == 29
    assert result.stats.drafted == 0
    assert result.stats.decoding == "plain"
    assert set(result.sources) == {Source.TARGET}


@pytest.mark.parametrize("speculate", [True, False])
def test_the_text_ends_before_the_end_of_sequence_token_wherever_it_is_accepted(target, answer, speculate):
    end = answer[11]
    expected = answer[: answer.index(end)]
    target.model.generation_config.eos_token_id = [end, 96]
    try:
        engine = engine_for(target, lambda: RightAnswer(answer))
        result = engine.generate(GenerationRequest(PROMPT, max_tokens=30, speculate=speculate))
        assert list(result.token_ids) == expected
        assert result.finish_reason == "stop"
        assert len(result.sources) == len(expected)
        onwards = engine.generate(
            GenerationRequest(PROMPT, max_tokens=30, speculate=speculate, ignore_eos=True)
        )
        assert list(onwards.token_ids) == answer
        assert onwards.finish_reason == "length"
    finally:
        target.model.generation_config.eos_token_id = None


@pytest.mark.parametrize(
    "family", ["llama", "opt", "gemma3"]
)  # opt has learned positions: none beyond the last
@pytest.mark.parametrize("left", [1, 2, 3, 4, 9])
def test_an_answer_may_fill_the_context_to_its_last_token(family, left):
    target = TransformersTarget(tiny_model(TREE_FAMILIES[family]()))
    prompt = tuple([5, 6, 7] * 100)[: target.context_length - left]
    plain = engine_for(target).generate(GenerationRequest(prompt, max_tokens=50, speculate=False))
    result = engine_for(target, lambda: RightAnswer(plain.token_ids + (5,) * 50)).generate(
        GenerationRequest(prompt, max_tokens=50)
    )
    assert len(result.token_ids) == left
    assert result.token_ids == plain.token_ids
    assert result.finish_reason == plain.finish_reason == "context"


def test_a_long_prompt_is_prefilled_in_pieces_and_reported():
    config = TREE_FAMILIES["gemma3"]()
    config.max_position_embeddings = 4096
    model = tiny_model(config)
    prompt = tuple((np.arange(2500) * 7 % 90 + 3).tolist())
    ids = torch.tensor([prompt])
    want = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    events = list(engine_for(TransformersTarget(model)).stream(GenerationRequest(prompt, max_tokens=12)))
    assert [e.done for e in events if isinstance(e, PrefillEvent)] == [0, 1024, 2048, 2500]
    assert list(events[-1].token_ids) == want[0, 2500:].tolist()


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (GenerationRequest(()), InputError, "no tokens"),
        (GenerationRequest(""), InputError, "no tokens"),
        (GenerationRequest((1, 97)), InputError, "token id 97"),
        (GenerationRequest((1, -1)), InputError, "token id -1"),
        (GenerationRequest("1 97"), InputError, "token id 97"),
        (GenerationRequest((1,), max_tokens=0), InputError, "max_tokens is 0"),
        (GenerationRequest((1,), min_span=0), InputError, "min_span is 0"),
        (GenerationRequest((1,), temperature=-1.0), InputError, "temperature is -1.0"),
        (GenerationRequest((1,) * 256), ContextLengthError, "256 tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(target, request_, error, says):
    with pytest.raises(error, match=says):
        engine_for(target).stream(request_)


class Raises(Adversary):
    def draft(self, budget):
        raise RuntimeError("no idea")


class OutsideVocabulary(Adversary):
    def draft(self, budget):
        return tree_of([self.vocab_size], [-1])


class Cyclic(Adversary):
    def draft(self, budget):
        return tree_of([1, 2], [1, 0])


class TooMany(Adversary):
    def draft(self, budget):
        return tree_of(list(range(budget + 1)), range(-1, budget))


class FromNowhere(Adversary):
    def draft(self, budget):
        return replace(tree_of([1], [-1]), source=np.array([99], np.uint16))


class ClaimsTheTarget(Adversary):
    def draft(self, budget):
        return replace(tree_of([1], [-1]), source=np.array([0], np.uint16))


class RaisesInExtend(RightAnswer):
    def extend(self, token_ids):
        raise RuntimeError("full")


class RaisesInBegin(RightAnswer):
    def begin(self, request):
        raise RuntimeError("not today")


class RaisesInEnd(RightAnswer):
    def end(self):
        raise RuntimeError("still busy")


@pytest.mark.parametrize(
    "faulty",
    [
        Raises,
        OutsideVocabulary,
        Cyclic,
        TooMany,
        FromNowhere,
        ClaimsTheTarget,
        RaisesInExtend,
        RaisesInBegin,
        RaisesInEnd,
    ],
)
def test_a_faulty_drafter_costs_the_speed_up_and_nothing_else(target, answer, faulty, caplog):
    with caplog.at_level(logging.WARNING):
        engine = engine_for(target, lambda: faulty(answer))
        result = engine.generate(GenerationRequest(PROMPT, max_tokens=30))
    assert list(result.token_ids) == answer
    assert "the drafter failed" in caplog.text


class Counted(RightAnswer):
    ended = 0

    def end(self):
        Counted.ended += 1


def test_closing_a_stream_in_the_middle_ends_its_drafter(target, answer):
    engine = engine_for(target, lambda: Counted(answer))
    Counted.ended = 0
    stream = engine.stream(GenerationRequest(PROMPT, max_tokens=30))
    while not isinstance(next(stream), StepEvent):
        pass
    assert Counted.ended == 0
    stream.close()
    assert Counted.ended == 1


def test_passages_are_drafted_from_and_ground_the_answer(target, answer):
    text = "".join(f"{i} " for i in answer[3:20])
    passage = Passage("doc", text, start=100)
    result = engine_for(target).generate(GenerationRequest(PROMPT, (passage,), max_tokens=30))
    plain = engine_for(target).generate(GenerationRequest(PROMPT, (passage,), max_tokens=30, speculate=False))
    assert result.token_ids == plain.token_ids
    assert result.stats.accepted_by_source["passage"] >= 10
    assert result.grounding == plain.grounding
    [span] = result.grounding
    assert (
        result.text[span.start : span.end]
        == span.text
        == text[span.document_start - 100 : span.document_end - 100]
    )
    assert len(span.text) >= len(text)


class Watches(RightAnswer):
    """Notes what it is told."""

    runners_up = 3

    def begin(self, request):
        super().begin(request)
        self.request = request
        self.shown = []

    def recycle(self, shown):
        assert len(shown.token_ids) == len(shown.parents) == len(shown.top_ids)
        self.shown.append((self.done, shown))


def test_a_passage_found_twice_counts_once_and_runs_on_into_its_document(target, answer):
    words = [f"{i} " for i in range(10, 60)]
    document = "".join(words)

    def piece(first, last, following=0):
        start = len("".join(words[:first]))
        after = "".join(words[last : last + following])
        return Passage("d", "".join(words[first:last]), start, following=after)

    passages = (
        piece(30, 40),
        piece(5, 15, following=10),
        piece(20, 28),  # continues what follows the one before
        piece(30, 40),  # the first again
        Passage("copy of d", document[len("".join(words[:6])) : len("".join(words[:9]))]),
        Passage("other", "90 91 "),
    )
    drafter = Watches(answer)
    request = GenerationRequest(PROMPT, passages, max_tokens=5)
    result = engine_for(target, lambda: drafter).generate(request)
    assert list(result.token_ids) == answer[:5]
    assert [ids.tolist() for ids in drafter.request.passages] == [
        *([*range(40, 50)], [*range(15, 38)], [], [], [], [90, 91])
    ]


def test_a_drafter_that_asks_is_shown_the_runners_up_of_every_row(target, answer):
    drafter = Watches(answer)
    result = engine_for(target, lambda: drafter).generate(GenerationRequest(PROMPT, max_tokens=30))
    assert list(result.token_ids) == answer
    text = [*PROMPT, *answer]
    for done, shown in drafter.shown:
        last = len(PROMPT) + done  # tokens before the drafts of this pass
        assert shown.parents.tolist() == list(range(-1, len(shown.token_ids) - 1))
        assert shown.token_ids.tolist() == text[last - 1 : last - 1 + len(shown.token_ids)]
        for row, top in enumerate(shown.top_ids):
            logits = target.forward(text[: last + row], 1)[0]
            assert top.tolist() == logits.topk(3).indices.tolist()
    assert sum(len(shown.token_ids) for _, shown in drafter.shown) >= 30


def test_a_drafter_that_fails_to_take_runners_up_is_dropped(target, answer, caplog):
    class Refuses(Watches):
        def recycle(self, shown):
            raise RuntimeError("no room")

    result = engine_for(target, lambda: Refuses(answer)).generate(GenerationRequest(PROMPT, max_tokens=30))
    assert list(result.token_ids) == answer
    assert result.stats.drafted == 0
    assert "failed in recycle" in caplog.text


@pytest.mark.parametrize(("node", "least"), [(0.01, 0.005), (0.1, 0.05), (0.5, 0.1)])
def test_a_drafter_that_saves_time_is_told_what_a_node_must_bring(target, answer, node, least):
    class Saves(RightAnswer):
        least = 0.0

        def propose(self, budget):
            told.append(self.least)
            return super().propose(budget)

    told: list[float] = []
    cost = FixedCost([0, 4], [1.0, 1.0 + 4 * node])
    engine = Engine(target, Words(), drafter=lambda: Saves(answer), cost=cost)
    engine.generate(GenerationRequest(PROMPT, max_tokens=30))
    assert told[0] == 0.0
    assert told[1:] == pytest.approx([least] * (len(told) - 1))
    assert len(told) > 1


def test_without_a_given_cost_the_engine_measures_it(target, answer):
    engine = Engine(target, engine_for(target).tokenizer)
    assert engine.cost.max_nodes > 0
    assert list(engine.generate(GenerationRequest(PROMPT, max_tokens=30)).token_ids) == answer


def test_where_drafts_do_not_pay_none_are_verified(target, answer):
    dear = FixedCost([0, 24], [1.0, 100.0])
    engine = Engine(target, engine_for(target).tokenizer, drafter=lambda: RightAnswer(answer), cost=dear)
    result = engine.generate(GenerationRequest(PROMPT, max_tokens=30))
    assert list(result.token_ids) == answer
    assert result.stats.drafted == 0


def test_a_tree_may_be_empty_for_a_whole_request(target, answer):
    class Nothing(Adversary):
        def draft(self, budget):
            return DraftTree.empty()

    result = engine_for(target, lambda: Nothing(answer)).generate(GenerationRequest(PROMPT, max_tokens=30))
    assert list(result.token_ids) == answer
    assert result.stats.tokens_per_step == 1.0


def test_settings_of_the_generation_config_that_are_not_applied_are_named(caplog):
    model = tiny_model(TREE_FAMILIES["llama"]())
    model.generation_config.repetition_penalty = 1.3
    with caplog.at_level(logging.WARNING):
        warn_of_processors(model)
    assert "repetition_penalty=1.3" in caplog.text


def test_a_model_whose_positions_turn_otherwise_in_long_texts_is_held_to_short_ones():
    config = TREE_FAMILIES["phi3"]()
    factors = [1.0 + i for i in range(4)]
    config.original_max_position_embeddings = 64
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": factors,
        "long_factor": [4.0 * f for f in factors],
        "original_max_position_embeddings": 64,
    }
    target = TransformersTarget(tiny_model(config))
    assert target.context_length == 64
    ids = tuple((np.arange(50) * 7 % 90 + 3).tolist())
    plain = engine_for(target).generate(GenerationRequest(ids, max_tokens=40, speculate=False))
    drafted = engine_for(target, lambda: RightAnswer([*plain.token_ids, 5, 5, 5, 5])).generate(
        GenerationRequest(ids, max_tokens=40)
    )
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reason == "context"
    want = target.model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, 50),
        do_sample=False,
        max_new_tokens=14,
        pad_token_id=0,
    )
    assert want[0, 50:].tolist() == list(plain.token_ids)


def test_two_targets_over_one_model_take_turns(target, answer):
    targets = [TransformersTarget(target.model) for _ in range(4)]
    before = target.model.config._attn_implementation
    with ThreadPoolExecutor(4) as pool:
        results = list(
            pool.map(
                lambda one: engine_for(one, lambda: RightAnswer(answer)).generate(
                    GenerationRequest(PROMPT, max_tokens=30)
                ),
                targets * 6,
            )
        )
    assert all(list(result.token_ids) == answer for result in results)
    assert target.model.config._attn_implementation == before != "groundspeed"
