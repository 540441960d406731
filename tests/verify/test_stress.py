"""A thousand requests of every kind, sixteen at a time."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from helpers.engines import FREE
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer

from groundspeed.errors import GroundspeedError
from groundspeed.types import GenerationRequest, GenerationResult, Grammar, Passage
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget

REQUESTS = 1_000
TOKENIZER = byte_tokenizer("ab", "bb", "abb", "ba", "aab")
GRAMMARS = [
    Grammar.json_object(),
    Grammar.regex("[ab]{3,9}x"),
    Grammar.choice(["yes", "no", "abba"]),
    Grammar.json_schema({"type": "array", "items": {"enum": ["aab", "ba"]}, "maxItems": 3}),
]
BAD = [
    {"prompt": ""},
    {"prompt": (1, 2, 1_000)},
    {"prompt": "a" * 600},
    {"max_tokens": 0},
    {"max_tokens": -3},
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"top_k": -1},
    {"min_p": 2.0},
    {"typical_p": 0.0},
    {"repetition_penalty": 0.0},
    {"stop": ("",)},
    {"seed": -1},
    {"logprobs": 99},
    {"timeout": 0.0},
    {"timeout": float("nan")},
    {"min_span": 0},
    {"logit_bias": {1_000: 1.0}},
    {"bad_words": ((),)},
    {"grammar": Grammar.regex("(")},
    {"grammar": Grammar.json_schema("{")},
    {"grammar": Grammar.choice([])},
]
NO_TOKEN_LEFT = {"logit_bias": dict.fromkeys(range(300), float("-inf"))}


def some_text(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(["abb", "ba", "é", " the ", "x", "{", "日"], k=rng.randint(1, longest)))


def some_request(rng: random.Random) -> tuple[GenerationRequest, bool]:
    """A request, and whether it can only be refused."""
    heads = ("You are ab. ", "Say it: ", "")
    text = some_text(rng, 20)
    request = GenerationRequest(
        rng.choice(heads) + some_text(rng, 40) + text,
        (Passage("d", text),) * rng.randint(0, 1),
        max_tokens=rng.choice([1, 2, 5, 12, 30]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.3]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 40]),
        seed=rng.randrange(2**64),
        speculate=rng.random() < 0.8,
        ignore_eos=rng.random() < 0.3,
        echo=rng.random() < 0.1,
        logprobs=rng.choice([None, None, None, 0, 3]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
    )
    kind = rng.random()
    if kind < 0.15:
        return replace(request, **rng.choice(BAD)), True
    if kind < 0.17:
        return replace(request, **NO_TOKEN_LEFT), False
    if kind < 0.37:
        request = replace(request, grammar=rng.choice(GRAMMARS), ignore_eos=False)
    if rng.random() < 0.3:
        request = replace(request, stop=tuple(rng.choice("abetx ") for _ in range(rng.randint(1, 3))))
    if rng.random() < 0.15:
        request = replace(request, timeout=rng.choice([1e-4, 0.01, 0.05]))
    return request, False


def live_tensors() -> tuple[int, int]:
    """How many tensors there are, and their bytes."""
    gc.collect()
    # By their types, as other objects may warn of being looked at.
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    tensors = [one for one in tensors if one.layout is torch.strided]  # packed weights have no storage
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return len(tensors), sum(storages.values())


def settled(engine: Engine) -> tuple[int, int, int]:
    """Live tensors, their bytes and threads, when the engine has nothing to do."""
    while engine.scheduler._thread is not None:
        time.sleep(0.05)
    engine.scheduler.prefixes.clear()
    return (*live_tensors(), threading.active_count())


@pytest.fixture(scope="module")
def target():
    config = TREE_FAMILIES["llama"]()
    config.vocab_size = 300
    config.max_position_embeddings = 512
    model = tiny_model(config)
    model.generation_config.eos_token_id = TOKENIZER.eos_token_id
    return TransformersTarget(model)


Outcome = GenerationResult | tuple[type[GroundspeedError], str] | None


def outcome_of(engine: Engine, request: GenerationRequest, end: str) -> Outcome:
    """What becomes of a request that somebody lets run, cancels, closes or drops in the middle."""
    try:
        stream = engine.stream(request)
        for _ in range(0 if end == "run" else len(request.prompt) % 7):
            event = next(stream)
            if isinstance(event, GenerationResult):
                return event
        if end == "cancel":
            stream.cancel()
        if end == "close":
            stream.close()
        return list(stream)[-1] if end in ("run", "cancel") else None
    except GroundspeedError as error:
        return type(error), str(error)  # without what its traceback holds


def test_a_thousand_requests_of_every_kind_end_as_they_would_in_a_quiet_engine(target):
    rng = random.Random(0)
    requests = [some_request(rng) for _ in range(REQUESTS)]
    ends = rng.choices(["run", "cancel", "close", "drop"], [0.8, 0.1, 0.05, 0.05], k=REQUESTS)
    with Engine(target, TOKENIZER, cost=FREE) as quiet:
        alone = [
            outcome_of(quiet, request if bad else replace(request, timeout=None), "run")
            for request, bad in requests
        ]

    engine = Engine(target, TOKENIZER, cost=FREE, cache_bytes=12 * 256 * target.bytes_per_token)
    with engine, ThreadPoolExecutor(16) as pool:

        def all_of(count: int) -> list[Outcome]:
            futures = [
                pool.submit(outcome_of, engine, request, end)
                for (request, _), end in zip(requests[:count], ends[:count], strict=True)
            ]
            return [future.result(timeout=240) for future in futures]

        all_of(50)  # what is made once is there then
        before = settled(engine)
        outcomes = all_of(REQUESTS)
        after = settled(engine)
        assert engine.scheduler._active == []
        assert not engine.scheduler._waiting

    reasons: Counter[str] = Counter()
    for (request, bad), end, outcome, wanted in zip(requests, ends, outcomes, alone, strict=True):
        if isinstance(outcome, GenerationResult):
            reasons[outcome.finish_reason] += 1
        if outcome is None:
            assert end in ("close", "drop")
        elif bad or isinstance(outcome, tuple):
            assert isinstance(outcome, tuple), request
            assert outcome == wanted
        elif outcome.finish_reason in ("cancelled", "timeout"):
            assert end == "cancel" if outcome.finish_reason == "cancelled" else request.timeout
            if isinstance(wanted, GenerationResult):
                assert outcome.token_ids == wanted.token_ids[: len(outcome.token_ids)]
        else:
            assert isinstance(wanted, GenerationResult), wanted
            assert outcome.token_ids == wanted.token_ids
            assert (outcome.text, outcome.stop) == (wanted.text, wanted.stop)
            assert outcome.finish_reason == wanted.finish_reason
            assert outcome.grounding == wanted.grounding
    assert set(reasons) == {"stop", "length", "cancelled", "timeout"}
    assert after == pytest.approx(before, rel=0.01)
