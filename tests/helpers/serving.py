"""Servers on localhost, over a tiny model or over scripted answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from groundspeed.integrations.server.app import create_app
from groundspeed.integrations.server.run import make_server
from groundspeed.integrations.server.settings import Settings
from groundspeed.types import (
    GenerationRequest,
    GenerationResult,
    GenerationStats,
    PrefillEvent,
    Source,
    StepEvent,
)
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget
from helpers.engines import FREE
from helpers.families import tiny_parts
from helpers.tokenizers import TEMPLATE, byte_tokenizer


def tiny_engine(**options: Any) -> Engine:
    """An engine for ``tiny_parts``."""
    model, tokenizer = tiny_parts()
    return Engine(TransformersTarget(model), tokenizer, cost=FREE, model_name="tiny", **options)


class ScriptedEngine:
    """Gives scripted answers, a character a step; one of them may be an error that comes in the middle."""

    model_name = "scripted"
    dtype = "float32"

    def __init__(self, *answers: str | Exception, finish_reason: str = "stop") -> None:
        self.tokenizer = byte_tokenizer()
        self.tokenizer.chat_template = TEMPLATE
        self.target = SimpleNamespace(context_length=4096)
        self.scheduler = SimpleNamespace(most_active=2, active=0, used_bytes=0, most_bytes=1)
        self.answers = answers
        self.finish_reason: Any = finish_reason
        self.requests: list[GenerationRequest] = []

    def submission(self, request: GenerationRequest) -> Callable[[Callable[[Any], None]], Any]:
        answer = self.answers[len(self.requests) % len(self.answers)]
        self.requests.append(request)

        def submit(deliver: Callable[[Any], None]) -> Any:
            for event in self._events(answer, request):
                deliver(event)
            return SimpleNamespace(cancel=lambda: None)

        return submit

    def encode(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer(prompt)["input_ids"]
        return ids

    def prompt(self, number: int = -1) -> str:
        return str(self.tokenizer.decode(list(self.requests[number].prompt)))

    def close(self) -> None:
        pass

    def _events(self, answer: str | Exception, request: GenerationRequest) -> Iterator[Any]:
        yield PrefillEvent(3, 3)
        for char in answer if isinstance(answer, str) else "half":
            yield StepEvent((0,), (Source.TARGET,), (-1,), char, 0, 0, 0, 0, 0, 0)
        if isinstance(answer, Exception):
            yield answer
            return
        ids = tuple(self.encode(answer)) if answer else ()
        stats = GenerationStats(3, len(ids), 2, 5, 4, {"passage": 4}, 0.0, 0.1, 0.2, "tree")
        yield GenerationResult(answer, ids, (Source.TARGET,) * len(ids), self.finish_reason, (), stats)


class Letters:
    """Embeds a text by how often each letter is in it."""

    name = "letters"
    dimension = 26

    def embed(self, texts: Any, progress: Any = None) -> NDArray[np.float32]:
        counts = [[text.lower().count(chr(97 + i)) + 0.01 for i in range(26)] for text in texts]
        vectors = np.array(counts, np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return np.asarray(self.embed([text])[0], np.float32)


@contextmanager
def serving(
    engine: Any, settings: Settings | None = None, drain: float = 10, **options: Any
) -> Iterator[str]:
    """Serve on a free port of localhost; gives the address."""
    server = make_server(create_app(engine, settings or Settings(), **options), "127.0.0.1", 0, drain)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    """The body of a short chat."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


def lines_of(raw: str) -> Sequence[str]:
    """The data of the events of a stream."""
    return [line.removeprefix("data: ") for line in raw.split("\n\n") if line]


def raw(address: str, data: bytes) -> bytes:
    """What a server sends back until it closes the connection."""
    host, port = address.removeprefix("http://").split(":")
    got = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(data)
            while piece := connection.recv(65536):
                got += piece
        except ConnectionError:
            pass  # closed with some of what was sent unread
    return got


def error_of(reply: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error
