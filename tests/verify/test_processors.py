"""What a request asks to be done to the logits is what transformers' generate does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from transformers import LogitsProcessor, LogitsProcessorList

from groundspeed.errors import InputError, ModelError
from groundspeed.types import GenerationRequest
from groundspeed.verify.processors import make_processors
from groundspeed.verify.target import TransformersTarget

PROMPT = (5, 6, 7, 8, 5, 6, 7, 8)
CPU = torch.device("cpu")


class Alternate(LogitsProcessor):
    """Depends on the text: behind an odd token an odd one is unlikely, behind an even one an even one."""

    def __call__(self, input_ids, scores):
        lower = torch.zeros_like(scores)
        lower[:, int(input_ids[0, -1]) % 2 :: 2] = 8.0
        return scores - lower


# What a request calls it, and what generate calls it.
SETTINGS = {
    "temperature": ({"temperature": 0.6}, {"temperature": 0.6}),
    "top_k": ({"top_k": 5}, {"top_k": 5}),
    "top_p": ({"top_p": 0.7}, {"top_p": 0.7}),
    "min_p": ({"min_p": 0.2}, {"min_p": 0.2}),
    "typical_p": ({"typical_p": 0.6}, {"typical_p": 0.6}),
    "repetition_penalty": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "logit_bias": (
        {"logit_bias": {3: 4, 9: -2.5, 50: -math.inf}},
        {"sequence_bias": [[[3], 4.0], [[9], -2.5], [[50], -math.inf]]},
    ),
    "bad_words": ({"bad_words": ((27,), (4, 12), (2,))}, {"bad_words_ids": [[27], [4, 12], [2]]}),
    "min_tokens": ({"min_tokens": 6}, {"min_new_tokens": 6}),
    "logits_processors": (
        {"logits_processors": (Alternate(),)},
        {"logits_processor": LogitsProcessorList([Alternate()])},
    ),
}
SETTINGS["all"] = tuple(
    {name: value for pair in SETTINGS.values() for name, value in pair[side].items()} for side in (0, 1)
)


@pytest.fixture(scope="module")
def model():
    return tiny_model(TREE_FAMILIES["llama"]())


def by_generate(model, **settings):
    ids = torch.tensor([PROMPT])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **settings,
    )
    return out.sequences[0], out.scores, out.logits


@pytest.mark.parametrize("name", SETTINGS)
def test_processed_logits_are_to_the_bit_those_of_generate(model, name):
    ours, theirs = SETTINGS[name]
    torch.manual_seed(0)
    text, scores, logits = by_generate(
        model, do_sample=True, eos_token_id=[2, 30], **{"temperature": 1.0, "top_k": 0, **theirs}
    )
    request = GenerationRequest(PROMPT, **{"temperature": 1.0, **ours})
    processors = make_processors(request, len(PROMPT), {2, 30}, CPU)
    assert len(processors) == len(ours)
    assert len(scores) > 1
    changed = False
    for step, (wanted, raw) in enumerate(zip(scores, logits, strict=True)):
        got = raw.clone()
        for processor in processors:
            got = processor(text[None, : len(PROMPT) + step], got)
        assert torch.equal(got, wanted), step
        changed |= not torch.equal(got, raw)
    assert changed


def test_counted_penalties_take_off_what_the_answer_repeats():
    request = GenerationRequest(PROMPT, frequency_penalty=0.5, presence_penalty=-0.25)
    [penalty] = make_processors(request, len(PROMPT), (), CPU)
    answer = [9, 5, 9, 9, 60]
    scores = torch.randn(1, 97)
    wanted = scores[0].numpy().copy()
    for token, count in ((9, 3), (5, 1), (60, 1)):
        wanted[token] -= 0.5 * count - 0.25
    got = penalty(torch.tensor([[*PROMPT, *answer]]), scores)
    np.testing.assert_allclose(got[0].numpy(), wanted, rtol=1e-6)
    assert torch.equal(penalty(torch.tensor([PROMPT]), scores), scores)


@pytest.mark.parametrize("name", ["repetition_penalty", "logit_bias", "bad_words", "logits_processors"])
def test_greedy_decoding_takes_them_too(model, name):
    ours, theirs = SETTINGS[name]
    text, _, _ = by_generate(model, do_sample=False, **theirs)
    engine = engine_for(TransformersTarget(model))
    plain = engine.generate(GenerationRequest(PROMPT, max_tokens=12))
    result = engine.generate(GenerationRequest(PROMPT, max_tokens=12, **ours))
    assert list(result.token_ids) == text[len(PROMPT) :].tolist() != list(plain.token_ids)
    assert result.seed is None


def test_what_shapes_draws_only_does_nothing_to_greedy_decoding():
    request = GenerationRequest(PROMPT, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.5, min_tokens=3)
    assert not make_processors(request, len(PROMPT), (), CPU)


def test_min_tokens_put_the_end_of_sequence_off(model):
    target = TransformersTarget(model)
    answer = engine_for(target).generate(GenerationRequest(PROMPT, max_tokens=20)).token_ids
    model.generation_config.eos_token_id = [answer[2]]
    try:
        result = engine_for(target).generate(GenerationRequest(PROMPT, max_tokens=20, min_tokens=9))
    finally:
        model.generation_config.eos_token_id = None
    assert len(result.token_ids) >= 9
    assert answer[2] not in result.token_ids


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": -1.0}, r"temperature is -1.0; it must be 0 \(greedy"),
        ({"temperature": 1e-5}, "temperature is 1e-05"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"typical_p": 0.0}, "typical_p is 0.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be above 0"),
        ({"frequency_penalty": 2.1}, "frequency_penalty is 2.1; it must be from -2 to 2"),
        ({"presence_penalty": -2.1}, "presence_penalty is -2.1"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 257}, "min_tokens is 257; it must be from 0 to max_tokens, 256"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"logit_bias": {97: 1.0}}, "logit_bias holds token id 97; the model's vocabulary has 97"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3 is nan"),
        ({"logit_bias": {3: math.inf}}, "logit_bias of token 3 is inf"),
        ({"bad_words": ((),)}, r"bad_words holds \(\)"),
        ({"bad_words": ("rude",)}, "bad_words holds 'rude'"),
        ({"bad_words": ((1, -1),)}, "bad_words holds token id -1"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_runs(model, settings, says):
    with pytest.raises(InputError, match=says):
        engine_for(TransformersTarget(model)).stream(GenerationRequest(PROMPT, **settings))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_excluding_every_token_is_an_error_and_not_a_token(model, temperature):
    request = GenerationRequest(PROMPT, temperature=temperature)
    engine = engine_for(TransformersTarget(model))
    with pytest.raises(InputError, match="no token is left to choose at position 8 of the text"):
        engine.generate(replace(request, logit_bias=dict.fromkeys(range(97), -math.inf)))
    one = engine.generate(replace(request, logit_bias=dict.fromkeys(range(96), -math.inf), max_tokens=3))
    assert one.token_ids == (96, 96, 96)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers_are_an_error(model, value):
    def broken(input_ids, scores):
        return scores.fill_(value)

    request = GenerationRequest(PROMPT, temperature=1.0, logits_processors=(broken,))
    with pytest.raises(ModelError, match=f"position 8 of the text hold {value}"):
        engine_for(TransformersTarget(model)).generate(request)


def test_a_processor_that_returns_something_else_is_named(model):
    request = GenerationRequest(PROMPT, logits_processors=(lambda input_ids, scores: scores[0],))
    with pytest.raises(InputError, match=r"shape \[97\] for logits of shape \[1, 97\]"):
        engine_for(TransformersTarget(model)).generate(request)
