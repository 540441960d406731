"""Log-probabilities are those of the model alone, with and without drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.drafters import ADVERSARIES, RandomTrees, tree_of
from helpers.engines import engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model

from groundspeed.errors import InputError
from groundspeed.types import GenerationRequest, Passage, StepEvent
from groundspeed.verify.base import Segment
from groundspeed.verify.logprobs import token_logprobs
from groundspeed.verify.target import TransformersTarget

NEW = 30
PROMPT = tuple(np.random.default_rng(1).integers(3, VOCABULARY, 23).tolist())
FAMILIES = {
    "llama": TREE_FAMILIES["llama"],
    "gemma2": TREE_FAMILIES["gemma2"],
    **{name: OTHER_FAMILIES[name][1] for name in ("bloom", "bamba", "mamba")},
}


def by_the_model_alone(model, text):
    """log_softmax of a plain pass over a whole text, float32 [tokens - 1, vocab]: row i is of token i + 1."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([text])).logits[0, :-1].float(), -1)


def agree(logprobs, token_ids, wanted, top):
    assert [one.token_id for one in logprobs] == list(token_ids)
    for one, row in zip(logprobs, wanted, strict=True):
        assert one.logprob == pytest.approx(row[one.token_id].item(), abs=5e-4)
        values, ids = row.topk(top)
        assert [token for token, _ in one.top] == ids.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=5e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_prompt_and_answer_are_those_of_the_model_alone(family):
    model = tiny_model(FAMILIES[family]())
    target = TransformersTarget(model)
    settings = {"temperature": 0.9, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.4, "logprobs": 5}
    plain = engine_for(target).generate(
        GenerationRequest(PROMPT, max_tokens=NEW, speculate=False, echo=True, **settings)
    )
    wanted = by_the_model_alone(model, [*PROMPT, *plain.token_ids])
    agree(plain.logprobs, plain.token_ids, wanted[len(PROMPT) - 1 :], 5)
    assert plain.prompt_logprobs[0] is None
    agree(plain.prompt_logprobs[1:], PROMPT[1:], wanted[: len(PROMPT) - 1], 5)
    for drafter in ADVERSARIES:
        engine = engine_for(target, lambda d=drafter: d(plain.token_ids))
        events = list(engine.stream(GenerationRequest(PROMPT, max_tokens=NEW, **settings)))
        result = events[-1]
        assert result.token_ids == plain.token_ids
        assert result.prompt_logprobs is None
        agree(result.logprobs, plain.token_ids, wanted[len(PROMPT) - 1 :], 5)
        steps = [event for event in events if isinstance(event, StepEvent)]
        assert all(len(event.logprobs) == len(event.token_ids) for event in steps)
        assert sum((event.logprobs for event in steps), ()) == result.logprobs


def test_what_is_not_asked_for_is_not_there():
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    events = list(engine.stream(GenerationRequest(PROMPT, max_tokens=4)))
    assert {event.logprobs for event in events if isinstance(event, StepEvent)} == {None}
    assert events[-1].logprobs is events[-1].prompt_logprobs is None
    chosen = engine.generate(GenerationRequest(PROMPT, max_tokens=4, logprobs=0)).logprobs
    assert [one.top for one in chosen] == [(), (), (), ()]


def test_a_long_prompt_is_scored_in_pieces():
    config = TREE_FAMILIES["llama"]()
    config.max_position_embeddings = 4096
    model = tiny_model(config)
    prompt = tuple((np.arange(600) * 7 % 90 + 3).tolist())
    result = engine_for(TransformersTarget(model)).generate(
        GenerationRequest(prompt, max_tokens=3, logprobs=1, echo=True)
    )
    wanted = by_the_model_alone(model, [*prompt, *result.token_ids])
    agree([*result.prompt_logprobs[1:], *result.logprobs], [*prompt[1:], *result.token_ids], wanted, 1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "mamba"])
@pytest.mark.parametrize("rows", [0, 1, 3, len(PROMPT)])
def test_a_pass_gives_the_logits_behind_as_many_committed_tokens_as_asked(family, rows):
    model = tiny_model(FAMILIES[family]())
    target = TransformersTarget(model)
    nodes = [4, 5] if target.capability.supports_chain else []
    tree = tree_of(nodes, range(-1, len(nodes) - 1))
    [logits] = target.verify([Segment(target.open(len(PROMPT) + 3), PROMPT, tree, rows)])
    with torch.no_grad():
        wanted = model(torch.tensor([[*PROMPT, *nodes]])).logits[0]
    wanted = wanted[len(PROMPT) - rows :] if rows else wanted[:0]
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


def test_a_scored_prompt_is_read_whole_whatever_is_cached_of_it():
    model = tiny_model(TREE_FAMILIES["llama"]())
    engine = engine_for(TransformersTarget(model))
    silent = GenerationRequest(PROMPT, max_tokens=3)
    scored = GenerationRequest(PROMPT, max_tokens=3, echo=True, logprobs=1)
    engine.generate(silent)
    again, *results = engine.generate_all([silent, scored, scored])
    assert again.stats.cached_tokens == len(PROMPT) - 1
    for result in results:
        assert result.stats.cached_tokens == 0
        wanted = by_the_model_alone(model, [*PROMPT, *again.token_ids])
        agree([*result.prompt_logprobs[1:], *result.logprobs], [*PROMPT[1:], *again.token_ids], wanted, 1)


def test_an_answer_that_ends_before_it_begins_still_echoes_the_prompt():
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    request = GenerationRequest(PROMPT, echo=True, logprobs=1, timeout=1e-9)
    *_, step, result = engine.stream(request)
    assert result.text == step.text == "".join(f"{i} " for i in PROMPT)
    assert (result.finish_reason, result.logprobs, step.logprobs) == ("timeout", (), ())


def test_a_prompt_of_one_token_has_no_logprob():
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    assert engine.generate(GenerationRequest((5,), max_tokens=2, logprobs=0, echo=True)).prompt_logprobs == (
        None,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top", [0, 1, 20])
def test_any_logits_give_their_log_softmax(dtype, top):
    logits = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0)).mul(5).to(dtype)
    logits[2, 30:] = float("-inf")
    logits += torch.arange(1000) * 2**-6  # no ties
    tokens = [0, 1, 2, 3, 4, 999, 6]
    wanted = torch.log_softmax(logits.double(), -1)
    for place, (one, row) in enumerate(zip(token_logprobs(logits, tokens, top), wanted, strict=True)):
        assert one.token_id == tokens[place]
        assert one.logprob == pytest.approx(row[tokens[place]].item(), abs=1e-5)
        assert [value for _, value in one.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-5)
        assert [value for _, value in one.top] == pytest.approx([row[i].item() for i, _ in one.top], abs=1e-5)


@pytest.mark.parametrize("prompt", [PROMPT, " ".join(map(str, PROMPT))])
def test_an_echo_puts_the_prompt_before_the_answer_and_changes_nothing_else(prompt):
    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))
    answer = engine_for(target).generate(GenerationRequest(PROMPT, max_tokens=NEW))
    passage = Passage("doc", answer.text[10:60])
    engine = engine_for(target, lambda: RandomTrees(answer.token_ids))
    request = {"passages": (passage,), "max_tokens": NEW, "stop": (" ".join(map(str, PROMPT[:2])),)}
    silent = engine.generate(GenerationRequest(prompt, **request))
    events = list(engine.stream(GenerationRequest(prompt, echo=True, **request)))
    result = events[-1]
    echo = prompt if isinstance(prompt, str) else "".join(f"{i} " for i in PROMPT)
    assert result.text == "".join(e.text for e in events if isinstance(e, StepEvent)) == echo + silent.text
    assert next(e.text for e in events if isinstance(e, StepEvent)).startswith(echo)
    assert result.token_ids == silent.token_ids == answer.token_ids
    [span] = result.grounding
    assert result.text[span.start : span.end] == span.text == silent.grounding[0].text


def test_variants_differ_in_the_seed_only():
    request = GenerationRequest(PROMPT, temperature=1.0, seed=2**64 - 2)
    assert [one.seed for one in request.variants(4)] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert {repr(one).replace(f"seed={one.seed}", "") for one in request.variants(4)} == {
        repr(request).replace(f"seed={request.seed}", "")
    }
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    unseeded = GenerationRequest(PROMPT, max_tokens=NEW, temperature=1.0).variants(3)
    assert len({engine.generate(one).token_ids for one in unseeded}) == 3


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_a_number_of_variants_that_is_none_is_refused(n):
    with pytest.raises(InputError, match="it must be a whole number of answers, 1 or more"):
        GenerationRequest(PROMPT).variants(n)


@pytest.mark.parametrize("logprobs", [-1, 21, 1.0])
def test_a_number_of_logprobs_out_of_range_is_refused(logprobs):
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    with pytest.raises(InputError, match=r"it must be None \(none\) or a whole number from 0 to 20"):
        engine.stream(GenerationRequest(PROMPT, logprobs=logprobs))
