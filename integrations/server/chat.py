"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from groundspeed.integrations.forms import AnswerForm, answer_form
from groundspeed.integrations.server.answering import Asked, answers, away, choices, submissions
from groundspeed.integrations.server.chat_bodies import ChatBody
from groundspeed.integrations.server.errors import documented, invalid
from groundspeed.integrations.server.keys import Caller
from groundspeed.integrations.server.replies import (
    Finish,
    GroundspeedFacts,
    TokenFacts,
    Usage,
    finish_of,
    reply_head,
    tokens_facts,
)
from groundspeed.integrations.server.serving import Admitted, CallerOf, Serving, ServingOf
from groundspeed.integrations.server.sse import EventStreamResponse, event_stream, streamed
from groundspeed.integrations.tools import CLOSING, Call
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest, GenerationResult, StepEvent

__all__ = ["router"]

router = APIRouter(tags=["answers"])


class FunctionFacts(BaseModel):
    """The function that a call calls, with its arguments as JSON."""

    name: str
    arguments: str


class CallFacts(BaseModel):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: FunctionFacts


class CallDelta(CallFacts):
    """A tool call in a stream; it comes whole."""

    index: int


class ReplyMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    tool_calls: list[CallFacts] | None = None


class Delta(BaseModel):
    """What a chunk adds to the answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class Logprobs(BaseModel):
    """Log-probabilities of tokens."""

    content: list[TokenFacts] | None
    refusal: None = None


class Choice(BaseModel):
    """One of the answers."""

    index: int
    message: ReplyMessage
    logprobs: Logprobs | None
    finish_reason: Finish
    groundspeed: GroundspeedFacts


class ChunkChoice(BaseModel):
    """What a chunk adds to one of the answers; the last one says how it came about."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: Finish | None = None
    groundspeed: GroundspeedFacts | None = None


class _Head(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Head):
    """Answers to a conversation."""

    object: Literal["chat.completion"]
    choices: list[Choice]
    usage: Usage


class ChatCompletionChunk(_Head):
    """A piece of a stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: Usage | None = None


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    response_model_exclude_unset=True,
    responses={**documented(404, 504), 200: streamed(ChatCompletionChunk)},
    dependencies=[Admitted],
)
async def chat_completions(
    body: ChatBody, serving: ServingOf, caller: CallerOf, request: Request
) -> ChatCompletion | EventStreamResponse:
    """Go on with a conversation."""
    serving.check_model(body.model)
    call = await away(lambda: _prepared(serving, caller, body))
    if body.stream:
        return event_stream(_chunks(serving, body, call, request))
    results = await answers(serving, call.asked, request)
    return ChatCompletion(
        object="chat.completion",
        **reply_head(serving, "chatcmpl"),
        choices=[_choice(serving, call, number, result) for number, result in enumerate(results)],
        usage=Usage.of(results, len(results)),
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call, ready to run.

    Attributes:
        asked: An answer each.
        form: Of the answers.
    """

    asked: list[Asked]
    form: AnswerForm


def _prepared(serving: Serving, caller: Caller, body: ChatBody) -> _Prepared:
    documents = body.documents(serving)
    tokenizer = serving.engine.tokenizer
    form = answer_form(body.given_tools(), body.choice(), body.form(), tokenizer)
    options = body.options(serving)
    if form.tools and body.parallel_tool_calls is False:
        options["stop"] = (*options.get("stop", ()), CLOSING)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs was given without logprobs; set logprobs to true", param="top_logprobs")
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    options["max_tokens"] = body.answer_tokens or serving.settings.answer_tokens
    options["grammar"] = form.grammar
    options["prediction"] = body.predicted()
    turns = [message.turn() for message in body.messages]
    prompt = TurnPrompt(tokenizer).ids(turns, form.tools, form.instructions, form.opening)
    made = GenerationRequest(prompt, documents, **options)
    return _Prepared(submissions(serving, caller, [made], body.n or 1), form)


def _choice(serving: Serving, call: _Prepared, number: int, result: GenerationResult) -> Choice:
    parts = call.form.reader().whole(result.text)
    text = "".join(_text(part) for part in parts)
    calls = [_call(part) for part in parts if isinstance(part, Call) and part.name is not None]
    message = ReplyMessage(role="assistant", content=text if text or not calls else None, refusal=None)
    if calls:
        message.tool_calls = calls
    logprobs = None
    if result.logprobs is not None:
        logprobs = Logprobs(content=tokens_facts(serving.engine.tokenizer, result.logprobs), refusal=None)
    finish = finish_of(result)
    return Choice(
        index=number,
        message=message,
        logprobs=logprobs,
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        groundspeed=GroundspeedFacts.of(result),
    )


async def _chunks(
    serving: Serving, body: ChatBody, call: _Prepared, request: Request
) -> AsyncGenerator[ChatCompletionChunk]:
    head = reply_head(serving, "chatcmpl")

    def chunk(*choices: ChunkChoice, **more: Any) -> ChatCompletionChunk:
        if body.with_usage:
            more.setdefault("usage", None)
        return ChatCompletionChunk(object="chat.completion.chunk", **head, choices=list(choices), **more)

    streams = [_AnswerStream(serving, call, number) for number in range(len(call.asked))]
    for stream in streams:
        yield chunk(stream.piece(Delta(role="assistant", content="")))
    async with aclosing(choices(serving, call.asked, len(streams), request, streams)) as pieces:
        async for piece in pieces:
            if not isinstance(piece, Usage):
                yield chunk(piece)
            elif body.with_usage:
                yield chunk(usage=piece)


class _AnswerStream:
    """One of the answers of a stream."""

    def __init__(self, serving: Serving, call: _Prepared, number: int) -> None:
        self._tokenizer = serving.engine.tokenizer
        self._number = number
        self._reader = call.form.reader()
        self._calls = 0

    def piece(self, delta: Delta, **more: Any) -> ChunkChoice:
        """What a chunk adds to this answer."""
        more = {"logprobs": None, "finish_reason": None, **more}
        return ChunkChoice(index=self._number, delta=delta, **more)

    def step(self, event: StepEvent) -> Iterator[ChunkChoice]:
        """What a step adds; its log-probabilities come with the first piece of it."""
        deltas = [self._delta(part) for part in self._reader.push(event.text)]
        if not event.logprobs:
            yield from map(self.piece, deltas)
            return
        logprobs = Logprobs(content=tokens_facts(self._tokenizer, event.logprobs))
        first, *others = deltas or [Delta(content="")]
        yield self.piece(first, logprobs=logprobs)
        yield from map(self.piece, others)

    def end(self, result: GenerationResult) -> Iterator[ChunkChoice]:
        """What was held back, and why it ended."""
        for part in self._reader.finish():
            yield self.piece(self._delta(part))
        finish = finish_of(result)
        yield self.piece(
            Delta(),
            finish_reason="tool_calls" if self._calls and finish == "stop" else finish,
            groundspeed=GroundspeedFacts.of(result),
        )

    def _delta(self, part: str | Call) -> Delta:
        if isinstance(part, str) or part.name is None:
            return Delta(content=_text(part))
        call = CallDelta(index=self._calls, **_call(part).model_dump())
        self._calls += 1
        return Delta(tool_calls=[call])


def _text(part: str | Call) -> str:
    """The text of a part of an answer; a call that cannot be read is text, as it has no other place."""
    if isinstance(part, str):
        return part
    return part.arguments if part.name is None else ""


def _call(part: Call) -> CallFacts:
    assert part.name is not None
    return CallFacts(
        id=part.id, type="function", function=FunctionFacts(name=part.name, arguments=part.arguments)
    )
