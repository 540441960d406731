from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from helpers.datastores import LARGE, SMALL, assert_exact, brute_force, contents_of

from groundspeed.datastores import contents
from groundspeed.datastores.checking import find_damage, set_aside
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.segment import VERSION
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import InputError, StoreError

HELPERS = str(Path(__file__).parents[1])


def run_script(name: str, *arguments: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("scripts") / name
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": HELPERS},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def filled(path: Path, tokenizer: TokenizerFingerprint = SMALL) -> dict[str, tuple[int, ...]]:
    """A store with two segments, deleted documents and a log; returns what it holds."""
    rng = np.random.default_rng(5)
    documents = {f"d{n}": tuple(rng.integers(0, 9, 60).tolist()) for n in range(60)}
    with TokenDatastoreWriter.open(path, tokenizer, background=False, seal_at=10**9) as writer:
        for number, (name, text) in enumerate(documents.items()):
            writer.append("corpus", name, text, {"number": number}, durable=False)
            if number in (45, 52):  # so different in size that they are not merged
                writer.seal()
        writer.delete("corpus", ["d3", "d47", "d55"], durable=False)
    for name in ("d3", "d47", "d55"):
        del documents[name]
    return documents


def test_a_writer_killed_at_any_of_200_moments_loses_nothing_it_had_committed(tmp_path: Path) -> None:
    result = run_script("killed_writer.py", tmp_path / "store", 200)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[:2] == ["survived", "200"]


def test_readers_in_eight_processes_see_whole_changes_beside_a_writer_that_merges(tmp_path: Path) -> None:
    result = run_script("many_readers.py", tmp_path / "store", 8, 6)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_flipped_byte_is_found_and_no_question_crashes(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    names = sorted(path.name for path in (tmp_path / "store").iterdir() if path.name != ".lock")
    draw = random.Random(1)
    for name in names:
        size = (tmp_path / "store" / name).stat().st_size
        for offset in [0, size - 1, *(draw.randrange(size) for _ in range(25))]:
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(tmp_path / "store", copy)
            with (copy / name).open("r+b") as handle:
                handle.seek(offset)
                byte = handle.read(1)[0]
                handle.seek(offset)
                handle.write(bytes([byte ^ 1 << draw.randrange(8)]))
            found = find_damage(copy)
            assert len(found) == 1, (name, offset)
            assert str(copy / name) in str(found[0])
            assert "byte" in str(found[0])
            ask_everything(copy)


def test_every_cut_is_found_and_no_question_crashes(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    draw = random.Random(2)
    for name in sorted(path.name for path in (tmp_path / "store").iterdir() if path.name != ".lock"):
        size = (tmp_path / "store" / name).stat().st_size
        for keep in [0, size - 1, *(draw.randrange(size) for _ in range(15))]:
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(tmp_path / "store", copy)
            os.truncate(copy / name, keep)
            found = find_damage(copy)
            assert len(found) == 1, (name, keep)
            assert str(copy / name) in str(found[0])
            with pytest.raises(StoreError, match="damaged"):
                TokenDatastore.open(copy)


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    next((tmp_path / "store").glob("*.segment")).unlink()
    assert "missing" in str(find_damage(tmp_path / "store")[0])
    with pytest.raises(StoreError, match="missing"):
        TokenDatastore.open(tmp_path / "store")


def ask_everything(path: Path) -> None:
    """A damaged store is refused or answers; it never leads a kernel out of its arrays."""
    rng = np.random.default_rng(0)
    try:
        with TokenDatastore.open(path) as store:
            snapshot = store.snapshot()
            for _ in range(30):
                snapshot.find(rng.integers(0, 9, 8), depth=4, spread=8)
    except StoreError:
        pass


def test_a_damaged_segment_is_set_aside_and_the_rest_served(tmp_path: Path) -> None:
    documents = filled(tmp_path)
    first = min(tmp_path.glob("*.segment"))
    os.truncate(first, first.stat().st_size - 1)
    assert set_aside(tmp_path) == [first.name]
    assert (tmp_path / "damaged" / first.name).exists()
    assert find_damage(tmp_path) == []
    with TokenDatastoreWriter.open(tmp_path, SMALL) as store:
        assert contents_of(store, "corpus") == {n: t for n, t in documents.items() if int(n[1:]) > 45}
        store.append("corpus", "d1", documents["d1"])


def test_a_damaged_log_keeps_the_records_before_the_damage(tmp_path: Path) -> None:
    with TokenDatastoreWriter.open(tmp_path, SMALL) as store:
        store.append("corpus", "one", [1, 2, 3])
        size = next(tmp_path.glob("log-*")).stat().st_size
        store.append("corpus", "two", [4, 5, 6])
    with next(tmp_path.glob("log-*")).open("r+b") as handle:
        handle.seek(size + 20)
        handle.write(b"\xff")
    with pytest.raises(StoreError, match=rf"log-000001 is damaged at byte {size}"):
        TokenDatastore.open(tmp_path)
    assert set_aside(tmp_path) == ["log-000001"]
    with TokenDatastore.open(tmp_path) as reader:
        assert contents_of(reader, "corpus") == {"one": (1, 2, 3)}


def test_a_full_disk_refuses_the_change_and_loses_nothing(tmp_path: Path) -> None:
    result = run_script("full_disk.py", tmp_path / "store")
    assert result.returncode == 0, result.stderr
    assert find_damage(tmp_path / "store") == []


def test_a_second_writer_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    with TokenDatastoreWriter.open(tmp_path, SMALL), pytest.raises(StoreError, match="being written"):
        TokenDatastoreWriter.open(tmp_path, SMALL)
    script = Path(__file__).with_name("scripts") / "holder.py"
    holder = subprocess.Popen([sys.executable, script, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder, holder.stdout:
        holder.stdout.readline()
        with pytest.raises(StoreError, match="being written"):
            TokenDatastoreWriter.open(tmp_path, SMALL)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    TokenDatastoreWriter.open(tmp_path, SMALL).close()


def test_another_tokenizer_is_refused_with_both_names(tmp_path: Path) -> None:
    TokenDatastoreWriter.open(tmp_path, SMALL).close()
    for kind in (TokenDatastore, TokenDatastoreWriter):
        with pytest.raises(StoreError, match=r"small .* large"):
            kind.open(tmp_path, LARGE)


@pytest.mark.parametrize("tokenizer", [SMALL, LARGE])
def test_tokens_take_2_bytes_or_4_by_the_vocabulary(tmp_path: Path, tokenizer: TokenizerFingerprint) -> None:
    top = tokenizer.vocab_size - 1
    with TokenDatastoreWriter.open(tmp_path, tokenizer) as store:
        store.append("corpus", "one", [top, 0, top, 1] * 20)
        store.seal()
        snapshot = store.snapshot()
        assert snapshot.like.itemsize == (2 if tokenizer is SMALL else 4)
        wanted = brute_force([(top, 0, top, 1) * 20], [0, top])
        assert_exact(snapshot.continuations(np.array([0, top]), depth=4, spread=4096), wanted)


def test_what_cannot_be_kept_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with TokenDatastoreWriter.open(tmp_path, SMALL) as store:
        store.append("corpus", "one", [1])
        for name, tokens, metadata in [
            ("one", [2], {}),
            ("", [2], {}),
            ("two", [50_000], {}),
            ("two", [-1], {}),
            ("two", [[1]], {}),
            ("two", [0.5], {}),
            ("two", [2], {"key": object()}),
            ("\ud800", [2], {}),
        ]:
            with pytest.raises(InputError):
                store.append("corpus", name, np.array(tokens), metadata)
        assert contents_of(store, "corpus") == {"one": (1,)}


def test_a_snapshot_stays_as_it_is_while_the_store_moves_on(tmp_path: Path) -> None:
    with TokenDatastoreWriter.open(tmp_path, SMALL, background=False) as store:
        store.append("corpus", "one", [1, 2, 3])
        store.seal()
        before = store.snapshot()
        store.delete("corpus", ["one"])
        store.append("corpus", "two", [1, 2, 4])
        store.merge()
        assert before.continuations(np.array([1, 2])).by_length == {2: {3: 1.0}}
        assert store.snapshot().continuations(np.array([1, 2])).by_length == {2: {4: 1.0}}


def test_a_sample_is_unbiased_where_lexicographic_order_would_not_be(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    followers = np.sort(rng.choice(5, 4000, p=[0.4, 0.3, 0.15, 0.1, 0.05])) + 10
    with TokenDatastoreWriter.open(tmp_path, SMALL, background=False) as store:
        store.append("corpus", "one", np.stack([np.full(4000, 7), followers], axis=1).ravel())
        snapshot = store.snapshot()
        sampled = [
            snapshot.continuations(np.array([7]), depth=1, spread=50, seed=seed).by_length[1]
            for seed in range(200)
        ]
    for token, count in zip(*np.unique(followers, return_counts=True), strict=True):
        mean = np.mean([counts.get(int(token), 0.0) for counts in sampled])
        assert mean == pytest.approx(count, rel=0.1)


@pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="the system does not tell how it maps files"
)
@pytest.mark.parametrize(("memory", "large"), [(1 << 40, True), (1 << 10, False)])
def test_a_store_that_fits_into_memory_is_read_in_large_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, large: bool
) -> None:
    monkeypatch.setattr(contents, "_memory_bytes", lambda: memory)
    documents = filled(tmp_path)
    with TokenDatastore.open(tmp_path) as store:
        assert contents_of(store, "corpus") == documents
        maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    asked = [
        "hg" in after.splitlines()[0].split() for before, after in pairwise(maps) if str(tmp_path) in before
    ]
    assert asked
    assert set(asked) == {large}


@pytest.mark.parametrize(("step", "remedy"), [(-1, "build the store again"), (1, "upgrade groundspeed")])
def test_a_segment_of_another_format_is_refused_with_what_to_do(
    tmp_path: Path, step: int, remedy: str
) -> None:
    filled(tmp_path)
    path = next(tmp_path.glob("*.segment"))
    data = bytearray(path.read_bytes())
    header = data[12:4096].replace(b'"version": %d' % VERSION, b'"version": %d' % (VERSION + step))
    data[8:4096] = crc32(header).to_bytes(4, "little") + header
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"version {VERSION + step}, .* version {VERSION}; {remedy}"):
        TokenDatastore.open(tmp_path)
