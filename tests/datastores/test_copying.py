"""Copies of a store beside the store, whatever goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.datastores import LARGE, SMALL, contents_of

from groundspeed.datastores.copying import SealedStore, StoreCopy, seal_store
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import StoreError


def change(store: Path, seed: int, *deleted: str) -> None:
    rng = np.random.default_rng(seed)
    with TokenDatastoreWriter.open(store, SMALL, background=False) as writer:
        for number in range(3):
            writer.append("a", f"{seed}-{number}", rng.integers(0, 50, 200))
        writer.append("b", f"{seed}", rng.integers(0, 50, 100))
        writer.delete("a", deleted)


def publish(
    store: Path, target: Path, alter: Callable[[bytes], bytes] = lambda data: data
) -> tuple[SealedStore, list[str]]:
    """Copy as a cluster does, in one process; what was lacking."""
    with TokenDatastoreWriter.open(store, background=False) as writer:
        sealed = seal_store(writer)
        copy = StoreCopy(target)
        lacking = copy.begin(sealed.tokenizer, sealed.files)
        try:
            for name in lacking:
                data = alter(sealed.files[name].read_bytes())
                for begin in range(0, len(data), 1000):
                    copy.write(name, data[begin : begin + 1000])
            copy.finish(sealed.entries)
        finally:
            copy.close()
    return sealed, lacking


def assert_same(store: Path, target: Path) -> None:
    with TokenDatastore.open(store) as one, TokenDatastore.open(target) as other:
        for namespace in ("a", "b"):
            assert contents_of(one, namespace) == contents_of(other, namespace)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    change(tmp_path / "store", 1)
    return tmp_path / "store"


def test_a_copy_holds_what_the_store_holds_and_follows_it(store: Path, tmp_path: Path) -> None:
    publish(store, tmp_path / "copy")
    assert_same(store, tmp_path / "copy")
    with TokenDatastore.open(tmp_path / "copy") as reader:
        before = reader.snapshot()
        held = contents_of(reader, "a")
        change(store, 2, "1-0")
        sealed, lacking = publish(store, tmp_path / "copy")
        assert held != contents_of(reader, "a")
        assert_same(store, tmp_path / "copy")
        assert before.continuations(np.arange(3)) is not None, "a snapshot stays as it was"
    assert {path.name for path in (tmp_path / "copy").glob("*.segment")} == set(sealed.files)
    assert set(lacking) <= set(sealed.files)


def test_only_what_is_lacking_travels(store: Path, tmp_path: Path) -> None:
    assert len(publish(store, tmp_path / "copy")[1]) == 2
    assert publish(store, tmp_path / "copy")[1] == []


def test_a_store_that_is_built_anew_under_the_same_names_is_copied_anew(tmp_path: Path) -> None:
    change(tmp_path / "one", 1)
    change(tmp_path / "other", 7)
    publish(tmp_path / "one", tmp_path / "copy")
    publish(tmp_path / "other", tmp_path / "copy")
    assert_same(tmp_path / "other", tmp_path / "copy")


@pytest.mark.parametrize("alter", [lambda data: data[:-1], lambda data: data[:5000] + b"?" + data[5001:]])
def test_what_arrives_damaged_is_refused_and_the_copy_stays(
    store: Path, tmp_path: Path, alter: Callable[[bytes], bytes]
) -> None:
    publish(store, tmp_path / "copy")
    with TokenDatastore.open(tmp_path / "copy") as reader:
        held = contents_of(reader, "a")
        change(store, 2, "1-0", "1-1")
        with pytest.raises(StoreError, match="did not arrive whole"):
            publish(store, tmp_path / "copy", alter)
        assert contents_of(reader, "a") == held
    publish(store, tmp_path / "copy")
    assert_same(store, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("*.new"))


def test_a_copy_that_is_being_made_is_nobody_elses(store: Path, tmp_path: Path) -> None:
    copy = StoreCopy(tmp_path / "copy")
    copy.begin(SMALL, ())
    with pytest.raises(StoreError, match="being written"):
        StoreCopy(tmp_path / "copy").begin(SMALL, ())
    copy.close()
    publish(store, tmp_path / "copy")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_store_of_its_own_is_not_copied_over(store: Path, tmp_path: Path, sealed: bool) -> None:
    change(tmp_path / "own", 5)
    if sealed:
        with TokenDatastoreWriter.open(tmp_path / "own", background=False) as writer:
            writer.seal()
    with pytest.raises(StoreError, match="no copy"):
        publish(store, tmp_path / "own")
    with TokenDatastore.open(tmp_path / "own") as own:
        assert own.held("b", ["5"]) == ["5"]


def test_a_copy_of_another_tokenizer_is_left_alone(store: Path, tmp_path: Path) -> None:
    publish(store, tmp_path / "copy")
    with pytest.raises(StoreError, match="large"):
        StoreCopy(tmp_path / "copy").begin(LARGE, ())
