"""``groundspeed datastore``: the token datastore from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.table import Table

from groundspeed.errors import InputError
from groundspeed.integrations.cli import options
from groundspeed.integrations.cli.console import (
    print_error,
    print_json,
    printable,
    progress_bars,
    quiet_libraries,
    stderr,
    stdout,
)
from groundspeed.types import Document

if TYPE_CHECKING:
    from groundspeed.datastores.writer import TokenDatastoreWriter
    from groundspeed.retrieval.loaders import LoadLog

__all__ = ["datastore"]

datastore = typer.Typer(help="Keep text as tokens to draft from.", no_args_is_help=True)

Paths: TypeAlias = Annotated[
    list[Path], typer.Argument(help="Files and folders: text, Markdown, HTML, PDF, JSONL.", metavar="PATH...")
]
Namespace: TypeAlias = Annotated[str, typer.Option(help="Tenant or collection.")]
Tokenizer: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Hub id, folder or GGUF file; by default the store's, or the embedded model's."),
]
MaxDocument: TypeAlias = Annotated[float, typer.Option(min=0.001, help="Larger documents are refused.")]
SkipUnreadable: TypeAlias = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out what cannot be read instead of stopping.")
]


@datastore.command("build")
def build_command(
    paths: Paths,
    store: options.Store,
    tokenizer: Tokenizer = None,
    namespace: Namespace = "corpus",
    memory_gb: Annotated[float, typer.Option(min=0.001, help="Most memory to sort in (of each worker).")] = 2,
    max_document_mb: MaxDocument = 32,
    skip_unreadable: SkipUnreadable = False,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Build on a Ray cluster: that of RAY_ADDRESS, or one on this machine."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Add a corpus at once: tokenized on all cores, sorted in bounded memory, visible at the end."""
    from groundspeed.datastores.building import build
    from groundspeed.integrations.ray_build import build_on_ray
    from groundspeed.integrations.tokenizing import tokenize
    from groundspeed.retrieval.loaders import LoadLog
    from groundspeed.verify.loading import load_tokenizer

    log = LoadLog()
    loaded = load_tokenizer(_tokenizer_name(store, tokenizer))
    memory_bytes, max_bytes = int(memory_gb * 1e9), int(max_document_mb * 1e6)
    with _writer(store, loaded) as writer, progress_bars("tokens") as report:
        if ray:
            done = build_on_ray(
                writer,
                namespace,
                paths,
                loaded,
                memory_bytes=memory_bytes,
                max_document_bytes=max_bytes,
                skip_unreadable=skip_unreadable,
                log=log,
                on_progress=report,
            )
        else:
            documents = _documents(paths, max_document_mb, skip_unreadable, log)
            additions = tokenize(documents, loaded, report, _total_bytes(paths))
            done = build(writer, namespace, additions, memory_bytes=memory_bytes, on_progress=report)
    _print_skipped(log)
    if as_json:
        print_json({"store": str(store), "namespace": namespace, **asdict(done), "skipped": log.skipped})
    else:
        _line(
            f"{store}: {done.documents:,} documents ({done.replaced:,} replaced), {done.tokens:,} tokens "
            f"added to {namespace}"
        )


@datastore.command()
def add(
    paths: Paths,
    store: options.Store,
    tokenizer: Tokenizer = None,
    namespace: Namespace = "corpus",
    max_document_mb: MaxDocument = 32,
    skip_unreadable: SkipUnreadable = False,
    as_json: options.Json = False,
) -> None:
    """Add documents one by one, each visible and durable at once; those with a known id are replaced."""
    from groundspeed.integrations.tokenizing import tokenize
    from groundspeed.retrieval.loaders import LoadLog
    from groundspeed.verify.loading import load_tokenizer

    log = LoadLog()
    loaded = load_tokenizer(_tokenizer_name(store, tokenizer))
    documents = tokens = 0
    with _writer(store, loaded) as writer, progress_bars("documents") as report:
        for addition in tokenize(_documents(paths, max_document_mb, skip_unreadable, log), loaded):
            writer.append(namespace, addition.id, addition.token_ids, addition.metadata, replace=True)
            documents += 1
            tokens += len(addition.token_ids)
            report("add", documents, 0)
    _print_skipped(log)
    if as_json:
        print_json({"store": str(store), "namespace": namespace, "documents": documents, "tokens": tokens})
    else:
        _line(f"{store}: {documents:,} documents, {tokens:,} tokens added to {namespace}")


@datastore.command()
def delete(
    ids: Annotated[list[str], typer.Argument(help="Ids of documents.", metavar="ID...")],
    store: options.Store,
    namespace: Namespace = "corpus",
) -> None:
    """Delete documents by id. The exit code is 1 if one was not there."""
    with _writer(store) as writer:
        held = writer.held(namespace, ids)
        missing = [document_id for document_id in ids if document_id not in held]
        count = writer.delete(namespace, ids)
    _line(f"{store}: {count} documents deleted from {namespace}")
    if missing:
        raise InputError(f"{namespace} held no document {', '.join(missing)}; `stats` lists the namespaces.")


@datastore.command()
def publish(
    target: Annotated[Path, typer.Argument(help="Folder on every node, absolute.")],
    store: options.Store,
    as_json: options.Json = False,
) -> None:
    """Copy the store to a folder on every node of the Ray cluster; readers of the copies go on.

    Nodes are sent what they lack.
    """
    from groundspeed.integrations.ray_publish import publish_on_ray

    with progress_bars("bytes") as report:
        sent = publish_on_ray(store, target, on_progress=report)
    if as_json:
        print_json({"store": str(store), "target": str(target), "sent": sent})
        return
    for address, size in sent.items():
        _line(f"{address}: {size:,} bytes sent to {target}")


@datastore.command()
def merge(store: options.Store) -> None:
    """Bring each namespace into one segment, dropping what was deleted."""
    with _writer(store) as writer, progress_bars("tokens") as report:
        writer.merge(report)
        size = writer.disk_bytes()
    _line(f"{store}: merged, {size:,} bytes")


@datastore.command()
def verify(
    store: options.Store,
    aside: Annotated[
        bool, typer.Option("--set-aside", help="Move damaged files to damaged/ and go on without them.")
    ] = False,
) -> None:
    """Compare every checksum; the exit code is 0 only for a sound store."""
    from groundspeed.datastores.checking import find_damage, set_aside

    with progress_bars("bytes") as report:
        found = find_damage(store, report)
    for error in found:
        print_error(str(error))
    if not found:
        _line(f"{store}: sound")
        return
    if aside:
        for name in set_aside(store):
            _line(f"set aside: {name}")
    raise typer.Exit(1)


@datastore.command()
def stats(store: options.Store, as_json: options.Json = False) -> None:
    """Show what each namespace holds."""
    from groundspeed.datastores.tokens import TokenDatastore

    with TokenDatastore.open(store) as opened:
        namespaces = opened.stats()
        size, tokenizer = opened.disk_bytes(), opened.tokenizer
    if as_json:
        print_json(
            {
                "store": str(store),
                "tokenizer": asdict(tokenizer),
                "bytes": size,
                "namespaces": {name: asdict(held) for name, held in namespaces.items()},
            }
        )
        return
    table = Table("namespace", "documents", "tokens", "deleted", "segments", "in memory", box=None)
    for name, held in namespaces.items():
        counts = (held.documents, held.tokens, held.deleted_tokens, held.segments, held.parts)
        table.add_row(printable(name), *(f"{count:,}" for count in counts))
    stdout().print(table, markup=False)
    _line(f"{size:,} bytes; tokenizer {tokenizer.name}, {tokenizer.vocab_size:,} ids")


@datastore.command()
def query(
    context: Annotated[str, typer.Argument(help="Text whose continuation is asked for.")],
    store: options.Store,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Namespace to look in; may be repeated; default all.")
    ] = None,
    tokenizer: Tokenizer = None,
    limit: Annotated[int, typer.Option(min=1, help="Continuations to show of each length.")] = 8,
    as_json: options.Json = False,
) -> None:
    """Show what followed a text: by length of match, the tokens, how often, and from which document."""
    import numpy as np

    from groundspeed.datastores.fingerprint import TokenizerFingerprint
    from groundspeed.datastores.matches import LENGTH, PIECE, POSITION, TOKEN
    from groundspeed.datastores.tokens import TokenDatastore
    from groundspeed.verify.loading import load_tokenizer

    quiet_libraries()
    loaded = load_tokenizer(_tokenizer_name(store, tokenizer))
    ids = np.array(loaded(context, add_special_tokens=False)["input_ids"], np.int64)
    with TokenDatastore.open(store, TokenizerFingerprint.of(loaded)) as opened:
        snapshot = opened.snapshot(namespace)
    found = snapshot.continuations(ids, depth=4, spread=256)
    matches, _, _ = snapshot.find(ids, depth=4, spread=256)
    rows = []
    for length, counts in found.by_length.items():
        for token, count in sorted(counts.items(), key=lambda entry: -entry[1])[:limit]:
            hit = matches[(matches[:, LENGTH] >= length) & (matches[:, TOKEN] == token)][0]
            at = snapshot.document_at(int(hit[PIECE]), int(hit[POSITION]))
            rows.append(
                {
                    "length": length,
                    "token": token,
                    "text": loaded.decode([token]),
                    "count": count,
                    "namespace": at.namespace,
                    "document": at.document_id,
                    "offset": at.offset,
                }
            )
    if as_json:
        print_json({"longest": found.longest, "complete": found.complete, "continuations": rows})
        return
    table = Table("match", "token", "count", "for example in", box=None)
    for row in rows:
        where = f"{row['namespace']}: {row['document']}, token {row['offset']}"
        table.add_row(str(row["length"]), repr(row["text"]), f"{row['count']:.0f}", printable(where))
    stdout().print(table, markup=False)


@contextmanager
def _writer(store: Path, tokenizer: object = None) -> Iterator[TokenDatastoreWriter]:
    from groundspeed.datastores.fingerprint import TokenizerFingerprint
    from groundspeed.datastores.writer import TokenDatastoreWriter

    fingerprint = None if tokenizer is None else TokenizerFingerprint.of(tokenizer)
    with TokenDatastoreWriter.open(store, fingerprint, background=False) as writer:
        yield writer


def _tokenizer_name(store: Path, given: str | None) -> str | None:
    """The tokenizer that was given, else the store's own, else the default of a new store."""
    from groundspeed.datastores.manifest import Manifest
    from groundspeed.datastores.tokens import is_token_datastore

    quiet_libraries()
    if given is None and is_token_datastore(store):
        return Manifest.read(store).tokenizer.name
    return given


def _documents(paths: list[Path], max_mb: float, skip: bool, log: LoadLog) -> Iterator[Document]:
    from groundspeed.retrieval.loaders import load_documents

    return load_documents(paths, max_document_bytes=int(max_mb * 1e6), skip_unreadable=skip, log=log)


def _total_bytes(paths: list[Path]) -> int:
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_size for file in files if file.is_file())


def _print_skipped(log: LoadLog) -> None:
    for message in log.skipped:
        stderr().print(printable(f"skipped: {message}"), markup=False, soft_wrap=True)


def _line(text: str) -> None:
    stdout().print(printable(text), markup=False, soft_wrap=True)
