"""The store over HTTP: namespaces, documents, and whose they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.serving import Letters, serving, tiny_engine

from groundspeed.datastores.documents import DocumentStore
from groundspeed.integrations.server.errors import ApiError
from groundspeed.integrations.server.keys import Caller, Keys
from groundspeed.integrations.server.settings import Settings
from groundspeed.integrations.server.stores import Stores
from groundspeed.retrieval.index import index_corpus
from groundspeed.retrieval.retriever import Retriever
from groundspeed.types import Document

ANN, BO = {"authorization": "Bearer ann-0123456789abc"}, {"authorization": "Bearer bo-0123456789abcd"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores") / "store"


@pytest.fixture(scope="module")
def asking(folder: Path) -> Iterator[httpx.Client]:
    """Asks as Ann, who sees the namespaces ``corpus``, ``a`` and ``b``; Bo sees ``c`` alone."""
    keys = Keys(
        {
            "ann-0123456789abc": Caller("ann", frozenset({"corpus", "a", "b"})),
            "bo-0123456789abcd": Caller("bo", frozenset({"c"})),
        }
    )
    settings = Settings(store=folder, keys=keys, embedding_model=Letters())
    with (
        serving(tiny_engine(), settings) as address,
        httpx.Client(base_url=f"{address}/v1/namespaces", headers=ANN) as client,
    ):
        yield client


def everything(asking: httpx.Client, **how: Any) -> httpx.Response:
    return asking.get(str(asking.base_url).rstrip("/"), **how)


def put(asking: httpx.Client, namespace: str, *documents: dict[str, Any], **how: Any) -> httpx.Response:
    return asking.post(f"/{namespace}/documents", json={"documents": list(documents)}, **how)


def ids(asking: httpx.Client, namespace: str, **params: Any) -> list[str]:
    return [one["id"] for one in asking.get(f"/{namespace}/documents", params=params).json()["data"]]


def test_documents_are_added_read_and_deleted(asking: httpx.Client, folder: Path) -> None:
    reply = put(
        asking, "a", {"id": "x/one.md", "text": "The cat sat.", "metadata": {"n": 1}}, {"text": "A dog."}
    )
    assert reply.status_code == 200
    assert (reply.json()["documents"], reply.json()["ids"][0]) == (2, "x/one.md")
    assert asking.get("/a/documents/x/one.md").json() == {
        "id": "x/one.md",
        "object": "document",
        "characters": 12,
        "metadata": {"n": 1},
        "text": "The cat sat.",
    }
    kept = DocumentStore(folder / "namespaces" / "a").read()
    assert [stored.document.text for stored in kept.documents] == ["The cat sat.", "A dog."]
    assert asking.delete("/a/documents/x/one.md").json()["deleted"] is True
    assert asking.get("/a/documents/x/one.md").status_code == 404
    assert asking.delete("/a/documents/x/one.md").status_code == 404
    assert len(ids(asking, "a")) == 1


def test_a_document_takes_the_place_of_one_with_its_id(asking: httpx.Client) -> None:
    put(asking, "b", {"id": "d", "text": "old"})
    assert put(asking, "b", {"id": "d", "text": "new"}).json()["documents"] == 1
    assert asking.get("/b/documents/d").json()["text"] == "new"


def test_long_documents_are_cut_as_an_indexed_corpus_is(asking: httpx.Client) -> None:
    text = " ".join(f"Sentence number {i} is here." for i in range(200))
    before = asking.get("/b").json()["chunks"] if asking.get("/b").status_code == 200 else 0
    assert put(asking, "b", {"id": "long", "text": text}).json()["chunks"] > before + 3
    asking.delete("/b/documents/long")


def test_a_list_goes_on_behind_a_document(asking: httpx.Client) -> None:
    put(asking, "a", *({"id": f"p{i}", "text": f"page {i}"} for i in range(5)))
    first = asking.get("/a/documents", params={"limit": 3}).json()
    assert first["has_more"]
    assert "text" not in first["data"][0]
    rest = ids(asking, "a", limit=1000, after=first["data"][-1]["id"])
    assert [*(one["id"] for one in first["data"]), *rest] == ids(asking, "a")
    assert asking.get("/a/documents", params={"after": "nobody"}).status_code == 400


def test_each_key_sees_its_own_namespaces(asking: httpx.Client) -> None:
    put(asking, "a", {"id": "mine", "text": "x"})
    assert put(asking, "c", {"id": "his", "text": "x"}, headers=BO).status_code == 200
    seen = [one["id"] for one in everything(asking, headers=BO).json()["data"]]
    assert seen == ["c"]
    assert "c" not in [one["id"] for one in everything(asking).json()["data"]]
    for method, path in (
        ("GET", "/c"), ("DELETE", "/c"), ("GET", "/c/documents"), ("GET", "/c/documents/his"),
        ("DELETE", "/c/documents/his"), ("GET", "/never-was"),
    ):  # fmt: skip
        reply = asking.request(method, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "namespace_forbidden")
    assert put(asking, "c", {"id": "mine", "text": "x"}).status_code == 403
    assert asking.get("/c/documents", headers=BO).json()["data"][0]["id"] == "his"


def test_a_namespace_is_removed_with_its_documents(asking: httpx.Client, folder: Path) -> None:
    put(asking, "b", {"text": "x"})
    assert asking.delete("/b").json() == {"id": "b", "object": "namespace", "deleted": True}
    assert not (folder / "namespaces" / "b").exists()
    assert asking.delete("/b").status_code == asking.get("/b/documents").status_code == 404


def test_the_corpus_may_come_after_other_namespaces_and_goes_without_them(
    asking: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    put(asking, "a", {"id": "stays", "text": "x"})
    (tmp_path / "file.txt").write_text("what was indexed")
    index_corpus([tmp_path], folder, embedder=Letters())
    assert ids(asking, "corpus") == ["file.txt"]
    assert put(asking, "corpus", {"id": "added", "text": "over HTTP"}).json()["documents"] == 2
    assert asking.delete("/corpus").status_code == 200
    assert "stays" in ids(asking, "a")


def test_what_another_process_writes_is_seen(asking: httpx.Client, folder: Path) -> None:
    put(asking, "a", {"id": "first", "text": "x"})
    another = Stores(folder, Letters())
    another.upsert("a", [Document("second", "y")])
    assert "second" in ids(asking, "a")
    another.delete("a", ["second"])
    assert "second" not in ids(asking, "a")


def test_a_store_that_is_made_anew_is_read_anew(asking: httpx.Client, folder: Path) -> None:
    put(asking, "b", {"id": "old", "text": "x"})
    Stores(folder, Letters()).remove("b")
    Stores(folder, Letters()).upsert("b", [Document("new", "x")])
    assert ids(asking, "b") == ["new"]


def test_a_store_that_is_deleted_or_damaged_is_an_error_and_the_server_lives(
    asking: httpx.Client, folder: Path
) -> None:
    put(asking, "b", {"id": "d", "text": "x"})
    shutil.rmtree(folder / "namespaces" / "b")
    reply = asking.get("/b/documents")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "namespace_not_found")
    put(asking, "b", {"id": "d", "text": "x"})
    (folder / "namespaces" / "b" / "header.json").write_text("nonsense")
    for reply in (asking.get("/b/documents"), put(asking, "b", {"id": "e", "text": "y"}), everything(asking)):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
    shutil.rmtree(folder / "namespaces" / "b")
    assert put(asking, "b", {"id": "d", "text": "x"}).status_code == 200


@pytest.mark.parametrize("name", ["..", ".hidden", "a b", "é", "x" * 65, "-a"])
def test_a_name_that_is_no_folder_is_refused(asking: httpx.Client, name: str) -> None:
    assert put(asking, name, {"text": "x"}).status_code in (400, 404, 405)


@pytest.mark.parametrize(
    "document", [{"text": ""}, {"id": "", "text": "x"}, {"text": 3}, {"text": "x", "other": 1}, {"id": "x"}]
)
def test_a_document_that_is_none_is_refused(asking: httpx.Client, document: dict[str, Any]) -> None:
    assert put(asking, "a", {"id": "not-kept", "text": "x"}, document).status_code == 400
    assert "not-kept" not in ids(asking, "a")


def test_a_server_without_a_store_says_so(address: str) -> None:
    reply = httpx.post(f"{address}/v1/namespaces/a/documents", json={"documents": [{"text": "x"}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_store")
    assert httpx.get(f"{address}/v1/namespaces").json()["data"] == []


def test_a_search_finds_what_was_just_added(tmp_path: Path) -> None:
    stores = Stores(tmp_path / "s", Letters())
    stores.upsert("a", [Document("cats", "purring cats"), Document("dogs", "barking dogs")])
    assert isinstance(stores.retriever("a"), Retriever)
    assert stores.retriever("a").search("cats", k=1)[0].document_id == "cats"
    assert stores.retriever("a") is stores.retriever("a")
    stores.delete("a", ["cats"])
    assert stores.retriever("a").search("cats", k=1)[0].document_id == "dogs"


def test_a_store_that_is_only_read_is_changed_by_others_alone(tmp_path: Path) -> None:
    writer, reader = Stores(tmp_path / "s", Letters()), Stores(tmp_path / "s", Letters(), read_only=True)
    writer.upsert("a", [Document("cats", "purring cats")])
    for change in (
        lambda: reader.upsert("a", [Document("dogs", "barking dogs")]),
        lambda: reader.delete("a", ["cats"]),
        lambda: reader.remove("a"),
    ):
        with pytest.raises(ApiError) as refused:
            change()
        assert (refused.value.status_code, refused.value.facts.code) == (403, "store_read_only")
    assert [one.document.id for one in reader.live("a").contents().documents] == ["cats"]
    writer.upsert("a", [Document("dogs", "barking dogs")])
    assert reader.retriever("a").search("dogs", k=1)[0].document_id == "dogs"
