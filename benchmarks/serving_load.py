"""A mixed load for the server: requests of every kind, some malformed, some left in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

TEXT = (
    "The cache keeps one buffer for each request. Tokens of a draft are written at its end, and the accepted "
    "path is compacted in place. Prefixes that requests share are read once."
)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"[" * 10_000, 400),
    (b'{"model": 3}', 400),
    (b'{"model": "none", "messages": [{"role": "user", "content": "x"}]}', 404),
    (b'{"model": "none", "messages": [], "surprise": 1}', 400),
)


def mixed_requests(model: str, count: int, tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests of every kind, each with a path, a body and a seed of its own."""
    tool = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
    extras: tuple[dict[str, Any], ...] = (
        {},
        {"draft_documents": [{"id": "text", "text": TEXT}]},
        {"prediction": {"type": "content", "content": TEXT}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
        {"tools": [tool], "tool_choice": "required"},
        {"n": 2, "temperature": 0.7},
    )
    found: list[tuple[str, dict[str, Any]]] = []
    for seed in range(count):
        body: dict[str, Any] = {"model": model, "seed": seed, "max_tokens": tokens, "stream": seed % 2 == 0}
        question = f"{TEXT}\n\nQuestion {seed}: what is compacted, and when?"
        if seed % 7 == 6:
            found.append(("/v1/completions", {**body, "prompt": question}))
        else:
            messages = [{"role": "user", "content": question}]
            found.append(("/v1/chat/completions", {**body, "messages": messages, **extras[seed % 7]}))
    return found


async def texts_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The answers to a request, with their tool calls, whole or put together from a stream."""
    texts = [""] * body.get("n", 1)
    if not body["stream"]:
        reply = await client.post(path, json=body)
        reply.raise_for_status()
        for choice in reply.json()["choices"]:
            texts[choice["index"]] += _text(choice.get("message", choice))
        return texts
    async with client.stream("POST", path, json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                for choice in event["choices"]:
                    texts[choice["index"]] += _text(choice.get("delta", choice))
    return texts


def _text(part: dict[str, Any]) -> str:
    calls = "".join(call["function"]["arguments"] for call in part.get("tool_calls") or ())
    return (part.get("content") or part.get("text") or "") + calls


@dataclass(slots=True)
class LoadReport:
    """What became of a load.

    Attributes:
        outcomes: Requests by what became of them.
        wrong: Requests whose answer was not that of the quiet server, or that failed, with what came.
        stuck: Requests that the server still had in hand when all clients were done.
        begun: When the load began, by ``time.monotonic``.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stuck: float = 0.0
    begun: float = 0.0


async def load(
    address: str, model: str, *, seconds: float, clients: int, tokens: int, pool: int = 28
) -> LoadReport:
    """Keep clients busy for a while; the quiet server is asked first."""
    requests = mixed_requests(model, pool, tokens)
    report = LoadReport()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        quiet = [await texts_of(client, *request) for request in requests]
        report.begun = time.monotonic()
        until = report.begun + seconds

        async def busy(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < until:
                which, chance = draw.randrange(pool), draw.random()
                path, body = requests[which]
                if chance < 0.1:
                    outcome = await _malformed(client, report, draw)
                elif chance < 0.2:
                    outcome = await _left(client, path, body, draw.random() * 0.3)
                else:
                    try:
                        got = await texts_of(client, path, body)
                    except (httpx.HTTPError, AssertionError) as error:
                        got = [repr(error)]
                    if got != quiet[which]:
                        report.wrong.append(f"{which}: {got} instead of {quiet[which]}")
                    outcome = "answered"
                report.outcomes[outcome] += 1

        await asyncio.gather(*map(busy, range(clients)))
        for _ in range(200):
            report.stuck = await in_hand(client)
            if not report.stuck:
                break
            await asyncio.sleep(0.05)
    return report


async def _malformed(client: httpx.AsyncClient, report: LoadReport, draw: random.Random) -> str:
    content, status = draw.choice(MALFORMED)
    headers = {"content-type": "application/json"}
    reply = await client.post("/v1/chat/completions", content=content, headers=headers)
    if reply.status_code != status or "error" not in reply.json():
        report.wrong.append(f"{content[:40]!r} gave {reply.status_code}: {reply.text}")
    return "malformed"


async def _left(client: httpx.AsyncClient, path: str, body: dict[str, Any], seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            await texts_of(client, path, body)
    except TimeoutError:
        return "left"
    return "answered before it was left"


async def in_hand(client: httpx.AsyncClient) -> float:
    """How many requests the server has not done with."""
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("groundspeed_requests_in_hand ")).split()[1])
