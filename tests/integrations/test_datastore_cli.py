from __future__ import annotations

import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from helpers.datastores import SMALL, contents_of
from typer.testing import CliRunner, Result

from groundspeed.datastores.building import BuildReport, build
from groundspeed.datastores.documents import Chunking, DocumentStore, Postings, StoreContents, StoredDocument
from groundspeed.datastores.parts import Addition
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError
from groundspeed.integrations.cli.app import app
from groundspeed.integrations.tokenizing import CORPUS, TOKENS, index_tokens
from groundspeed.types import Document
from groundspeed.verify.loading import load_tokenizer


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["datastore", *map(str, arguments)])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"the text of document {number} ends here")
    return folder


def test_a_store_is_built_asked_changed_and_merged(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path
) -> None:
    store = tmp_path / "store"
    built = run("build", corpus, "--store", store, "--tokenizer", tokenizer_folder, "--json")
    assert json.loads(built.stdout)["documents"] == 12
    asked = json.loads(run("query", "of document 1", "--store", store, "--json").stdout)
    assert asked["longest"] == len("of document 1")
    rows = [row for row in asked["continuations"] if row["length"] == asked["longest"]]
    exact = {row["text"]: row["count"] for row in rows}
    assert exact == {" ": 1, "0": 1, "1": 1}
    (corpus / "1.txt").write_text("the text of document 1 is new")
    assert run("add", corpus / "1.txt", "--store", store).exit_code == 0
    assert run("delete", "2.txt", "--store", store).exit_code == 0
    assert run("delete", "2.txt", "--store", store).exit_code == 1
    assert run("merge", "--store", store).exit_code == 0
    held = json.loads(run("stats", "--store", store, "--json").stdout)["namespaces"]["corpus"]
    assert (held["documents"], held["segments"], held["deleted_tokens"]) == (11, 1, 0)
    asked = json.loads(run("query", "of document 1 is", "--store", store, "--json").stdout)
    assert asked["continuations"][0]["document"] == "1.txt"


def test_verify_exits_0_only_on_a_sound_store(tmp_path: Path, corpus: Path, tokenizer_folder: Path) -> None:
    store = tmp_path / "store"
    run("build", corpus, "--store", store, "--tokenizer", tokenizer_folder)
    assert run("verify", "--store", store).exit_code == 0
    segment = next(store.glob("*.segment"))
    os.truncate(segment, 5000)
    found = run("verify", "--store", store)
    assert found.exit_code == 1
    assert str(segment) in found.output
    assert run("verify", "--store", store, "--set-aside").exit_code == 1
    assert run("verify", "--store", store).exit_code == 0


def test_a_missing_store_is_told_in_one_line(tmp_path: Path) -> None:
    for command in ("merge", "stats"):
        result = run(command, "--store", tmp_path / "nothing")
        assert result.exit_code == 1
        assert "There is no token datastore" in result.output


def test_ray_that_is_not_installed_is_told_with_the_command(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run("build", corpus, "--store", tmp_path / "store", "--tokenizer", tokenizer_folder, "--ray")
    assert result.exit_code == 1
    assert "pip install 'groundspeed[ray]'" in result.stderr


def test_bounded_memory_builds_the_same_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    additions = [Addition(f"d{n}", rng.integers(0, 9, 100)) for n in range(50)]
    for name, memory in (("whole", 1 << 30), ("parts", 20_000)):
        with TokenDatastoreWriter.open(tmp_path / name, SMALL, background=False) as writer:
            report = build(writer, "corpus", additions, memory_bytes=memory)
            assert (report.segments > 5) == (name == "parts")
    with (
        TokenDatastore.open(tmp_path / "whole") as whole,
        TokenDatastore.open(tmp_path / "parts") as parts,
    ):
        assert contents_of(whole, "corpus") == contents_of(parts, "corpus")
        (merged,) = parts.snapshot().pieces
        assert merged.part.text.tolist() == whole.snapshot().pieces[0].part.text.tolist()


@pytest.mark.parametrize(("documents", "length"), [(1000, 1000), (20_000, 5)])
def test_a_build_keeps_to_its_memory(tmp_path: Path, documents: int, length: int) -> None:
    rng = np.random.default_rng(0)
    limit = 8_000_000

    def additions() -> Iterator[Addition]:
        return (Addition(f"d{n}", rng.integers(0, 50_000, length)) for n in range(documents))

    with TokenDatastoreWriter.open(tmp_path, SMALL, background=False) as writer:
        build(writer, "warm", additions(), memory_bytes=limit)  # compiles
        tracemalloc.start()
        report = build(writer, "corpus", additions(), memory_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert report.segments > 1
    assert peak < limit + 200 * documents  # the ids


def test_a_build_that_fails_adds_nothing(tmp_path: Path) -> None:
    additions = [Addition("a", np.arange(9)), Addition("b", np.arange(9)), Addition("a", np.arange(9))]
    with TokenDatastoreWriter.open(tmp_path, SMALL, background=False) as writer:
        with pytest.raises(InputError, match="Two documents"):
            build(writer, "corpus", additions, memory_bytes=1)
        assert writer.stats() == {}
    assert not list(tmp_path.glob("*.segment"))


def test_the_tokens_of_an_index_follow_its_documents(tmp_path: Path, tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    store = DocumentStore(tmp_path / "store")

    def index(texts: dict[str, str]) -> BuildReport:
        documents = tuple(
            StoredDocument(Document(name, text), "/corpus", sha256(text.encode()).hexdigest())
            for name, text in texts.items()
        )
        empty = Postings((), np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        chunks, vectors = np.empty((0, 3), np.int64), np.empty((0, 4), np.float32)
        with store.lock():
            store.write(StoreContents("none", Chunking(1, 0), documents, chunks, vectors, empty))
        return index_tokens(store.path, tokenizer)

    assert index({"a": "one text", "b": "another", "c": "a third"}).documents == 3
    report = index({"a": "one text", "b": "another one", "d": "a fourth"})
    assert (report.documents, report.replaced) == (2, 1)
    with TokenDatastore.open(store.path / TOKENS) as opened:
        held = {name: tokenizer.decode(ids) for name, ids in contents_of(opened, CORPUS).items()}
    assert held == {"a": "one text", "b": "another one", "d": "a fourth"}
