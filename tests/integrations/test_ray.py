"""Builds on a Ray cluster beside the plain build of the same corpus, and copies of stores on its nodes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datastores import contents_of
from typer.testing import CliRunner, Result

from groundspeed.datastores.checking import find_damage
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import StoreError
from groundspeed.integrations import ray_build, ray_publish
from groundspeed.integrations.cli.app import app
from groundspeed.verify.loading import load_tokenizer

pytest.importorskip("ray", reason="Ray is not installed; `make test-ray` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own warnings are many


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray
    import ray.data  # sets up its logging

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they write to whatever stderr was at first
    yield
    ray.shutdown()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "corpus"
    (folder / "deeper").mkdir(parents=True)
    words = ["draft", "tree", "token", "store"]
    for number in range(15):
        text = " ".join(rng.choice(words, 200))
        (folder / f"{number}.txt").write_text(text)
        rows = [{"id": f"{number}-{n}", "text": f"{n} {text}", "page": n} for n in range(5)]
        (folder / "deeper" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def run(store: Path, corpus: Path, tokenizer: Path, *options: object) -> Result:
    arguments = ["datastore", "build", corpus, "--store", store, "--tokenizer", tokenizer, "--json", *options]
    return CliRunner().invoke(app, [*map(str, arguments)])


def assert_same(one: Path, other: Path, tokenizer: Path) -> None:
    loaded = load_tokenizer(str(tokenizer))
    with TokenDatastore.open(one) as left, TokenDatastore.open(other) as right:
        assert contents_of(left, "corpus") == contents_of(right, "corpus")
        assert sorted(left.documents("corpus"), key=str) == sorted(right.documents("corpus"), key=str)
        for text in ("draft", "tree token st", "0 draft", "store store store ", "nothing of it"):
            context = np.array(loaded(text)["input_ids"])
            answers = [
                store.snapshot().continuations(context, depth=4, spread=1 << 17) for store in (left, right)
            ]
            assert answers[0] == answers[1]


def test_the_cluster_builds_the_store_of_the_plain_build(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path
) -> None:
    plain = json.loads(run(tmp_path / "plain", corpus, tokenizer_folder).stdout)
    built = json.loads(run(tmp_path / "ray", corpus, tokenizer_folder, "--ray", "--memory-gb", 0.001).stdout)
    assert built["segments"] > plain["segments"] == 1
    assert {**built, "segments": 1, "store": ""} == {**plain, "store": ""}
    assert find_damage(tmp_path / "ray") == []
    assert_same(tmp_path / "plain", tmp_path / "ray", tokenizer_folder)
    (corpus / "3.txt").write_text("the third draft is new")
    for name, options in (("plain", ()), ("ray", ("--ray",))):
        assert json.loads(run(tmp_path / name, corpus, tokenizer_folder, *options).stdout)["replaced"] == 90
    assert_same(tmp_path / "plain", tmp_path / "ray", tokenizer_folder)


def test_segments_travel_where_workers_do_not_see_the_store(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = ray_build._marked

    @contextmanager
    def unmarked(store: Path) -> Iterator[str]:
        with marked(store) as prefix:
            (store / f"{prefix}.new").unlink()
            yield prefix

    monkeypatch.setattr(ray_build, "_marked", unmarked)
    run(tmp_path / "plain", corpus, tokenizer_folder)
    assert run(tmp_path / "ray", corpus, tokenizer_folder, "--ray").exit_code == 0
    assert find_damage(tmp_path / "ray") == []
    assert_same(tmp_path / "plain", tmp_path / "ray", tokenizer_folder)


def assert_nothing_added(store: Path) -> None:
    with TokenDatastore.open(store) as opened:
        assert opened.stats() == {}
    assert {path.name for path in store.iterdir()} == {".lock", "log-000001", "manifest.json"}


def test_an_id_that_two_workers_meet_is_refused(tmp_path: Path, corpus: Path, tokenizer_folder: Path) -> None:
    (corpus / "again.jsonl").write_text(json.dumps({"id": "3-3", "text": "the same id"}))
    result = run(tmp_path / "store", corpus, tokenizer_folder, "--ray")
    assert result.exit_code == 1
    assert "Two documents have the id '3-3'" in result.stderr
    assert_nothing_added(tmp_path / "store")


def test_what_cannot_be_read_is_refused_or_left_out(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path
) -> None:
    (corpus / "bad.jsonl").write_text("no JSON")
    result = run(tmp_path / "store", corpus, tokenizer_folder, "--ray")
    assert result.exit_code == 1
    assert "--skip-unreadable" in result.stderr
    assert_nothing_added(tmp_path / "store")
    result = run(tmp_path / "store", corpus, tokenizer_folder, "--ray", "--skip-unreadable")
    built = json.loads(result.stdout)
    assert built["documents"] == 90
    (skipped,) = built["skipped"]
    assert "bad.jsonl" in skipped


def build_with(tokenizer: Any, store: Path, corpus: Path, wraps: Any) -> None:
    with TokenDatastoreWriter.open(store, TokenizerFingerprint.of(wraps)) as writer:
        ray_build.build_on_ray(writer, "corpus", [corpus], tokenizer, max_document_bytes=10**6)


@pytest.mark.parametrize("dies", [False, True])
def test_a_worker_that_fails_leaves_nothing_behind(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, dies: bool
) -> None:
    loaded = load_tokenizer(str(tokenizer_folder))

    class Failing:
        def __call__(self, texts: list[str], **options: Any) -> Any:
            if any(text.startswith("4 ") for text in texts):
                if dies:
                    os._exit(1)
                raise RuntimeError("out of luck")
            return loaded(texts, **options)

    with pytest.raises(StoreError, match="died" if dies else "out of luck"):
        build_with(Failing(), tmp_path / "store", corpus, loaded)
    assert_nothing_added(tmp_path / "store")


def test_the_work_of_a_lost_worker_is_done_again(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path
) -> None:
    loaded = load_tokenizer(str(tokenizer_folder))
    lost = tmp_path / "lost"

    class Dying:
        def __call__(self, texts: list[str], **options: Any) -> Any:
            if any(text.startswith("4 ") for text in texts) and not lost.exists():
                lost.touch()
                os._exit(1)
            return loaded(texts, **options)

    run(tmp_path / "plain", corpus, tokenizer_folder)
    build_with(Dying(), tmp_path / "ray", corpus, loaded)
    assert lost.exists()
    assert_same(tmp_path / "plain", tmp_path / "ray", tokenizer_folder)
    assert not list((tmp_path / "ray").glob("*.new"))


def published(store: Path, target: Path, *options: object) -> Result:
    return CliRunner().invoke(
        app, ["datastore", "publish", str(target), "--store", str(store), *map(str, options)]
    )


def test_nodes_keep_copies_that_follow_the_store(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_publish, "CHUNK_BYTES", 10_000)
    store, target = tmp_path / "store", tmp_path / "node" / "tokens"
    run(store, corpus, tokenizer_folder, "--ray")
    (sent,) = json.loads(published(store, target, "--json").stdout)["sent"].values()
    assert sent == sum(path.stat().st_size for path in store.glob("*.segment"))
    assert_same(store, target, tokenizer_folder)
    assert find_damage(target) == []
    with TokenDatastore.open(target) as reader:
        before = contents_of(reader, "corpus")
        (corpus / "3.txt").write_text("the third draft is new")
        run(store, corpus, tokenizer_folder)
        assert published(store, target).exit_code == 0
        assert contents_of(reader, "corpus") != before
    assert_same(store, target, tokenizer_folder)
    assert "0 bytes sent" in published(store, target).stdout


def test_a_node_that_cannot_keep_a_copy_says_why(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path
) -> None:
    for name in ("store", "own"):
        run(tmp_path / name, corpus, tokenizer_folder)
    result = published(tmp_path / "store", tmp_path / "own")
    assert result.exit_code == 1
    assert "no copy" in result.stderr
    assert find_damage(tmp_path / "own") == []
