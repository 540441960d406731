"""A store that is changed document by document."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groundspeed.datastores.documents import DocumentStore
from groundspeed.errors import StoreError
from groundspeed.retrieval import updating
from groundspeed.retrieval.chunking import chunk
from groundspeed.retrieval.retriever import Retriever
from groundspeed.retrieval.updating import LiveStore
from groundspeed.types import Document


class Toy:
    """Vectors by hash."""

    name, dimension = "toy", 8

    def embed(self, texts: Sequence[str], progress: Any = None) -> Any:
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Any:
        vector = np.frombuffer(sha256(text.encode()).digest(), np.int32).astype(np.float32)
        return vector / np.linalg.norm(vector)


def live(path: Path) -> LiveStore:
    return LiveStore(DocumentStore(path), Toy())


def held(path: Path) -> dict[str, str]:
    """What a reader finds; each document's vector is that of its text."""
    contents = DocumentStore(path).read()
    assert not len(contents.vectors) or np.array_equal(contents.vectors, Toy().embed(contents.texts()))
    assert [row for row, _, _ in contents.chunks.tolist()] == list(range(len(contents.documents)))
    return {stored.document.id: stored.document.text for stored in contents.documents}


def files_of(path: Path) -> dict[str, bytes]:
    found = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {file.name: file.read_bytes() for file in found}


def test_two_writers_in_turn_and_any_reader_agree_with_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updating, "_LEAST_DUE", 600)  # so that everything is written anew now and then
    draw, expected = random.Random(4), {}
    stores = [live(tmp_path / "store"), live(tmp_path / "store")]
    question = Toy().embed_query("question")
    generations = set()
    for step in range(100):
        store = draw.choice(stores)
        ids = [f"d{draw.randrange(20)}" for _ in range(draw.randrange(1, 4))]
        if draw.random() < 0.7 or not expected:
            given = {name: f"{name} in step {step // 2}\u2028" for name in ids}
            store.upsert(Document(name, text, {"é": [step // 2]}) for name, text in given.items())
            expected |= given
        else:
            store.delete(ids)
            expected = {name: text for name, text in expected.items() if name not in ids}
        for other in stores:
            assert {one.id: one.text for one in other.get(expected)} == expected
            found = [(one.id, score) for one, score, _ in other.nearest(question)]
            cosines = {name: Toy().embed_query(text) @ question for name, text in expected.items()}
            assert dict(found) == pytest.approx(cosines, abs=1e-5)
            assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        assert held(tmp_path / "store") == expected
        generations |= {folder.name for folder in (tmp_path / "store").glob("generation-*")}
    assert len(generations) > 3


def test_documents_are_cut_as_an_indexed_corpus_is_in_whatever_way_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updating, "_LEAST_DUE", 20_000)  # so that some changes are appended and some are not
    draw, expected = random.Random(5), dict[str, Document]()
    store = LiveStore(DocumentStore(tmp_path / "store"), Toy(), cut=True)
    another = LiveStore(DocumentStore(tmp_path / "store"), Toy(), cut=True)
    for step in range(40):
        if draw.random() < 0.3 and expected:
            name = draw.choice([*expected])
            del expected[name]
            store.delete([name])
        else:
            texts = [" ".join(f"word{step}-{n}." for n in range(draw.choice([1, 100, 400]))), " \n "]
            given = [Document(f"d{draw.randrange(12)}", draw.choice(texts)) for _ in range(2)]
            expected |= {one.id: one for one in given}
            store.upsert(given)
        contents = DocumentStore(tmp_path / "store").read()
        assert {stored.document.id: stored.document for stored in contents.documents} == expected
        wanted = [(row, *span) for row, one in enumerate(contents.documents) for span in chunk(one.document)]
        assert contents.chunks.tolist() == [list(one) for one in wanted]
        if wanted:
            assert np.array_equal(contents.vectors, Toy().embed(contents.texts()))
        for seen in (store.contents(), another.contents()):
            assert sorted(seen.texts()) == sorted(contents.texts())
            assert not wanted or np.array_equal(seen.vectors, Toy().embed(seen.texts()))
        assert store.counts() == another.counts() == (len(expected), len(wanted))


def test_contents_are_the_same_object_until_something_changes(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert([Document("a", "one")])
    before = store.contents()
    store.upsert([Document("a", "one")])
    assert store.contents() is before
    live(tmp_path).upsert([Document("b", "two")])
    assert store.contents() is not before
    assert [stored.document.id for stored in before.documents] == ["a"]


def test_a_store_is_looked_into_while_documents_are_embedded(tmp_path: Path) -> None:
    looked = []

    class Slow(Toy):
        def embed(self, texts: Sequence[str], progress: Any = None) -> Any:
            thread = threading.Thread(target=lambda: looked.append(store.get(["a", "b"])))
            thread.start()
            thread.join(10)
            return super().embed(texts)

    store = LiveStore(DocumentStore(tmp_path), Slow())
    store.upsert([Document("a", "one")])
    store.upsert([Document("b", "two")])
    assert [[one.id for one in found] for found in looked] == [[], ["a"]]


def test_a_store_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert([Document("a", "one")])
    DocumentStore(tmp_path).remove()
    live(tmp_path).upsert([Document("b", "two")])
    assert [one.id for one in store.get(["a", "b"])] == ["b"]


def test_adding_a_document_writes_that_document_and_nothing_else(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert(Document(f"d{number}", "text " * 100) for number in range(500))
    before = files_of(tmp_path)
    store.upsert([Document("new", "a new text")])
    after = files_of(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"changes.jsonl"}
    assert len(after["changes.jsonl"]) - len(before["changes.jsonl"]) < 400


def test_what_was_added_is_found_by_words_and_by_meaning(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert([Document("a", "the harbour"), Document("b", "the mountain")])
    store.upsert([Document("c", "a lighthouse"), Document("b", "a valley")])
    retriever = Retriever.open(tmp_path, Toy())
    assert [passage.document_id for passage in retriever.search("lighthouse", mode="sparse")] == ["c"]
    assert retriever.search("mountain", mode="sparse") == []
    assert retriever.search("a valley", k=1, mode="dense")[0].document_id == "b"


def test_a_change_that_was_cut_off_anywhere_is_not_there_and_the_next_one_is(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert([Document("a", "one")])
    store.upsert([Document("b", "two")])
    (path,) = tmp_path.glob("*/changes.jsonl")
    whole = path.read_bytes()
    store.upsert([Document("c", "three"), Document("a", "four")])
    line = path.read_bytes()[len(whole) :]
    for length in range(0, len(line), 7):
        path.write_bytes(whole + line[:length])
        assert held(tmp_path) == {"a": "one", "b": "two"}
        live(tmp_path).upsert([Document("d", "five")])
        assert held(tmp_path) == {"a": "one", "b": "two", "d": "five"}


def test_a_change_with_a_flipped_bit_is_an_error(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.upsert([Document("a", "one")])
    store.upsert([Document("b", "two")])
    (path,) = tmp_path.glob("*/changes.jsonl")
    whole = path.read_bytes()
    for at in (0, 40, 75, len(whole) - 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for look in (lambda: DocumentStore(tmp_path).read(), lambda: live(tmp_path).get(["a"])):
            with pytest.raises(StoreError, match="a change does not fit its checksum"):
                look()


@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_refuses_the_change_and_loses_nothing(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = live(tmp_path / "store")
    if not first:
        store.upsert([Document("a", "one")])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            store.upsert([Document("b", "two")])
    assert [one.id for one in store.get(["a", "b"])] == ([] if first else ["a"])
    store.upsert([Document("c", "three")])
    assert held(tmp_path / "store") == ({} if first else {"a": "one"}) | {"c": "three"}


def test_all_documents_can_go_and_others_come(tmp_path: Path) -> None:
    store = live(tmp_path)
    store.delete(["a"])
    assert not (tmp_path / "header.json").exists()
    store.upsert([Document("a", "one")])
    store.delete(["a", "a", "b"])
    assert held(tmp_path) == {}
    assert list(store.nearest(Toy().embed_query("x"))) == []
    live(tmp_path).upsert([Document("b", "two")])
    assert [one.id for one, _, _ in store.nearest(Toy().embed_query("x"))] == ["b"]
