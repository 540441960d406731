"""What a server bears: floods, slow and leaving clients, keys, bodies of every kind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from helpers.many import watched
from helpers.serving import ScriptedEngine, chat, error_of, lines_of, raw, serving
from helpers.tokenizers import TEMPLATE, byte_tokenizer

from groundspeed.integrations.server.gate import Gate
from groundspeed.integrations.server.metrics import Metrics
from groundspeed.integrations.server.settings import Settings
from groundspeed.verify.engine import Engine

CHAT = "/v1/chat/completions"


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def held() -> Iterator[Any]:
    """An engine whose passes wait until they are let go, with one request in each."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    target = watched("llama", vocab_size=len(tokenizer))
    engine = Engine(target, tokenizer, model_name="tiny", most_active=1)
    target.hold()
    yield target, engine
    target.release()


def alive(address: str) -> bool:
    return httpx.post(address + CHAT, json=chat()).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"null",
        b'{"model": NaN}',
        b'{"model": "tiny", "messages": "x"}',
    ],
)
def test_a_body_that_is_no_request_is_an_error(address: str, body: bytes) -> None:
    reply = httpx.post(address + CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert error_of(reply)["type"] == "invalid_request_error"


def test_a_body_of_another_type_is_not_read_as_json(address: str) -> None:
    # Browsers send text/plain to other origins without asking: no page may put a server to work that way.
    content = json.dumps(chat()).encode()
    reply = httpx.post(address + CHAT, content=content, headers={"content-type": "text/plain"})
    assert reply.status_code == 400
    assert "content-type" in error_of(reply)["message"]


def test_a_body_that_is_too_long_is_refused_by_its_head(address: str) -> None:
    reply = httpx.post(address + CHAT, json=chat("x" * 1_100_000))
    assert reply.status_code == 413
    assert error_of(reply)["code"] == "body_too_long"


def test_a_body_that_comes_in_pieces_is_counted(address: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 100_000

    with httpx.Client() as client:
        try:
            reply = client.post(
                address + CHAT, content=pieces(), headers={"content-type": "application/json"}
            )
        except httpx.WriteError:
            return  # the server closed the connection before all of it was sent
    assert reply.status_code == 413


def test_a_client_that_stops_within_its_body_is_told(address: str) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
    assert b" 408 " in raw(address, head.encode() + b"{").split(b"\r\n")[0]


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nx-slow: "])
def test_a_client_that_never_ends_its_head_is_let_go(address: str, head: bytes) -> None:
    assert raw(address, head) == b""


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"x-%d: %s\r\n" % (i, b"y" * 100) for i in range(2000)),
        b"x: " + b"y" * 1_000_000 + b"\r\n",
    ],
)
def test_a_flood_of_headers_is_refused(address: str, flood: bytes) -> None:
    got = raw(address, b"GET /health HTTP/1.1\r\nhost: x\r\n" + flood + b"\r\n")
    assert got == b"" or got.startswith(b"HTTP/1.1 400 ")
    assert alive(address)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/v1/namespaces/../../../etc",
        "/v1/namespaces/%2e%2e%2f%2e%2e%2fetc/documents",
        "/v1/namespaces/..",
        "/v1/namespaces/a%00b",
        "/v1/models/../../x",
        "/%ff%fe",
        "//",
    ],
)
def test_no_path_leads_out(address: str, path: str) -> None:
    got = raw(address, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert got.split(b" ")[1] in (b"400", b"404")
    assert b'{"error":{"message":' in got


@pytest.mark.parametrize(
    "text",
    [
        "Grüße 世界 👩‍👩‍👧",
        "\u202eright to left",
        "e\u0301\u0301\u0301",
        "\x00\x07\x1b[31m",
        "<end>",
        "\uffff",
    ],
)
def test_unicode_is_welcome_in_every_field(address: str, text: str) -> None:
    more = {
        "user": text,
        "metadata": {text: text},
        "stop": [text],
        "draft_documents": [{"id": text, "text": text, "metadata": {text: [text]}}],
        "prediction": {"type": "content", "content": text},
        "tools": [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}],
    }
    reply = httpx.post(address + CHAT, json=chat(text, **more))
    assert reply.status_code == 200, reply.text
    for name in ("model", "tool_choice", text):
        assert 400 <= httpx.post(address + CHAT, json=chat(**{name: text})).status_code < 500


@pytest.mark.parametrize("place", ["content", "metadata", "model", "key"])
def test_half_a_character_is_refused(address: str, place: str) -> None:
    half = '"\\ud800"'
    body = {
        "content": f'{{"model": "tiny", "messages": [{{"role": "user", "content": {half}}}]}}',
        "metadata": f'{{"model": "tiny", "messages": [], "metadata": {{"x": [{half}]}}}}',
        "model": f'{{"model": {half}, "messages": []}}',
        "key": f"{{{half}: 1}}",
    }[place]
    reply = httpx.post(address + CHAT, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert "surrogate" in error_of(reply)["message"]


def test_what_is_not_there_is_an_error_of_the_usual_form(address: str) -> None:
    assert error_of(httpx.get(f"{address}/nothing"))["type"] == "invalid_request_error"
    reply = httpx.get(address + CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    error_of(reply)


def test_requests_beyond_the_queue_are_turned_away(held: Any) -> None:
    target, engine = held
    with serving(engine, Settings(waiting=1)) as address, ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(httpx.post, address + CHAT, json=chat(), timeout=30) for _ in range(2))
        until(lambda: "groundspeed_requests_in_hand 2.0" in httpx.get(f"{address}/metrics").text)
        assert "groundspeed_queue_length 1.0" in httpx.get(f"{address}/metrics").text
        turned = httpx.post(address + CHAT, json=chat())
        assert turned.status_code == 429
        assert int(turned.headers["retry-after"]) >= 1
        assert error_of(turned)["code"] == "queue_full"
        assert httpx.get(f"{address}/ready").status_code == 429
        assert httpx.get(f"{address}/health").status_code == 200
        target.release()
        assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert alive(address)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_answer(held: Any, stream: bool) -> None:
    target, engine = held
    with serving(engine, Settings()) as address:
        with httpx.Client(timeout=0.3) as client, pytest.raises(httpx.ReadTimeout):
            client.post(address + CHAT, json=chat(max_tokens=3000, stream=stream))
        until(lambda: "groundspeed_requests_in_hand 0.0" in httpx.get(f"{address}/metrics").text)
        passes = len(target.passes)
        target.release()
        until(lambda: engine.scheduler.active == 0)
        assert len(target.passes) <= passes + 2
        assert f'groundspeed_requests_total{{route="{CHAT}",status="499"}} 1.0' in (
            httpx.get(f"{address}/metrics").text
        )


async def test_a_client_that_takes_nothing_does_not_keep_its_place() -> None:
    over = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            over.append(True)

    async def send(message: Any) -> None:
        await asyncio.Event().wait()

    metrics = Metrics(ScriptedEngine(), lambda: 0, lambda: 0)  # type: ignore[arg-type]
    gate = Gate(app, Settings(stall_seconds=0.05), metrics)
    await asyncio.wait_for(gate({"type": "http", "method": "GET", "headers": []}, send, send), 10)
    assert over
    assert 'groundspeed_requests_total{route="none",status="499"} 1.0' in metrics.page().decode()


def test_running_answers_finish_when_the_server_is_stopped(held: Any) -> None:
    target, engine = held
    with ThreadPoolExecutor(1) as pool:
        with serving(engine, Settings(waiting=1)) as address:
            reply = pool.submit(httpx.post, address + CHAT, json=chat(stream=True), timeout=30)
            until(lambda: engine.scheduler.active == 1)
            threading.Timer(0.3, target.release).start()  # and now the server is told to stop
        assert lines_of(reply.result().text)[-1] == "[DONE]"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_answers_that_go_on_for_too_long_are_ended_by_a_stop(held: Any) -> None:
    target, engine = held
    with ThreadPoolExecutor(1) as pool:
        with serving(engine, Settings(), drain=0) as address:
            reply = pool.submit(httpx.post, address + CHAT, json=chat(max_tokens=3000), timeout=30)
            until(lambda: engine.scheduler.active == 1)
            target.release()
        with pytest.raises(httpx.HTTPError):
            reply.result().raise_for_status()


def test_a_server_that_stops_takes_no_requests(engine: Engine) -> None:
    from fastapi.testclient import TestClient

    from groundspeed.integrations.server.app import create_app

    app = create_app(engine, Settings())
    app.state.serving.admission.leaving = True
    asking = TestClient(app)
    for reply in (asking.get("/ready"), asking.post(CHAT, json=chat())):
        assert (reply.status_code, error_of(reply)["code"]) == (503, "shutting_down")
