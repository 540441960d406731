"""Building a token datastore on a Ray cluster: workers read, tokenize and sort; this process publishes."""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from groundspeed import errors
from groundspeed.datastores.building import BuildReport, SortedPart, publish_parts, sort_documents
from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.writer import TokenDatastoreWriter
from groundspeed.errors import GroundspeedError
from groundspeed.integrations.ray_cluster import CHUNK_BYTES, cluster
from groundspeed.integrations.tokenizing import tokenize
from groundspeed.retrieval.loaders import LoadLog, SourceFile, list_files, load_files, no_documents
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["build_on_ray"]

logger = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]

_SHARES = 4  # of a core: many, so that none waits long for the last one
_RETRIES = 3  # of a share whose worker was lost; by default Ray never gives up. Ray 2.64 takes no such number


@dataclass(frozen=True, slots=True)
class _Job:
    """What every worker is told.

    Attributes:
        store: The store's folder, as this process sees it.
        prefix: Of the names of all files of this build.
        namespace: Where the documents will go.
        tokenizer: Of the store.
        fingerprint: The store's.
        memory_bytes: Most memory that a worker may gather and sort in.
        max_document_bytes: See ``load_documents``.
        skip_unreadable: See ``load_documents``.
    """

    store: Path
    prefix: str
    namespace: str
    tokenizer: PreTrainedTokenizerBase
    fingerprint: TokenizerFingerprint
    memory_bytes: int
    max_document_bytes: int
    skip_unreadable: bool


def build_on_ray(
    writer: TokenDatastoreWriter,
    namespace: str,
    paths: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerBase,
    *,
    memory_bytes: int = 2 << 30,
    max_document_bytes: int,
    skip_unreadable: bool = False,
    log: LoadLog | None = None,
    on_progress: ProgressCallback | None = None,
) -> BuildReport:
    """Add a corpus as ``build`` does, its files read, tokenized and sorted by the workers of a Ray cluster.

    The cluster is the one this process has joined, else that of ``RAY_ADDRESS``, else one that runs on this
    machine. Workers need groundspeed and see the files under the same paths. Where they see the store's
    folder as well they write into it; otherwise segments travel through the cluster. Ray tries again what a
    lost worker was doing.

    Args:
        writer: Of the store.
        namespace: Where to.
        paths: Files and folders, see ``load_documents``; one file is read by one worker.
        tokenizer: The store's.
        memory_bytes: Most memory that each worker gathers and sorts in.
        max_document_bytes: See ``load_documents``.
        skip_unreadable: See ``load_documents``.
        log: Is told what was left out.
        on_progress: Is told about the stages ``sort`` and ``merge``.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no cluster, or ``load_documents`` or ``build`` would raise; nothing was added.
        StoreError: A disk refused, or the workers failed; nothing was added.
    """
    log = log if log is not None else LoadLog()
    with cluster("building") as ray, _marked(writer.path) as prefix:
        job = _Job(
            writer.path.resolve(),
            prefix,
            namespace,
            tokenizer,
            writer.tokenizer,
            memory_bytes,
            max_document_bytes,
            skip_unreadable,
        )
        cores = int(ray.cluster_resources().get("CPU", 1))
        shares = list(_shares(list_files(paths, log), cores * _SHARES))
        if not shares:
            raise no_documents(paths, log)
        rows = ray.data.from_items(shares, override_num_blocks=len(shares)).flat_map(
            _work, fn_args=(job,), max_retries=_RETRIES
        )
        rows.context.enable_progress_bars = False
        report = publish_parts(writer, namespace, _arriving(writer, rows.iter_rows(), log), on_progress)
    if not report.documents:
        raise no_documents(paths, log)
    return report


@contextmanager
def _marked(store: Path) -> Iterator[str]:
    """The prefix of a build's files. A file of that name tells workers that they see the store's folder."""
    prefix = f"ray-{uuid4().hex}"
    marker = store / f"{prefix}.new"  # of a kind that the next writer removes after a crash
    marker.touch()
    try:
        yield prefix
    finally:
        for file in store.glob(f"{prefix}*"):
            file.unlink(missing_ok=True)


def _shares(files: Iterable[SourceFile], count: int) -> Iterator[Row]:
    """Files dealt out so that all shares are about as large; one that stays empty is left out."""
    shares: list[list[SourceFile]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for file in sorted(files, key=lambda file: -file.path.stat().st_size):
        load, number = heappop(loads)
        shares[number].append(file)
        heappush(loads, (load + file.path.stat().st_size, number))
    for number, share in enumerate(shares):
        if share:
            names = [(str(file.root), str(file.path), file.document_id) for file in share]
            yield {"share": number, "files": json.dumps(names)}


def _work(row: Row, job: _Job) -> Iterator[Row]:
    """Turn a share of the files into segments; runs on a worker, and again where a worker was lost.

    Yields:
        Rows of ``kind`` segment (``data`` holds ids and tokens), content (``data`` stands at ``offset`` of a
        segment that this process sees no other way), skipped (messages), or the name of an error.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a worker
    files = [SourceFile(Path(root), Path(path), name) for root, path, name in json.loads(row["files"])]
    log = LoadLog()
    here = (job.store / f"{job.prefix}.new").exists()
    with ExitStack() as stack:
        folder = job.store if here else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        documents = load_files(
            files, max_document_bytes=job.max_document_bytes, skip_unreadable=job.skip_unreadable, log=log
        )
        parts = sort_documents(
            job.fingerprint,
            job.namespace,
            tokenize((document for _, document in documents), job.tokenizer),
            job.memory_bytes,
            lambda: folder / f"{job.prefix}-{uuid4().hex}.new",
        )
        try:
            for number, part in enumerate(parts):
                name = f"{job.prefix}-{row['share']}-{number}.new"  # the same when it is done again
                if here:
                    part.path.replace(folder / name)
                else:
                    yield from _contents(part.path, name)
                    part.path.unlink()
                yield _row("segment", name, json.dumps([part.ids, part.tokens]).encode())
        except GroundspeedError as error:
            yield _row(type(error).__name__, "", str(error).encode())
        except Exception as error:
            logger.exception("the share %s of a build failed", row["share"])
            what = f"a worker on {platform.node()} failed, and nothing was added: {error!r}; see its log"
            yield _row("StoreError", "", what.encode())
    yield _row("skipped", "", json.dumps(log.skipped).encode())


def _contents(path: Path, name: str) -> Iterator[Row]:
    with path.open("rb") as handle:
        while data := handle.read(CHUNK_BYTES):
            yield _row("content", name, data, handle.tell() - len(data))


def _row(kind: str, name: str, data: bytes, offset: int = 0) -> Row:
    return {"kind": kind, "name": name, "data": data, "offset": offset}


def _arriving(writer: TokenDatastoreWriter, rows: Iterable[Row], log: LoadLog) -> Iterator[SortedPart]:
    """The segments that workers send, at paths that the writer takes."""
    for row in rows:
        path = writer.path / row["name"]
        if row["kind"] == "segment":
            ids, tokens = json.loads(row["data"])
            yield SortedPart(path.replace(writer.new_segment_path()), ids, tokens)
        elif row["kind"] == "content":
            with path.open("r+b" if path.exists() else "wb") as handle:
                handle.seek(row["offset"])
                handle.write(row["data"])
        elif row["kind"] == "skipped":
            log.skipped.extend(json.loads(row["data"]))
        else:
            raise getattr(errors, row["kind"])(row["data"].decode())
