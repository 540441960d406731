"""Keys, the log and the figures."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from helpers.serving import chat, error_of, raw, serving, tiny_engine

from groundspeed.errors import InputError
from groundspeed.integrations.server.keys import Caller, Keys
from groundspeed.integrations.server.run import JsonLines
from groundspeed.integrations.server.settings import Settings

CHAT = "/v1/chat/completions"


def test_keys_are_asked_for() -> None:
    with serving(tiny_engine(), Settings(keys=Keys({"right-0123456789": Caller("me")}))) as address:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right-0123456789"}):
            reply = httpx.post(address + CHAT, json=chat(), headers=headers)
            assert (reply.status_code, error_of(reply)["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
        head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        assert b" 401 " in raw(address, head + b"authorization: Bearer \xff\xfe\r\n\r\n")
        right = {"authorization": "Bearer right-0123456789"}
        assert httpx.post(address + CHAT, json=chat(), headers=right).status_code == 200
        assert httpx.get(f"{address}/health").status_code == 200


def test_keys_come_from_a_file_and_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[ann]\nkey = "ann-0123456789abc"\nnamespaces = ["a"]\n[bo]\nkey = "bo-0123456789abcd"\n')
    monkeypatch.setenv("GROUNDSPEED_API_KEYS", "env-0123456789abc, other-0123456789ab")
    keys = Keys.load(file)
    assert len(keys) == 4
    ann, bo, some = (keys.find(k) for k in ("ann-0123456789abc", "bo-0123456789abcd", "other-0123456789ab"))
    assert ann == Caller("ann", frozenset({"a"}))
    assert bo is not None
    assert not bo.sees("a")
    assert some is not None
    assert some.sees("anything")
    assert keys.find("ann-0123456789abd") is None
    assert "0123456789" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not TOML"),
        ('secret-0123456789 = "x"', "another form"),
        ('[a]\nkey = "short"', "16 or more"),
        ('[a]\nkey = "ééééééééééééééééé"', "of ASCII"),
        ('[a]\nkey = "same-0123456789a"\n[b]\nkey = "same-0123456789a"', "the same key"),
        ("", "no caller"),
    ],
)
def test_a_file_of_keys_that_is_wrong_is_refused(tmp_path: Any, text: str, message: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        Keys.load(tmp_path / "keys.toml")


def test_pages_of_other_origins_may_call_only_where_that_is_wanted(address: str) -> None:
    asking = {"origin": "http://elsewhere", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(address + CHAT, headers=asking).headers
    with serving(tiny_engine(), Settings(cors_origins=("http://elsewhere",))) as other:
        reply = httpx.options(other + CHAT, headers=asking)
        assert reply.headers["access-control-allow-origin"] == "http://elsewhere"


@pytest.mark.parametrize("log_prompts", [False, True])
def test_the_log_holds_prompts_only_where_that_is_wanted(caplog: Any, log_prompts: bool) -> None:
    with caplog.at_level(logging.INFO), serving(tiny_engine(), Settings(log_prompts=log_prompts)) as address:
        answer = httpx.post(address + CHAT, json=chat("confidential", seed=1)).json()
        httpx.post(address + CHAT, json=chat("confidential", temperature=9))
    lines = [json.loads(JsonLines(with_messages=log_prompts).format(record)) for record in caplog.records]
    told = [line for line in lines if line["message"] == "request"]
    assert [(line["route"], line["status"]) for line in told] == [(CHAT, 200), (CHAT, 400)]
    assert (told[0]["completion_tokens"], told[0]["answers"]) == (8, 1)
    assert ("confidential" in json.dumps(lines)) == log_prompts
    if log_prompts:
        assert told[0]["texts"] == {"0": answer["choices"][0]["message"]["content"]}


def test_the_log_tells_an_exceptions_message_only_where_that_is_wanted() -> None:
    try:
        raise ValueError("words of a prompt")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "x", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    assert json.loads(JsonLines(with_messages=False).format(record))["error"] == "ValueError"
    assert (
        json.loads(JsonLines(with_messages=True).format(record))["error"] == "ValueError: words of a prompt"
    )


def test_metrics_count_what_was_done() -> None:
    def figures() -> dict[str, float]:
        lines = httpx.get(f"{address}/metrics").text.splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    with serving(tiny_engine()) as address:
        reply = httpx.post(address + CHAT, json=chat(max_tokens=40, n=2, seed=1)).json()
        httpx.post(address + CHAT, json=chat(max_tokens=0))
        told = figures()
    facts = [choice["groundspeed"] for choice in reply["choices"]]
    assert told[f'groundspeed_requests_total{{route="{CHAT}",status="200"}}'] == 1
    assert told[f'groundspeed_requests_total{{route="{CHAT}",status="400"}}'] == 1
    assert told["groundspeed_completion_tokens_total"] == 80
    assert told["groundspeed_steps_total"] == sum(one["steps"] for one in facts)
    assert told["groundspeed_drafted_tokens_total"] == sum(one["drafted"] for one in facts)
    accepted = sum(
        value for name, value in told.items() if name.startswith("groundspeed_accepted_tokens_total")
    )
    assert accepted == sum(one["accepted"] for one in facts)
    assert told["groundspeed_time_to_first_token_seconds_count"] == 2
    assert told["groundspeed_inter_token_seconds_count"] == 78
    assert told['groundspeed_answers_total{reason="length"}'] == 2
    assert 0 < told["groundspeed_kv_cache_bytes"] <= told["groundspeed_kv_cache_limit_bytes"]
    assert (told["groundspeed_batch_size"], told["groundspeed_queue_length"]) == (0, 0)


def test_a_server_whose_engine_has_failed_is_neither_healthy_nor_ready() -> None:
    engine = tiny_engine()
    with serving(engine) as address:
        assert (
            httpx.get(f"{address}/health").json() == httpx.get(f"{address}/ready").json() == {"status": "ok"}
        )
        engine.close()
        for route in ("health", "ready"):
            reply = httpx.get(f"{address}/{route}")
            assert (reply.status_code, error_of(reply)["code"]) == (503, "engine_failed")
