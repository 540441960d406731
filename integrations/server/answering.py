"""From requests to their answers, without a thread that waits, and not for a client that has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from fastapi.concurrency import run_in_threadpool

from groundspeed.integrations.server.errors import ApiError, invalid
from groundspeed.integrations.server.metrics import Watch
from groundspeed.integrations.server.replies import Usage
from groundspeed.types import Event, GenerationRequest, GenerationResult, StepEvent
from groundspeed.verify.streams import Submit, events_of_all

if TYPE_CHECKING:
    from starlette.requests import Request

    from groundspeed.integrations.server.keys import Caller
    from groundspeed.integrations.server.serving import Serving

__all__ = [
    "AnswerStream",
    "Asked",
    "answer_events",
    "answers",
    "away",
    "choices",
    "submissions",
    "unless_gone",
]

T = TypeVar("T")
Choice = TypeVar("Choice", covariant=True)


class Asked(NamedTuple):
    """A checked request, and what queues it."""

    request: GenerationRequest
    submit: Submit


class AnswerStream(Protocol[Choice]):
    """What turns the events of one answer into the choices of chunks."""

    def step(self, event: StepEvent) -> Iterable[Choice]:
        """What a step adds."""
        ...

    def end(self, result: GenerationResult) -> Iterable[Choice]:
        """What was held back, and why it ended."""
        ...


async def away(work: Callable[[], T]) -> T:
    """Do what takes a while on a thread: reading a store, filling in templates, tokenizing."""
    return await run_in_threadpool(work)


def submissions(
    serving: Serving, caller: Caller, requests: Sequence[GenerationRequest], n: int
) -> list[Asked]:
    """Check requests, whose prompts are token ids; what is left is to run them, n times each. Takes a while.

    They draft from what the caller may see, and from nothing else.

    Raises:
        ApiError: A prompt is too long for this server, or there are too many requests.
        InputError: What ``Engine.submission`` raises.
    """
    settings = serving.settings
    if len(requests) * n > settings.choices:
        raise invalid(
            f"{len(requests) * n} answers were asked for and {settings.choices} are the most; ask in several "
            "requests",
            param="n",
        )
    longest = max(len(request.prompt) for request in requests)
    if settings.prompt_tokens is not None and longest > settings.prompt_tokens:
        raise invalid(
            f"the prompt has {longest:,} tokens and this server reads {settings.prompt_tokens:,}; shorten it",
            code="context_length_exceeded",
        )
    allowed = (replace(request, namespaces=caller.drafts) for request in requests)
    variants = [one for request in allowed for one in request.variants(n)]
    return [Asked(request, serving.engine.submission(request)) for request in variants]


async def answer_events(
    serving: Serving, asked: Sequence[Asked], request: Request
) -> AsyncGenerator[tuple[int, Event]]:
    """The events of several answers as they come, each with its number; they are measured and logged.

    Args:
        serving: Whose engine answers.
        asked: What ``submissions`` gave.
        request: On whose log line the answers are noted.
    """
    noted = request.state.noted
    noted.update(answers=len(asked), completion_tokens=0)
    if serving.settings.log_prompts:
        noted["prompts"] = [serving.engine.decode(one.request.prompt) for one in asked]
        noted["texts"] = {}
    watches = [Watch(serving.metrics, request.state.begun) for _ in asked]
    async with aclosing(events_of_all([one.submit for one in asked])) as events:
        async for number, event in events:
            watches[number].see(event)
            if isinstance(event, GenerationResult):
                noted["prompt_tokens"] = event.stats.prompt_tokens
                noted["completion_tokens"] += event.stats.completion_tokens
                if serving.settings.log_prompts:
                    noted["texts"][number] = event.text
            yield number, event


async def choices(
    serving: Serving, asked: Sequence[Asked], n: int, request: Request, streams: Sequence[AnswerStream[T]]
) -> AsyncGenerator[T | Usage]:
    """What the chunks of a stream hold, as it comes, and at last what all of it took.

    Args:
        serving: Whose engine answers.
        asked: What ``submissions`` gave.
        n: Answers to each prompt.
        request: On whose log line the answers are noted.
        streams: One for each answer.
    """
    results: dict[int, GenerationResult] = {}
    async with aclosing(answer_events(serving, asked, request)) as events:
        async for number, event in events:
            if isinstance(event, StepEvent):
                for choice in streams[number].step(event):
                    yield choice
            elif isinstance(event, GenerationResult):
                results[number] = event
                for choice in streams[number].end(event):
                    yield choice
    yield Usage.of([results[number] for number in range(len(asked))], n)


async def answers(serving: Serving, asked: Sequence[Asked], request: Request) -> list[GenerationResult]:
    """The answers, in the order of the requests.

    Raises:
        ApiError: The client has left; its answers are ended.
    """

    async def gather() -> list[GenerationResult]:
        results: dict[int, GenerationResult] = {}
        async with aclosing(answer_events(serving, asked, request)) as events:
            async for number, event in events:
                if isinstance(event, GenerationResult):
                    results[number] = event
        return [results[number] for number in range(len(asked))]

    return await unless_gone(request, gather())


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for something that only the client wants: it is cancelled when the client leaves.

    Raises:
        ApiError: The client has left.
    """
    wanted = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({wanted, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            raise ApiError(499, "the client has left", "client_left")
        return wanted.result()
    finally:
        wanted.cancel()
        gone.cancel()
        await asyncio.gather(wanted, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
