"""``/v1/answers``: a question comes in, passages are retrieved here, and a grounded answer goes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from groundspeed.integrations.pipeline import RetrievalEvent
from groundspeed.integrations.server.answering import Asked, answer_events, away, submissions, unless_gone
from groundspeed.integrations.server.errors import documented
from groundspeed.integrations.server.keys import Caller
from groundspeed.integrations.server.replies import Stats, finish_of
from groundspeed.integrations.server.sampling import SamplingBody
from groundspeed.integrations.server.serving import Admitted, CallerOf, Serving, ServingOf
from groundspeed.integrations.server.sse import EventStreamResponse, event_stream
from groundspeed.integrations.server.stores import NAME
from groundspeed.integrations.tokenizing import CORPUS
from groundspeed.integrations.view import Record, Recorder, whole_answer
from groundspeed.retrieval.retriever import Mode
from groundspeed.types import FinishReason, GenerationResult, GroundedSpan

__all__ = ["router"]

router = APIRouter(tags=["answers"])


class AnswerBody(SamplingBody):
    """A question, and how it is to be answered; greedily unless a temperature is given."""

    question: str = Field(min_length=1)
    namespace: Annotated[str, Field(pattern=NAME)] = CORPUS
    k: int = Field(5, ge=1, le=100, description="Most passages to retrieve.")
    mode: Mode = Field("hybrid", description="How to search.")
    max_tokens: int = Field(256, ge=1)
    min_span: int = Field(24, ge=1, description="Shortest copied span to report, in characters.")
    model: str | None = Field(None, description="By default the one that there is.")
    stream: bool = False
    trace: bool = Field(False, description="With every step, and what it drafted and was rejected.")


class FoundPassage(BaseModel):
    """A passage that was found; offsets count characters of its document."""

    document_id: str
    text: str
    start: int
    end: int
    score: float
    metadata: dict[str, Any]
    in_prompt: bool


class Token(BaseModel):
    """Text that came with a token, and where that came from."""

    text: str
    source: str
    passage: int | None = None


class Branch(BaseModel):
    """What was drafted and rejected, with what the model wrote instead."""

    at: int
    tokens: list[Token]
    nodes: int
    prob: float
    instead: str | None


class Step(BaseModel):
    """A verification step; the first one is the token that comes with the prompt."""

    tokens: list[Token]
    committed: int
    drafted: int
    accepted: int
    draft_s: float
    forward_s: float
    accept_s: float
    commit_s: float
    at_s: float
    rejected: list[Branch] = Field(default_factory=list)


class AnswerReply(BaseModel):
    """A grounded answer; ``steps`` are there where they were asked for."""

    question: str
    speculate: bool
    model: str
    device: str
    dtype: str
    passages: list[FoundPassage]
    steps: list[Step] | None = None
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop: str | int | None
    seed: int | None
    grounding: list[GroundedSpan]
    stats: Stats
    at_s: float


_STREAM = {
    "type": "string",
    "description": "Events whose data is a record with a `type`: `question`, `retrieval`, `prefill`, `step` "
    "(a Step) and `result`; together they are an AnswerReply. `[DONE]` at last.",
}


@router.post(
    "/v1/answers",
    response_model=AnswerReply,
    response_model_exclude_unset=True,
    responses={
        **documented(403, 404, 504),
        200: {"content": {"text/event-stream": {"schema": _STREAM}}},
    },
    dependencies=[Admitted],
)
async def answers(
    body: AnswerBody, serving: ServingOf, caller: CallerOf, request: Request
) -> Record | EventStreamResponse:
    """Answer a question from the documents of a namespace."""
    if body.model is not None:
        serving.check_model(body.model)
    recorder = Recorder(serving.engine.tokenizer, trace=body.trace)
    found = await away(lambda: _found(serving, caller, body))
    records = _records(serving, body, found, recorder, request)
    if body.stream:
        return event_stream(records)
    answer = await unless_gone(request, _whole(records))
    if not body.trace:
        del answer["steps"]
    return answer


@dataclass(frozen=True, slots=True)
class _Found:
    """What retrieval found, and the request that is made of it."""

    retrieval: RetrievalEvent
    asked: Asked


def _found(serving: Serving, caller: Caller, body: AnswerBody) -> _Found:
    pipeline = serving.pipeline(caller, body.namespace)
    options = body.options(serving)
    options |= {
        "temperature": body.temperature or 0.0,
        "max_tokens": body.max_tokens,
        "min_span": body.min_span,
    }
    passages = tuple(pipeline.retriever.search(body.question, k=body.k, mode=body.mode))
    request, shown = pipeline.request(body.question, passages, **options)
    (asked,) = submissions(serving, caller, [request], 1)
    return _Found(RetrievalEvent(passages, shown), asked)


async def _records(
    serving: Serving, body: AnswerBody, found: _Found, recorder: Recorder, request: Request
) -> AsyncGenerator[Record]:
    speculate = found.asked.request.speculate
    first = recorder.asked(body.question, serving.engine, speculate=speculate)
    yield {**first, "model": serving.model}
    yield recorder.take(found.retrieval)
    async with aclosing(answer_events(serving, [found.asked], request)) as events:
        async for _, event in events:
            if isinstance(event, GenerationResult):
                finish_of(event)  # raises where the server ended it
            yield recorder.take(event)


async def _whole(records: AsyncGenerator[Record]) -> Record:
    async with aclosing(records):
        return whole_answer([record async for record in records])
