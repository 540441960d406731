"""Replicas on a local Ray cluster beside the plain engine of the same model."""

from __future__ import annotations

import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.families import tiny_parts
from helpers.serving import error_of
from pydantic import ValidationError

from groundspeed.datastores.documents import DocumentStore
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError
from groundspeed.integrations.ray_serve import ReplicaOptions, groundspeed_app
from groundspeed.retrieval.updating import LiveStore
from groundspeed.types import Document, GenerationRequest
from groundspeed.verify.engine import Engine

pytest.importorskip("ray.serve", reason="Ray Serve is not installed; `make test-ray` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own warnings are many

ADDRESS = "http://127.0.0.1:18432"
COMPLETIONS = f"{ADDRESS}/v1/completions"
PROMPTS = [f"prompt number {number}" for number in range(8)]


class Even:
    """Embeds all texts alike."""

    name = "even"
    dimension = 2

    def embed(self, texts: Any, progress: Any = None) -> Any:
        return np.full((len(texts), 2), 0.5**0.5, np.float32)

    def embed_query(self, text: str) -> Any:
        return self.embed([text])[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a token datastore and a document store."""
    folder = tmp_path_factory.mktemp("shared")
    for part in tiny_parts():
        part.save_pretrained(folder / "model")
    with TokenDatastoreWriter.open(folder / "tokens", TokenizerFingerprint.of(tiny_parts()[1])):
        pass
    LiveStore(DocumentStore(folder / "store"), Even()).upsert([Document("one", "The first.")])
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Callable[[int], dict[str, str]]]:
    """What the engine answers to the prompts without replicas and without drafts, by number of tokens."""
    with Engine.from_pretrained(str(folder / "model"), dtype="float32") as engine:

        @cache
        def answers(tokens: int) -> dict[str, str]:
            requests = [GenerationRequest(prompt, max_tokens=tokens, speculate=False) for prompt in PROMPTS]
            results = engine.generate_all(requests)
            return {prompt: result.text for prompt, result in zip(PROMPTS, results, strict=True)}

        yield answers


def options(folder: Path, **more: Any) -> ReplicaOptions:
    return ReplicaOptions(
        model=str(folder / "model"),
        name="tiny",
        dtype="float32",
        datastore=folder / "tokens",
        store=folder / "store",
        deployment={"health_check_period_s": 1.0, "ray_actor_options": {"num_cpus": 0.5}},
        **{"num_replicas": 2, **more},
    )


@pytest.fixture(scope="module", autouse=True)
def cluster(folder: Path) -> Iterator[None]:
    import ray
    from ray import serve

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they write to whatever stderr was at first
    serve.start(http_options={"host": "127.0.0.1", "port": 18432})
    serve.run(groundspeed_app(options(folder)))
    yield
    serve.shutdown()
    ray.shutdown()


def replicas() -> dict[str, Any]:
    """The actors of the replicas, by name."""
    import ray

    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    mine = [name for name in names if name.startswith("SERVE_REPLICA::default#groundspeed")]
    return {name: ray.get_actor(name, namespace="serve") for name in mine}


def in_flight(*actors: Any) -> int:
    import ray

    return sum(ray.get([actor.get_num_ongoing_requests.remote() for actor in actors]))


def eventually(check: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not check():
        assert time.monotonic() < limit, "it did not come to be in time"
        time.sleep(0.1)


def all_run(count: int = 2) -> bool:
    from ray import serve

    (status,) = serve.status().applications["default"].deployments.values()
    return status.replica_states == {"RUNNING": count} and len(replicas()) == count


def ask(prompt: str, tokens: int = 60, **more: Any) -> Any:
    """The reply; None where it was lost on the way."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0} | more
    try:
        reply = httpx.post(COMPLETIONS, json=body, timeout=120)
    except httpx.TransportError:
        return None
    return reply.json() if reply.status_code == 200 else None


def texts(prompts: Sequence[str], replies: Sequence[Any]) -> dict[str, str]:
    pairs = zip(prompts, replies, strict=True)
    return {prompt: reply["choices"][0]["text"] for prompt, reply in pairs if reply is not None}


def test_answers_are_those_of_the_plain_engine(plain: Callable[[int], dict[str, str]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert texts(PROMPTS, list(pool.map(ask, PROMPTS))) == plain(60)


def test_a_seed_gives_one_text_on_all_replicas() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = [pool.submit(ask, PROMPTS[0], temperature=1, seed=7) for _ in range(8)]
        assert len({one.result()["choices"][0]["text"] for one in drawn}) == 1


def test_answers_stream_as_they_are_made(plain: Callable[[int], dict[str, str]]) -> None:
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 1500, "temperature": 0, "stream": True}
    busy, pieces = [], []
    with httpx.stream("POST", COMPLETIONS, json={**body, "speculate": False}, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                if len(pieces) == 1:
                    busy.append(in_flight(*replicas().values()))
    assert busy == [1], "the first piece came when the answer was over"
    assert "".join(pieces) == plain(1500)[PROMPTS[0]]


def test_replicas_draft_from_what_a_writer_adds(folder: Path) -> None:
    prompt = "what is written meanwhile"
    first = ask(prompt)["choices"][0]
    tokenizer = tiny_parts()[1]

    def drafted() -> bool:
        """Whether it was; an engine leaves drafting alone for a while where it did not pay."""
        choice = ask(prompt)["choices"][0]
        assert choice["text"] == first["text"]
        return bool(choice["groundspeed"]["accepted_by_source"].get("datastore"))

    assert not drafted()
    with TokenDatastoreWriter.open(folder / "tokens", TokenizerFingerprint.of(tokenizer)) as writer:
        writer.append("corpus", "answer", tokenizer(prompt + first["text"])["input_ids"])
        eventually(drafted)


def test_replicas_read_the_store_and_leave_it_to_its_writer(folder: Path) -> None:
    documents = f"{ADDRESS}/v1/namespaces/corpus/documents"
    assert [one["id"] for one in httpx.get(documents).json()["data"]] == ["one"]
    reply = httpx.post(documents, json={"documents": [{"id": "two", "text": "The second."}]})
    assert (reply.status_code, error_of(reply)["code"]) == (403, "store_read_only")
    assert httpx.delete(f"{documents}/one").status_code == 403
    LiveStore(DocumentStore(folder / "store"), Even()).upsert([Document("three", "The third.")])
    for _ in range(4):
        assert [one["id"] for one in httpx.get(documents).json()["data"]] == ["one", "three"]


def test_a_killed_replica_loses_only_the_answers_in_flight_there(
    plain: Callable[[int], dict[str, str]],
) -> None:
    import ray

    before = replicas()
    victim = next(iter(before.values()))
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(ask, prompt, 1500, speculate=False) for prompt in PROMPTS]
        eventually(lambda: in_flight(*before.values()) == len(PROMPTS))
        lost = in_flight(victim)
        ray.kill(victim)
        new = [pool.submit(ask, prompt) for prompt in PROMPTS]
        assert texts(PROMPTS, [one.result() for one in new]) == plain(60), "a new request was lost"
        kept = texts(PROMPTS, [one.result() for one in running])
    assert 0 < lost < len(PROMPTS)
    assert len(kept) == len(PROMPTS) - lost
    assert kept.items() <= plain(1500).items()
    eventually(all_run)
    assert len(replicas().keys() - before.keys()) == 1


def test_a_replica_whose_engine_has_died_is_replaced(plain: Callable[[int], dict[str, str]]) -> None:
    import ray

    def break_engine(actor: Any) -> None:
        engine = actor._replica_impl._user_callable_wrapper._callable._engine

        def die() -> None:
            raise SystemExit

        engine.scheduler._turn = die

    before = replicas()
    name, victim = next(iter(before.items()))
    ray.get(victim.__ray_call__.remote(break_engine))
    with ThreadPoolExecutor(8) as pool:  # until one of them reaches the engine, nothing is wrong with it
        list(pool.map(ask, PROMPTS))
    eventually(lambda: all_run() and name not in replicas())
    with ThreadPoolExecutor(8) as pool:
        assert texts(PROMPTS, list(pool.map(ask, PROMPTS))) == plain(60)


def test_replicas_that_are_stopped_finish_their_answers(
    folder: Path, plain: Callable[[int], dict[str, str]]
) -> None:
    from ray import serve

    before = replicas()
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask, prompt, 1500, speculate=False) for prompt in PROMPTS]
        eventually(lambda: all(in_flight(actor) for actor in before.values()))
        serve.run(groundspeed_app(options(folder, num_replicas=1)))
        assert texts(PROMPTS, [one.result() for one in running]) == plain(1500)
    eventually(lambda: all_run(1) and not replicas().keys() & before.keys())
    assert texts(PROMPTS[:1], [ask(PROMPTS[0])]).items() <= plain(60).items()


def test_a_deployment_that_ray_serve_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="nonsense"):
        groundspeed_app(ReplicaOptions(deployment={"nonsense": 1}))


def test_words_of_a_shell_become_options() -> None:
    """``serve run`` gives a dict of strings to the class of the builder's parameter."""
    (parameter,) = inspect.signature(groundspeed_app).parameters.values()
    words = {"store": "my-store", "num_replicas": "2", "max_active": "8", "log_prompts": "true"}
    made = parameter.annotation.model_validate(words)
    assert made == ReplicaOptions(store=Path("my-store"), num_replicas=2, max_active=8, log_prompts=True)
    assert parameter.annotation.model_validate({"num_replicas": "auto"}).num_replicas == "auto"
    with pytest.raises(ValidationError, match="stroe"):
        parameter.annotation.model_validate({"stroe": "my-store"})
