from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from groundspeed.datastores.documents import (
    NAMESPACES,
    Chunking,
    DocumentStore,
    Postings,
    StoreContents,
    StoredDocument,
)
from groundspeed.errors import StoreError
from groundspeed.types import Document

WRITER = """
import sys
from groundspeed.datastores.documents import DocumentStore
sys.path.insert(0, sys.argv[2])
from test_documents import contents_of
store, serial = DocumentStore(sys.argv[1]), 0
with store.lock():
    while True:
        serial += 1
        store.write(contents_of(2000 + serial % 7))
        print(serial, flush=True)
"""


def contents_of(count: int) -> StoreContents:
    """Contents whose every part can be told from ``count``."""
    documents = tuple(
        StoredDocument(Document(f"d{i}", f"text {i} of {count}\u2028 é \n", {"n": count}), "/root", f"{i}")
        for i in range(count)
    )
    return StoreContents(
        embedder="toy",
        chunking=Chunking(100, 10),
        documents=documents,
        chunks=np.array([(i, 0, 4) for i in range(count)], np.int64),
        vectors=np.full((count, 3), count, np.float32),
        postings=Postings(
            ("text",),
            np.array([0, count], np.int64),
            np.arange(count, dtype=np.int32),
            np.full(count, 0.5, np.float32),
        ),
    )


def same(one: StoreContents, other: StoreContents) -> bool:
    return (
        one.documents == other.documents
        and (one.embedder, one.chunking) == (other.embedder, other.chunking)
        and one.postings.terms == other.postings.terms
        and all(
            np.array_equal(left, right) and left.dtype == right.dtype
            for left, right in [
                (one.chunks, other.chunks),
                (one.vectors, other.vectors),
                (one.postings.starts, other.postings.starts),
                (one.postings.chunks, other.postings.chunks),
                (one.postings.scores, other.postings.scores),
            ]
        )
    )


def write(store: DocumentStore, contents: StoreContents) -> None:
    with store.lock():
        store.write(contents)


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    store = DocumentStore(tmp_path / "store")
    write(store, contents_of(3))
    return store


def test_what_was_written_is_read(store: DocumentStore) -> None:
    assert same(store.read(), contents_of(3))


def test_a_write_replaces_everything_and_leaves_one_generation(store: DocumentStore) -> None:
    write(store, contents_of(5))
    assert same(store.read(), contents_of(5))
    assert len(list(store.path.glob("generation-*"))) == 1


def test_no_file_needs_pickle_or_is_executable_code(store: DocumentStore) -> None:
    suffixes = {path.suffix for path in store.path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert suffixes == {".json", ".jsonl", ".npy"}


def test_a_pickled_array_is_refused_even_with_a_fitting_checksum(store: DocumentStore) -> None:
    from hashlib import sha256

    [path] = store.path.glob("*/vectors.npy")
    np.save(path, np.array([{}, []], object), allow_pickle=True)
    header = json.loads((store.path / "header.json").read_text())
    data = path.read_bytes()
    header["files"]["vectors.npy"] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    (store.path / "header.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match=r"damaged.*allow_pickle"):
        store.read()


@pytest.mark.parametrize(
    "name", ["documents.jsonl", "terms.json", "chunks.npy", "vectors.npy", "postings_scores.npy"]
)
def test_a_truncated_file_is_an_error_with_a_remedy(store: DocumentStore, name: str) -> None:
    [path] = store.path.glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=rf"damaged: {name}.*Delete the folder and index"):
        store.read()


def test_a_flipped_bit_is_an_error(store: DocumentStore) -> None:
    [path] = store.path.glob("*/vectors.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"checksum of vectors\.npy"):
        store.read()


def test_a_missing_file_is_an_error(store: DocumentStore) -> None:
    next(store.path.glob("*/terms.json")).unlink()
    with pytest.raises(StoreError, match=r"terms\.json is missing"):
        store.read()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', '{"format": "other"}'])
def test_a_bad_header_is_an_error(store: DocumentStore, text: str) -> None:
    (store.path / "header.json").write_text(text)
    with pytest.raises(StoreError, match=r"damaged.*Delete the folder"):
        store.read()


@pytest.mark.parametrize("key", ["generation", "embedder", "chunking", "counts", "files"])
@pytest.mark.parametrize("value", [None, 7, {}, []])
def test_a_header_with_a_wrong_value_is_an_error(store: DocumentStore, key: str, value: object) -> None:
    header = json.loads((store.path / "header.json").read_text())
    header[key] = value
    (store.path / "header.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match="damaged"):
        store.read()


def test_a_count_that_does_not_fit_is_an_error(store: DocumentStore) -> None:
    header = json.loads((store.path / "header.json").read_text())
    header["counts"]["documents"] = 4
    (store.path / "header.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match=r"'documents': 3.*instead of.*'documents': 4"):
        store.read()


def test_a_newer_version_is_an_error_that_names_both(store: DocumentStore) -> None:
    header = json.loads((store.path / "header.json").read_text())
    header["version"] = 99
    (store.path / "header.json").write_text(json.dumps(header))
    with pytest.raises(StoreError, match=r"version 99.*version 2; upgrade groundspeed"):
        store.read()


def test_a_missing_store_is_an_error_that_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="groundspeed index PATH --store"):
        DocumentStore(tmp_path / "none").read()


def test_a_second_writer_is_refused_and_the_first_goes_on(store: DocumentStore) -> None:
    with store.lock():
        with (
            pytest.raises(StoreError, match="being written by another process"),
            DocumentStore(store.path).lock(),
        ):
            pass
        store.write(contents_of(4))
    assert same(store.read(), contents_of(4))


def test_a_folder_of_other_things_is_not_taken_for_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(StoreError, match=r"holds other things \(thesis\.tex\)"),
        DocumentStore(tmp_path).lock(),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_in_which_a_first_writer_is_at_work_is_not_taken_for_one_of_other_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = (".lock", f"generation-{'0' * 32}", "header.json.new", "header.json")
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in beside]))
    store = DocumentStore(tmp_path)
    with store.lock():
        store.write(contents_of(2))
    assert same(store.read(), contents_of(2))


def test_a_file_is_not_taken_for_a_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(StoreError, match="is a file"), DocumentStore(path).lock():
        pass


def test_a_new_folder_is_taken_away_when_nothing_was_written(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), DocumentStore(tmp_path / "new").lock():
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_write_stopped_at_any_system_call_leaves_the_old_or_the_new_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | OSError
) -> None:
    real = {"fsync": os.fsync, "mkdir": Path.mkdir, "replace": Path.replace}
    finished = stopped = 0
    for fuse in range(40):
        store = DocumentStore(tmp_path / f"store{fuse}")
        write(store, contents_of(3))
        before, calls = files_of(store.path), 0

        def burning(name: str, fuse: int = fuse) -> object:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal calls
                calls += 1
                if calls == fuse + 1:
                    raise error
                return real[name](*args, **kwargs)  # type: ignore[operator]

            return call

        with store.lock(), monkeypatch.context() as patch:
            patch.setattr(os, "fsync", burning("fsync"))
            patch.setattr(Path, "mkdir", burning("mkdir"))
            patch.setattr(Path, "replace", burning("replace"))
            try:
                store.write(contents_of(5))
                finished += 1
            except (KeyboardInterrupt, StoreError):
                stopped += 1
        found = store.read()
        assert same(found, contents_of(5)) or (same(found, contents_of(3)) and files_of(store.path) == before)
        assert len(list(store.path.glob("generation-*"))) == 1
    assert finished
    assert stopped > 10


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_writer_killed_at_any_moment_leaves_a_whole_store(tmp_path: Path) -> None:
    allowed = [contents_of(2000 + serial) for serial in range(7)]
    chance = random.Random(0)
    path = tmp_path / "store"
    write(DocumentStore(path), allowed[0])
    for _ in range(20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.1))
        writer.kill()
        writer.communicate()
        found = DocumentStore(path).read()
        assert same(found, allowed[len(found.documents) - 2000])
    write(DocumentStore(path), contents_of(3))
    assert same(DocumentStore(path).read(), contents_of(3))
    assert len(list(path.glob("generation-*"))) == 1


def test_readers_see_whole_stores_while_a_writer_replaces_them(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(DocumentStore(path), contents_of(2000))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)], stdout=subprocess.PIPE
    )
    try:
        seen = [DocumentStore(path).read() for _ in range(60)]
    finally:
        writer.kill()
        writer.communicate()
    assert all(same(contents, contents_of(len(contents.documents))) for contents in seen)


def test_what_is_removed_leaves_only_what_was_not_its_own(store: DocumentStore) -> None:
    beside = DocumentStore(store.path / NAMESPACES / "other")
    write(beside, contents_of(2))
    store.remove()
    assert not store.exists()
    assert same(beside.read(), contents_of(2))
    write(store, contents_of(4))
    assert same(store.read(), contents_of(4))
    beside.remove()
    assert not beside.path.exists()
    beside.remove()


def test_a_first_write_that_comes_to_nothing_leaves_the_stores_that_came_into_its_folder(
    tmp_path: Path,
) -> None:
    store = DocumentStore(tmp_path / "store")
    beside = DocumentStore(tmp_path / "store" / NAMESPACES / "other")
    with store.lock():  # and nothing is written
        write(beside, contents_of(2))
    assert same(beside.read(), contents_of(2))
