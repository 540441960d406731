"""Measuring the token datastore beside its peers."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.candidates import candidates
from groundspeed.datastores.tokens import TokenDatastore
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.drafting.base import DraftTree
from groundspeed.integrations.bench.peers.draft_retriever import tree_of_paths
from groundspeed.integrations.bench.replay import accept
from groundspeed.types import Source

__all__ = ["PEERS", "measure_datastore", "stitch"]

PEERS = ("draftretriever", "infini-gram")

_DOCUMENT = 500  # tokens of a document
_CONTEXT = 16  # tokens of a context; the longest that REST asks for
_FOLLOWING = 24  # tokens behind it that a draft is held against
_NODES = 64  # of a draft
_SPREAD = 32  # places looked at of one length; twice as many add a hundredth to what is accepted
_SPAN = 12.0  # mean tokens of a copied span
_BLOCK = 1 << 20  # tokens made at once

Row = dict[str, Any]


def stitch(base: NDArray[Any], tokens: int, seed: int) -> NDArray[Any]:
    """Text of any length with the repeats of natural text: spans of the base, one after the other.

    Args:
        base: int [b], real text.
        tokens: Length wanted.
        seed: Of the draws; texts of two seeds have spans in common and go on differently.

    Returns:
        Of the base's dtype, [tokens].
    """
    rng = np.random.default_rng(seed)
    text = np.empty(tokens, base.dtype)
    for begin in range(0, tokens, _BLOCK):
        block = text[begin : begin + _BLOCK]
        lengths = 1 + rng.exponential(_SPAN, int(len(block) / _SPAN) + 64).astype(np.int64)
        starts = rng.integers(0, len(base) - int(lengths.max()), len(lengths))
        jumps = starts - np.cumsum(lengths) + lengths
        block[:] = base[np.repeat(jumps, lengths)[: len(block)] + np.arange(len(block))]
    return text


def measure_datastore(
    base: NDArray[Any],
    vocab_size: int,
    tokens: int,
    folder: Path,
    *,
    queries: int = 2000,
    memory_bytes: int = 8 << 30,
    peers: tuple[str, ...] = PEERS,
) -> Iterator[Row]:
    """Build, open, ask and change a store of a size; peers that are installed take part.

    Args:
        base: int [b], real text to stitch documents from.
        vocab_size: Of its tokenizer.
        tokens: Size of the store.
        folder: Where to; emptied first.
        queries: Contexts to ask for; peers are asked for a tenth.
        memory_bytes: Most memory that the build may sort in.
        peers: Of ``PEERS``.

    Yields:
        Rows with ``system``, ``tokens``, ``what`` (the call measured) and its figures.
    """
    shutil.rmtree(folder, ignore_errors=True)
    base = base.astype(np.uint32)
    text = stitch(base, tokens, seed=1)
    asked = stitch(base, queries * (_CONTEXT + _FOLLOWING), seed=2).astype(np.int64)
    contexts, following = np.hsplit(asked.reshape(queries, -1), [_CONTEXT])
    for row in _measure_ours(text, contexts, following, vocab_size, folder / "groundspeed", memory_bytes):
        yield {"system": "groundspeed", "tokens": tokens, **row}
    systems = {"draftretriever": _measure_draftretriever, "infini-gram": _measure_infini_gram}
    for name in peers:
        with contextlib.suppress(ImportError):
            (folder / name).mkdir()
            few = slice(queries // 10)
            for row in systems[name](text, contexts[few], following[few], vocab_size, folder / name):
                yield {"system": name, "tokens": tokens, **row}


def _measure_ours(
    text: NDArray[Any],
    contexts: NDArray[np.int64],
    following: NDArray[np.int64],
    vocab_size: int,
    path: Path,
    memory_bytes: int,
) -> Iterator[Row]:
    yield {"what": "build, in a process of its own", **_build_elsewhere(text, vocab_size, path, memory_bytes)}
    yield {"what": "open, in a process of its own", **_open_elsewhere(path)}
    with TokenDatastore.open(path) as store:
        snapshot = store.snapshot(["corpus"])
        out = (np.empty(_NODES, np.int64), np.empty(_NODES, np.int64), np.empty(_NODES))

        def draft(context: NDArray[Any]) -> int:
            backwards = np.ascontiguousarray(context[::-1])
            n: int = candidates(
                snapshot.table, snapshot.like, backwards, len(backwards), 2, _SPREAD, np.uint64(0), *out
            )
            return n

        def tree(context: NDArray[Any]) -> DraftTree:
            n = draft(context)
            token_ids, parents, masses = (column[:n].copy() for column in out)
            return DraftTree(
                token_ids.astype(np.int32),
                parents.astype(np.int32),
                masses.astype(np.float32),
                np.full(n, Source.DATASTORE, np.uint16),
                np.full(n, -1, np.int64),
            )

        draft(contexts[0])
        _drop_pages(path)
        yield {"what": f"context to {_NODES} nodes, cold", **_timed(draft, contexts[:200])}
        _timed(draft, contexts)
        measured = _timed(draft, contexts)
        yield {"what": f"context to {_NODES} nodes", **measured, **_accepted(tree, contexts, following)}
        yield {"what": "longest match and continuations", **_timed(snapshot.continuations, contexts)}
    with TokenDatastoreWriter.open(path) as writer:
        for durable in (False, True):

            def append(numbered: tuple[int, NDArray[Any]], durable: bool = durable) -> object:
                name = f"a{durable}{numbered[0]}"
                writer.append("corpus", name, numbered[1], durable=durable)
                return writer.snapshot(["corpus"])

            thousands = [(at, text[at : at + 1000]) for at in range(0, min(len(text), 400_000), 1000)]
            what = "append 1,000 tokens until a snapshot has them" + (", durable" if durable else "")
            yield {"what": what, **_timed(append, thousands)}


def _measure_draftretriever(
    text: NDArray[Any],
    contexts: NDArray[np.int64],
    following: NDArray[np.int64],
    vocab_size: int,
    path: Path,
) -> Iterator[Row]:
    import draftretriever

    documents = [part.tolist() for _, part in _documents(text)]
    index = str(path / "index")
    begin = time.perf_counter()
    writer = draftretriever.Writer(index, vocab_size=vocab_size)
    for document in documents:
        writer.add_entry(document)
    writer.finalize()
    seconds = time.perf_counter() - begin
    yield {"what": "build", "seconds": seconds, "bytes_per_token": _folder_bytes(path) / len(text)}
    begin = time.perf_counter()
    reader = draftretriever.Reader(index)
    yield {"what": "open", "seconds": time.perf_counter() - begin}
    lists = contexts.tolist()
    _timed(lambda context: reader.search(context, choices=_NODES), lists)
    measured = _timed(lambda context: reader.search(context, choices=_NODES), lists)

    def tree(context: list[int]) -> DraftTree:
        return tree_of_paths(reader.search(context, choices=_NODES)[0], _NODES)

    yield {"what": f"context to {_NODES} nodes", **measured, **_accepted(tree, lists, following)}


def _measure_infini_gram(
    text: NDArray[Any],
    contexts: NDArray[np.int64],
    following: NDArray[np.int64],
    vocab_size: int,
    path: Path,
) -> Iterator[Row]:
    from argparse import Namespace

    from infini_gram import indexing
    from infini_gram.engine import InfiniGramEngine

    width, end = (2, 0xFFFF) if vocab_size < 0xFFFF else (4, 0xFFFFFFFF)
    begin = time.perf_counter()
    joined = np.concatenate([np.append(np.int64(end), part) for _, part in _documents(text)])
    joined.astype(f"<u{width}").tofile(path / "tokenized.0")
    starts = np.arange(0, len(joined), _DOCUMENT + 1, dtype=np.uint64) * np.uint64(width)
    starts.tofile(path / "offset.0")
    temporary = path / "temporary"
    temporary.mkdir()
    # Its own builder changes the working folder and prints.
    with contextlib.chdir(path), contextlib.redirect_stdout(None):
        indexing.build_sa(
            Namespace(
                save_dir=str(path.resolve()), temp_dir=str(temporary.resolve()), worker_id=0, shards=1,
                workers=1, cpus=os.cpu_count(), mem=8, token_width=width, version=4,
            )
        )  # fmt: skip
    seconds = time.perf_counter() - begin
    shutil.rmtree(temporary)
    yield {"what": "build", "seconds": seconds, "bytes_per_token": _folder_bytes(path) / len(text)}
    begin = time.perf_counter()
    engine = InfiniGramEngine(
        str(path.resolve()), eos_token_id=vocab_size - 1, vocab_size=vocab_size, token_dtype=f"u{8 * width}"
    )
    yield {"what": "open", "seconds": time.perf_counter() - begin}
    lists = contexts.tolist()
    _timed(lambda context: engine.infgram_ntd(context, max_support=64), lists)
    measured = _timed(lambda context: engine.infgram_ntd(context, max_support=64), lists)
    yield {"what": "longest match and continuations", **measured}


def _documents(text: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    return ((at, text[at : at + _DOCUMENT]) for at in range(0, len(text), _DOCUMENT))


def _accepted(draft: Callable[[Any], DraftTree], contexts: Iterable[Any], following: NDArray[Any]) -> Row:
    """Mean tokens of a draft that agree with what really followed its context."""
    pairs = zip(contexts, following, strict=True)
    return {"accepted": float(np.mean([accept(draft(context), tokens).sum() for context, tokens in pairs]))}


def _timed(call: Callable[[Any], object], arguments: Iterable[Any]) -> Row:
    """Microseconds of a call, each argument once."""
    seconds = []
    for argument in arguments:
        begin = time.perf_counter()
        call(argument)
        seconds.append(time.perf_counter() - begin)
    p50, p95, top = np.percentile(seconds, [50, 95, 100]) * 1e6
    return {"us_p50": float(p50), "us_p95": float(p95), "us_max": float(top)}


_BUILD = f"""
import sys, threading, time
import numpy as np
from groundspeed.datastores.building import build
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.parts import Addition
from groundspeed.datastores.writer import TokenDatastoreWriter
text, path, vocab_size, memory_bytes = *sys.argv[1:3], *map(int, sys.argv[3:])
def status(what):
    words = open("/proc/self/status").read().split()
    return int(words[words.index(what + ":") + 1]) * 1024
tokens = np.memmap(text, np.uint32, "r").view(np.ndarray)
documents = (Addition(f"d{{at}}", tokens[at : at + {_DOCUMENT}]) for at in range(0, len(tokens), {_DOCUMENT}))
before, peak, done = status("RssAnon"), 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, status("RssAnon"))
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
opened = time.perf_counter()
with TokenDatastoreWriter.open(path, TokenizerFingerprint("bench", vocab_size, "bench")) as writer:
    begin = time.perf_counter()
    report = build(writer, "corpus", documents, memory_bytes=memory_bytes)
    seconds, size = time.perf_counter() - begin, writer.disk_bytes()
done.set()
watcher.join()
private = (peak - before) / 1e6
print(begin - opened, seconds, size / report.tokens, report.segments, private, status("VmHWM") / 1e6)
"""


def _build_elsewhere(text: NDArray[Any], vocab_size: int, path: Path, memory_bytes: int) -> Row:
    """Build in a process of its own.

    To load libraries and kernels is not building, nor is it counted for peers. Resident memory counts the
    mapped files too, which the system takes back when it needs room.
    """
    file = path.with_name("text")
    file.parent.mkdir(parents=True)
    text.tofile(file)
    arguments = [str(file), str(path), str(vocab_size), str(memory_bytes)]
    figures = _run(_BUILD, *arguments)
    file.unlink()
    names = ("load_seconds", "seconds", "bytes_per_token", "segments", "added_private_mb", "peak_resident_mb")
    return dict(zip(names, figures, strict=True))


_OPEN = """
import resource, sys, time
from groundspeed.datastores.tokens import TokenDatastore
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, begin = resident(), time.perf_counter()
store = TokenDatastore.open(sys.argv[1])
snapshot = store.snapshot()
print(time.perf_counter() - begin, (resident() - before) / 1e6, resident() / 1e6)
"""


def _open_elsewhere(path: Path) -> Row:
    seconds, added, whole = _run(_OPEN, str(path))
    return {"seconds": seconds, "added_mb": added, "resident_mb": whole}


def _run(program: str, *arguments: str) -> list[float]:
    """The figures that a program prints."""
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return [float(word) for word in run.stdout.split()]


def _drop_pages(path: Path) -> None:
    """Ask the system to forget the files, as if they had not been read since the start."""
    for file in path.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
