"""A server behind the chat model: OpenAI's API, by the official client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from groundspeed.errors import (
    ContextLengthError,
    GenerationTimeoutError,
    GroundspeedError,
    InputError,
    MissingDependencyError,
    ModelError,
)
from groundspeed.integrations.langchain.remote_answer import RemoteAnswer
from groundspeed.verify.loading import DEFAULT_MODEL

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from openai import AsyncOpenAI, OpenAIError

__all__ = ["RemoteCall", "Served", "Server", "server_at"]

_OWNER = "groundspeed"
"""Who owns the models of ``groundspeed serve``, by its ``/v1/models``."""


class Served(NamedTuple):
    """What a server has.

    Attributes:
        model: What requests call the model.
        ours: Whether it is ``groundspeed serve``, which takes documents as texts. Others are taken to be vLLM
            servers with our proposer, which takes token ids.
    """

    model: str
    ours: bool


class RemoteCall(NamedTuple):
    """One call of a server.

    Attributes:
        model: What the server calls the model.
        messages: In OpenAI's form.
        fields: The rest of the request's body.
        timeout: Seconds for the answer; None leaves it to the client.
        answer: Takes in what comes.
    """

    model: str
    messages: list[dict[str, Any]]
    fields: dict[str, Any]
    timeout: float | None
    answer: RemoteAnswer

    def arguments(self, *, stream: bool) -> dict[str, Any]:
        """What the client is called with."""
        asked: dict[str, Any] = {"model": self.model, "messages": self.messages, "extra_body": self.fields}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.timeout is not None:
            asked["timeout"] = self.timeout
        return asked


class Server:
    """A server, as one process knows it. Threads may share it."""

    def __init__(self, base_url: str, api_key: str | None, max_retries: int) -> None:
        """Name the server; it is first asked by the first call.

        Args:
            base_url: Of its API, as ``http://127.0.0.1:8000/v1``.
            api_key: None for a server that wants none.
            max_retries: How often a request is sent again that found the server busy or not there.

        Raises:
            MissingDependencyError: The client is not installed.
        """
        try:
            from openai import OpenAI
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "a model with a base_url needs OpenAI's client: pip install 'groundspeed[client]'"
            ) from error
        # Without a key the client would send the one of OpenAI's own API, which is nobody else's to see.
        self._options: Any = {"base_url": base_url, "api_key": api_key or "none", "max_retries": max_retries}
        self._base_url = base_url
        self._client = OpenAI(**self._options)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()
        self._owners: dict[str, str] = {}

    def served(self, model: str) -> Served:
        """What a model of this name is here; the default one stands for the only one that there is.

        Raises:
            GroundspeedError: The server cannot be asked, or has several models and none was named.
        """
        if not self._owners:
            with self._telling():
                self._owners = {one.id: one.owned_by for one in self._client.models.list()}
        names = list(self._owners)
        if model == DEFAULT_MODEL and model not in names:
            if len(names) != 1:
                raise ModelError(
                    f"{self._base_url} has the models {', '.join(names) or 'none'}; name one, model=..."
                )
            model = names[0]
        return Served(model, _OWNER in self._owners.values())

    def generate(self, call: RemoteCall) -> ChatResult:
        """A whole answer.

        Raises:
            GroundspeedError: As of a model in this process; ModelError for what only servers can fail in.
        """
        with self._telling():
            reply = self._client.chat.completions.create(**call.arguments(stream=False))
        return call.answer.whole(reply)

    async def agenerate(self, call: RemoteCall) -> ChatResult:
        """``generate`` for an event loop."""
        with self._telling():
            reply = await self._aclient().chat.completions.create(**call.arguments(stream=False))
        return call.answer.whole(reply)

    def stream(self, call: RemoteCall) -> Iterator[ChatGenerationChunk]:
        """An answer as it comes; leaving the iteration ends it at the server.

        Raises:
            GroundspeedError: As ``generate``.
        """
        with self._telling():
            clock = _Clock(call.timeout)
            with self._client.chat.completions.create(**call.arguments(stream=True)) as chunks:
                for chunk in chunks:
                    clock.check()
                    yield from call.answer.chunks(chunk)
        yield from call.answer.end()

    async def astream(self, call: RemoteCall) -> AsyncGenerator[ChatGenerationChunk]:
        """``stream`` for an event loop."""
        with self._telling():
            clock = _Clock(call.timeout)
            async with await self._aclient().chat.completions.create(**call.arguments(stream=True)) as chunks:
                async for chunk in chunks:
                    clock.check()
                    for piece in call.answer.chunks(chunk):
                        yield piece
        for piece in call.answer.end():
            yield piece

    def _aclient(self) -> AsyncOpenAI:
        """The client of this event loop: connections belong to the loop that opened them."""
        from openai import AsyncOpenAI

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = AsyncOpenAI(**self._options)
        return self._clients[loop]

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn errors of the client into those of a model in this process."""
        from openai import OpenAIError

        try:
            yield
        except OpenAIError as error:
            raise _told(error, self._base_url) from error


server_at = lru_cache(maxsize=None)(Server)
"""The server at an address: one a process, so that models and their copies share its connections."""


class _Clock:
    """Bounds a stream: the client's own timeout is one from each piece to the next."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise GenerationTimeoutError(
                f"the answer is not whole after {self._seconds:g} s; raise timeout, or lower max_tokens"
            )


def _told(error: OpenAIError, base_url: str) -> GroundspeedError:
    """The error of a model in this process for one of a server."""
    import openai

    said = f"{base_url} says: {error}"
    code = getattr(error, "code", None)
    if isinstance(error, openai.APITimeoutError) or code == "timeout":
        return GenerationTimeoutError(
            f"{base_url} gave no answer in time ({error}); raise timeout, or lower max_tokens"
        )
    if code == "context_length_exceeded" or "maximum context length" in str(error):  # ours; vLLM's
        return ContextLengthError(said)
    if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
        return InputError(said)
    if isinstance(error, openai.APIConnectionError):
        return ModelError(
            f"{base_url} cannot be reached ({error.__cause__ or error}); is a server running there?"
        )
    if isinstance(error, openai.AuthenticationError):
        return ModelError(f"{said}; give api_key, or set GROUNDSPEED_API_KEY")
    return ModelError(said)
