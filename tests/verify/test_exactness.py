"""Speculative decoding says token for token what the target model says alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.drafters import ADVERSARIES, RightAnswer, RightAnswerLast
from helpers.engines import engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from transformers import RwkvConfig, T5Config, T5ForConditionalGeneration

from groundspeed.errors import ModelError
from groundspeed.types import GenerationRequest
from groundspeed.verify.target import TransformersTarget

NEW = 40


def prompts():
    rng = np.random.default_rng(1)
    return [tuple(rng.integers(3, VOCABULARY, n).tolist()) for n in (1, 5, 23, 60)]


def plain(model, prompt, new=NEW):
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", TREE_FAMILIES)
def test_trees_change_no_token_of_any_family(family):
    model = tiny_model(TREE_FAMILIES[family]())
    target = TransformersTarget(model)
    assert target.capability.decoding == "tree", target.capability.reason
    for prompt in prompts():
        answer = plain(model, prompt)
        for adversary in ADVERSARIES:
            drafter = adversary(answer)
            result = engine_for(target, lambda drafter=drafter: drafter).generate(
                GenerationRequest(prompt, max_tokens=NEW)
            )
            assert list(result.token_ids) == answer, adversary.__name__
            assert drafter.proposed > 0


@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_a_model_that_cannot_take_trees_falls_back_and_says_why(family):
    decoding, config = OTHER_FAMILIES[family]
    model = tiny_model(config())
    target = TransformersTarget(model)
    assert target.capability.decoding == decoding, target.capability.reason
    assert target.capability.reason
    for prompt in prompts():
        answer = plain(model, prompt)
        for adversary in ADVERSARIES:
            result = engine_for(
                target, lambda adversary=adversary, answer=answer: adversary(answer)
            ).generate(GenerationRequest(prompt, max_tokens=NEW))
            assert list(result.token_ids) == answer, adversary.__name__
            assert result.stats.decoding == decoding
            assert result.stats.decoding_reason == target.capability.reason


def test_a_model_whose_cache_cannot_be_driven_reads_the_whole_text_every_pass():
    config = RwkvConfig(vocab_size=VOCABULARY, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)
    model = tiny_model(config)
    target = TransformersTarget(model)
    assert target.capability.decoding == "plain"
    assert "nor can its cache be driven" in target.capability.reason
    for prompt in prompts()[1:]:
        text = list(prompt)
        for _ in range(12):
            with torch.inference_mode():
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        result = engine_for(target).generate(GenerationRequest(prompt, max_tokens=12))
        assert list(result.token_ids) == text[len(prompt) :]
        assert result.stats.decoding_reason == target.capability.reason


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=VOCABULARY, d_model=16, d_ff=16, d_kv=4, num_layers=1, num_heads=2)
    with pytest.raises(ModelError, match="encoder-decoder"):
        TransformersTarget(T5ForConditionalGeneration(config))


def test_a_right_draft_is_accepted_whole():
    model = tiny_model(TREE_FAMILIES["llama"]())
    target = TransformersTarget(model)
    prompt = prompts()[2]
    answer = plain(model, prompt)
    result = engine_for(target, lambda: RightAnswer(answer)).generate(
        GenerationRequest(prompt, max_tokens=NEW)
    )
    # 40 tokens: one from the prefill, then 24 drafted and a bonus token, then 13 and one.
    assert result.stats.steps == 2
    assert result.stats.accepted == 24 + 13
    assert result.stats.accepted_by_source == {"prompt": 37}
    assert sum(source.label == "target" for source in result.sources) == NEW - 37


def test_the_own_drafter_changes_no_token_and_drafts_a_repetitive_text(caplog):
    drafted = 0
    model = tiny_model(TREE_FAMILIES["llama"]())
    target = TransformersTarget(model)
    for prompt in prompts():
        answer = plain(model, prompt, 120)
        result = engine_for(target).generate(GenerationRequest(prompt, max_tokens=120))
        assert list(result.token_ids) == answer
        drafted += result.stats.drafted
        assert not caplog.records
    assert drafted > 0


def test_the_model_itself_is_left_as_it_was():
    model = tiny_model(TREE_FAMILIES["gemma3"]())
    before = plain(model, prompts()[1]), model.config._attn_implementation
    target = TransformersTarget(model)
    engine_for(target, lambda: RightAnswerLast(before[0])).generate(
        GenerationRequest(prompts()[1], max_tokens=9)
    )
    assert (plain(model, prompts()[1]), model.config._attn_implementation) == before


def test_bfloat16_takes_trees_as_well():
    model = tiny_model(TREE_FAMILIES["qwen3"]()).to(torch.bfloat16)
    target = TransformersTarget(model)
    assert target.capability.decoding == "tree", target.capability.reason
    result = engine_for(target, lambda: RightAnswer([5] * 50)).generate(
        GenerationRequest((1, 2, 3), max_tokens=9)
    )
    assert len(result.token_ids) == 9


def test_the_model_may_be_used_by_another_thread_meanwhile():
    model = tiny_model(TREE_FAMILIES["gemma3"]())
    prompt = prompts()[2]
    answer = plain(model, prompt)
    engine = engine_for(TransformersTarget(model), lambda: RightAnswerLast(answer))
    with ThreadPoolExecutor(3) as pool:
        theirs = [pool.submit(plain, model, prompt) for _ in range(12)]
        ours = [pool.submit(engine.generate, GenerationRequest(prompt, max_tokens=NEW)) for _ in range(24)]
        assert all(future.result() == answer for future in theirs)
        assert all(list(future.result().token_ids) == answer for future in ours)
