"""``/v1/answers`` and the page over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from helpers.drafters import RandomTrees
from helpers.serving import tiny_engine

from groundspeed.integrations.pipeline import RagPipeline
from groundspeed.integrations.server.app import create_app
from groundspeed.integrations.server.settings import Settings
from groundspeed.integrations.view import whole_answer
from groundspeed.integrations.view.html import CONTENT_SECURITY_POLICY, PAGE_FILES, page_file
from groundspeed.types import Passage
from groundspeed.verify.engine import Engine

PASSAGES = (
    Passage("alpha.md", "The cache is compacted in place.", 10, 0.5, {"title": "Alpha"}),
    Passage("beta.md", "A tree holds what may follow.", 0, 0.25),
)
QUESTION = {"question": "Why? 🌉", "k": 2, "max_tokens": 24}


class Finds:
    """Finds the same passages whatever the question."""

    def search(self, question: str, *, k: int, mode: str) -> list[Passage]:
        return list(PASSAGES[:k])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine() as made:
        yield made


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    pipeline = RagPipeline(engine, Finds())  # type: ignore[arg-type]
    request, _ = pipeline.request(QUESTION["question"], PASSAGES, max_tokens=24, speculate=False)
    right = engine.generate(request).token_ids
    engine.drafter = lambda: RandomTrees(right)
    app = create_app(engine, Settings(model="tiny"), pipeline=pipeline)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def streamed(client: TestClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post("/v1/answers", json={**body, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last, rest = response.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    stats = {name: value for name, value in answer["stats"].items() if not name.endswith(("_s", "second"))}
    kept = {name: value for name, value in answer.items() if name not in ("at_s", "steps")}
    return {**kept, "stats": {**stats, "cached_tokens": 0, "drafted": 0, "accepted": 0, "steps": 0}}


def test_an_answer_is_the_engines_with_its_passages(client: TestClient, engine: Engine) -> None:
    answer = client.post("/v1/answers", json=QUESTION).json()
    pipeline = RagPipeline(engine, Finds())  # type: ignore[arg-type]
    request, _ = pipeline.request(QUESTION["question"], PASSAGES, max_tokens=24, speculate=False)
    assert answer["text"] == engine.generate(request).text
    assert [one["document_id"] for one in answer["passages"]] == ["alpha.md", "beta.md"]
    assert answer["passages"][0]["metadata"] == {"title": "Alpha"}
    assert (answer["model"], answer["speculate"], answer["question"]) == ("tiny", True, "Why? 🌉")
    assert answer["stats"]["drafted"] > 0
    assert "steps" not in answer


def test_a_stream_is_the_same_answer_in_pieces(client: TestClient) -> None:
    records = streamed(client, {**QUESTION, "trace": True})
    types = [record["type"] for record in records]
    assert types[:3] == ["question", "retrieval", "prefill"]
    assert types[-1] == "result"
    assert set(types[3:-1]) <= {"prefill", "step"}
    whole = whole_answer(records)
    assert "".join(token["text"] for step in whole["steps"] for token in step["tokens"]) == whole["text"]
    plain = client.post("/v1/answers", json=QUESTION).json()
    assert {**without_times(whole), "stats": 0} == {**without_times(plain), "stats": 0}
    assert whole["stats"].keys() == plain["stats"].keys()


def test_a_trace_comes_only_where_it_is_asked_for(client: TestClient) -> None:
    steps = client.post("/v1/answers", json={**QUESTION, "trace": True}).json()["steps"]
    assert all(
        sum(branch["nodes"] for branch in step["rejected"]) == step["drafted"] - step["accepted"]
        for step in steps
    )
    assert any(step["rejected"] for step in steps)
    assert not any("rejected" in record for record in streamed(client, QUESTION))


def test_without_speculation_the_text_is_the_same(client: TestClient) -> None:
    plain = client.post("/v1/answers", json={**QUESTION, "speculate": False}).json()
    drafted = client.post("/v1/answers", json=QUESTION).json()
    assert plain["text"] == drafted["text"]
    assert (plain["speculate"], plain["stats"]["drafted"]) == (False, 0)
    assert plain["stats"]["steps"] > drafted["stats"]["steps"]


def test_one_seed_gives_one_text_and_an_answer_without_one_names_its_own(client: TestClient) -> None:
    drawn = client.post("/v1/answers", json={**QUESTION, "temperature": 1.0}).json()
    again = {**QUESTION, "temperature": 1.0, "seed": drawn["seed"], "speculate": False}
    assert client.post("/v1/answers", json=again).json()["text"] == drawn["text"]
    assert client.post("/v1/answers", json=QUESTION).json()["seed"] is None


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"question": ""}, 400),
        ({"k": 0}, 400),
        ({"mode": "telepathy"}, 400),
        ({"unknown": 1}, 400),
        ({"max_tokens": 0}, 400),
        ({"question": "\ud800"}, 400),
        ({"model": "other"}, 404),
        ({"namespace": "elsewhere"}, 404),
        ({"namespace": "../corpus"}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_is_refused_before_a_stream_begins(
    client: TestClient, change: dict[str, Any], status: int, stream: bool
) -> None:
    body = json.dumps({**QUESTION, "stream": stream, **change})
    response = client.post("/v1/answers", content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_the_page_is_served_with_its_policy_and_nothing_else_of_its_folder(client: TestClient) -> None:
    page = client.get("/")
    assert page.text == page_file("index.html")
    for name, kind in PAGE_FILES.items():
        file = client.get(f"/page/{name}")
        assert file.text == page_file(name)
        assert file.headers["content-type"].startswith(kind)
        for response in (page, file):
            assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
            assert response.headers["x-content-type-options"] == "nosniff"
    for name in ("__init__.py", "..%2fhtml.py", "%2e%2e/record.py", "nothing.js"):
        assert client.get(f"/page/{name}").status_code == 404
