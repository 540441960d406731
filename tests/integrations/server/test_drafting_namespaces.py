"""What is added over HTTP is drafted from, by those who may see it, until it is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.serving import Letters, chat, serving, tiny_engine
from typer.testing import CliRunner

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.blend import Blend, BlendDrafter
from groundspeed.integrations.cli.app import app
from groundspeed.integrations.server.keys import Caller, Keys
from groundspeed.integrations.server.settings import Settings
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest, Source
from groundspeed.verify.engine import Engine

ANN, BO, ALL = ({"authorization": f"Bearer {name}-0123456789abcdef"} for name in ("ann", "bo", "all"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafting")


@pytest.fixture(scope="module")
def fingerprint(engine: Engine) -> TokenizerFingerprint:
    return TokenizerFingerprint.of(engine.tokenizer)


@pytest.fixture(scope="module")
def asking(folder: Path, fingerprint: TokenizerFingerprint) -> Iterator[httpx.Client]:
    """Ann sees ``a`` alone, Bo ``b`` and ``c``, and one key all; another writer may come when it is over."""
    tokens = folder / "tokens"
    TokenDatastoreWriter.open(tokens, fingerprint).close()
    callers = (
        (ANN, Caller("ann", frozenset("a"))), (BO, Caller("bo", frozenset("bc"))), (ALL, Caller("all")),
    )  # fmt: skip
    keys = Keys({head["authorization"].removeprefix("Bearer "): caller for head, caller in callers})
    settings = Settings(store=folder / "store", datastore=tokens, keys=keys, embedding_model=Letters())
    with TokenDatastore.open(tokens, fingerprint) as datastore:
        engine = tiny_engine(drafter=Blend(datastore))
        with (
            serving(engine, settings) as address,
            httpx.Client(base_url=f"{address}/v1", timeout=60) as client,
        ):
            yield client
    TokenDatastoreWriter.open(tokens, fingerprint).close()


@pytest.fixture
def drafted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sources of all that was drafted since it was last cleared."""
    seen: list[int] = []
    propose = BlendDrafter.propose

    def watched(drafter: BlendDrafter, budget: int) -> DraftTree:
        tree = propose(drafter, budget)
        seen.extend(tree.source.tolist())
        return tree

    monkeypatch.setattr(BlendDrafter, "propose", watched)
    return seen


@pytest.fixture(scope="module")
def said(engine: Engine) -> str:
    """What the model says to ``chat()``."""
    prompt = TurnPrompt(engine.tokenizer).ids([{"role": "user", "content": "hello"}])
    return engine.generate(GenerationRequest(prompt, max_tokens=60)).text


def add(asking: httpx.Client, namespace: str, text: str, head: Any, name: str = "d") -> None:
    reply = asking.post(
        f"/namespaces/{namespace}/documents", json={"documents": [{"id": name, "text": text}]}, headers=head
    )
    assert reply.status_code == 200, reply.text


def answer(asking: httpx.Client, head: Any) -> dict[str, Any]:
    body = chat(temperature=0, max_tokens=60)
    choice: dict[str, Any] = asking.post("/chat/completions", json=body, headers=head).json()["choices"][0]
    return choice


def test_a_document_is_drafted_from_by_its_owner_and_by_no_other_until_it_is_deleted(
    asking: httpx.Client, said: str, drafted: list[int]
) -> None:
    answer(asking, ANN)
    assert Source.DATASTORE not in drafted
    add(asking, "a", f"before {said}", ANN)
    for head, may in ((ANN, True), (BO, False), (ALL, True)):
        drafted.clear()
        choice = answer(asking, head)
        assert choice["message"]["content"] == said
        assert (Source.DATASTORE in drafted) == may
        assert (choice["groundspeed"]["accepted_by_source"].get("datastore", 0) > 0) == may
    assert asking.delete("/namespaces/a/documents/d", headers=ANN).status_code == 200
    for head in (ANN, ALL):
        drafted.clear()
        answer(asking, head)
        assert drafted
        assert Source.DATASTORE not in drafted


def test_every_route_drafts_from_the_callers_namespaces_alone(
    asking: httpx.Client, said: str, drafted: list[int]
) -> None:
    add(asking, "c", said, BO)
    add(asking, "a", "a question about nothing", ANN, "q")
    asked = (
        ("/completions", {"model": "tiny", "prompt": said[:20], "temperature": 0}),
        ("/chat/completions", chat(temperature=0, stream=True)),
        ("/answers", {"question": said[:20], "namespace": "a", "max_tokens": 16}),
    )
    for path, body in asked:
        for head in (ANN, ALL):
            drafted.clear()
            reply = asking.post(path, json=body, headers=head)
            assert reply.status_code == 200
            assert (Source.DATASTORE in drafted) <= (head is ALL)
    asking.delete("/namespaces/c", headers=BO)


def test_what_takes_a_documents_place_is_kept_and_a_namespace_goes_with_all_of_its_own(
    asking: httpx.Client, folder: Path, said: str, drafted: list[int]
) -> None:
    def tokens() -> int:
        with TokenDatastore.open(folder / "tokens") as datastore:
            stats = datastore.stats()
        return stats["b"].tokens if "b" in stats else 0

    add(asking, "b", said, BO)
    assert tokens() == len(said.encode())
    add(asking, "b", "quite another text", BO)
    assert tokens() == len("quite another text")
    add(asking, "b", said, BO, "e")
    assert tokens() == len("quite another text") + len(said.encode())
    assert asking.delete("/namespaces/b", headers=BO).status_code == 200
    assert tokens() == 0
    answer(asking, BO)
    assert Source.DATASTORE not in drafted


@pytest.mark.parametrize(
    ("namespaces", "may"), [(None, True), ((), False), (("corpus", "x"), True), (("x",), False)]
)
def test_a_request_narrows_what_the_drafter_sees_and_never_widens_it(
    namespaces: Any,
    may: bool,
    engine: Engine,
    tmp_path: Path,
    fingerprint: TokenizerFingerprint,
    drafted: list[int],
) -> None:
    request = GenerationRequest(tuple(range(50, 80)), max_tokens=8)
    answer = engine.generate(request).token_ids
    with TokenDatastoreWriter.open(tmp_path / "tokens", fingerprint, background=False) as writer:
        for namespace in ("corpus", "x"):
            writer.append(namespace, "d", answer)
        with tiny_engine(drafter=Blend(writer, namespaces=["corpus", "more"])) as one:
            drafted.clear()
            assert one.generate(replace(request, namespaces=namespaces)).token_ids == answer
    assert drafted
    assert (Source.DATASTORE in drafted) == may


def test_the_command_makes_the_datastore_and_hands_over_the_draft_model(
    tmp_path: Path, fingerprint: TokenizerFingerprint, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.tokenizer.save_pretrained(tmp_path / "model")
    loaded: list[dict[str, Any]] = []
    served: list[Any] = []

    def load(name: str, **how: Any) -> Any:
        loaded.append({"name": name, **how})
        return tiny_engine()

    class Server:
        def run(self) -> None:
            pass

    monkeypatch.setattr(Engine, "from_pretrained", load)
    monkeypatch.setattr("groundspeed.integrations.server.run.write_log", lambda **how: None)
    monkeypatch.setattr(
        "groundspeed.integrations.server.run.make_server", lambda app, *where: served.append(app) or Server()
    )
    options = ["--model", str(tmp_path / "model"), "--draft-model", "small", "--bridge-tokenizers"]
    stores = ["--store", str(tmp_path / "store"), "--datastore", str(tmp_path / "tokens")]
    result = CliRunner().invoke(app, ["serve", *options, *stores])
    assert result.exit_code == 0, result.output
    (how,) = loaded
    assert (how["draft_model"], how["bridge_tokenizers"]) == ("small", True)
    assert how["datastore"] == tmp_path / "tokens"
    assert TokenDatastore.open(tmp_path / "tokens").tokenizer.same_ids(fingerprint)
    (application,) = served
    assert application.state.serving.settings.datastore == tmp_path / "tokens"
