"""Files and folders become documents."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from groundspeed.datastores.documents import is_store
from groundspeed.errors import InputError
from groundspeed.retrieval.formats import (
    Unreadable,
    is_jsonl,
    is_known,
    known_suffixes,
    parse,
    parse_jsonl,
)
from groundspeed.types import Document

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "LoadLog",
    "SourceFile",
    "list_files",
    "load_documents",
    "load_files",
    "load_roots",
    "no_documents",
]

MAX_DOCUMENT_BYTES = 32_000_000


@dataclass(slots=True)
class LoadLog:
    """What a load left out.

    Attributes:
        skipped: A message per unreadable file or row that was skipped.
        passed_over: Files of unknown type in the folders, counted by suffix.
    """

    skipped: list[str] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        root: The given path it is from, absolute.
        path: Its own, absolute.
        document_id: Of its document, unless it is JSONL, whose rows bring their own.
    """

    root: Path
    path: Path
    document_id: str


def load_documents(
    paths: Iterable[str | Path],
    *,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    skip_unreadable: bool = False,
    log: LoadLog | None = None,
) -> Iterator[Document]:
    """Read the documents of files and folders: text, Markdown, reStructuredText, HTML, PDF, JSONL, JSONL.gz.

    A document's id is its path below the given folder, or the file's name for a file given itself; rows of
    JSONL bring their own. In folders, hidden files and files of unknown type are passed over.

    Args:
        paths: Files and folders.
        max_document_bytes: A larger file, or row of JSONL, is refused.
        skip_unreadable: Skip files and rows that cannot be read instead of raising.
        log: Is told what was left out.

    Raises:
        InputError: A path is missing or given twice, a file cannot be read, an id occurs twice, or there is
            no document at all.
    """
    roots = load_roots(paths, max_document_bytes=max_document_bytes, skip_unreadable=skip_unreadable, log=log)
    for _, document in roots:
        yield document


def load_roots(
    paths: Iterable[str | Path],
    *,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    skip_unreadable: bool = False,
    log: LoadLog | None = None,
) -> Iterator[tuple[Path, Document]]:
    """Do what ``load_documents`` does, and give the path (made absolute) each document is from."""
    log = log if log is not None else LoadLog()
    paths = list(paths)
    none = True
    for file, document in load_files(
        list_files(paths, log),
        max_document_bytes=max_document_bytes,
        skip_unreadable=skip_unreadable,
        log=log,
    ):
        none = False
        yield file.root, document
    if none:
        raise no_documents(paths, log)


def list_files(paths: Iterable[str | Path], log: LoadLog) -> Iterator[SourceFile]:
    """The files of known type that the paths hold.

    Raises:
        InputError: A path is missing or given twice, or a folder cannot be read.
    """
    for root in absolute_roots(paths):
        for path, document_id in _walk(root, log):
            yield SourceFile(root, path, document_id)


def load_files(
    files: Iterable[SourceFile], *, max_document_bytes: int, skip_unreadable: bool, log: LoadLog
) -> Iterator[tuple[SourceFile, Document]]:
    """Read the documents of files that ``list_files`` found; the other arguments are ``load_documents``'."""
    origin: dict[str, Path] = {}
    for file in files:
        for document in _read(file.path, file.document_id, max_document_bytes):
            if isinstance(document, Unreadable):
                message = f"{file.path}: {document}"
                if not skip_unreadable:
                    raise InputError(f"{message}, or pass --skip-unreadable to leave it out.")
                log.skipped.append(message)
            elif document.id in origin:
                raise InputError(
                    f"Two documents have the id {document.id!r}: one in {origin[document.id]}, "
                    f"one in {file.path}. Ids must be unique; rename one, or index the folder that holds "
                    "both."
                )
            else:
                origin[document.id] = file.path
                yield file, document


def no_documents(paths: Iterable[str | Path], log: LoadLog) -> InputError:
    """The error for paths that hold no document."""
    names = ", ".join(str(Path(path).resolve()) for path in paths) or "no path"
    left_out = f", {len(log.skipped)} unreadable" if log.skipped else ""
    return InputError(
        f"There is no document in {names} "
        f"({sum(log.passed_over.values())} files of unknown type{left_out}); "
        f"give files or folders with {known_suffixes()} files."
    )


def absolute_roots(paths: Iterable[str | Path]) -> list[Path]:
    """Make paths absolute and check that each exists and none lies in another.

    Raises:
        InputError: Naming the path.
    """
    roots: list[Path] = []
    for given in paths:
        root = Path(given).resolve()
        if not root.exists():
            raise InputError(f"{given} does not exist; give a file or folder that does.")
        if root.is_file() and not is_known(root.name):
            raise InputError(
                f"{given} is of an unknown type; known are {known_suffixes()}. "
                "Convert it, or rename it if it is text."
            )
        for other in roots:
            if root.is_relative_to(other) or other.is_relative_to(root):
                raise InputError(f"{root} and {other} overlap; give each file once.")
        roots.append(root)
    return roots


def _walk(root: Path, log: LoadLog) -> Iterator[tuple[Path, str]]:
    """The files to read and their ids, in order of their names."""
    if root.is_file():
        yield root, root.name
        return
    for folder, folders, names in os.walk(root, onerror=_raise_unreadable_folder):
        if is_store(Path(folder)):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or not path.is_file():
                continue
            if is_known(name):
                yield path, path.relative_to(root).as_posix()
            else:
                log.passed_over[path.suffix.lower() or "without suffix"] += 1


def _raise_unreadable_folder(error: OSError) -> None:
    raise InputError(
        f"The folder {error.filename} cannot be read ({error.strerror}); change its permissions."
    )


def _read(path: Path, document_id: str, max_bytes: int) -> Iterator[Document | Unreadable]:
    """The documents of a file; what cannot be read comes out as a value."""
    try:
        if is_jsonl(path.name):
            for document in parse_jsonl(path, max_bytes):
                yield document if isinstance(document, Unreadable) else _checked(document)
        else:
            if (size := path.stat().st_size) > max_bytes:
                raise Unreadable(
                    f"it has {size / 1e6:.1f} MB, the limit is {max_bytes / 1e6:g}; "
                    "raise --max-document-mb or split it"
                )
            parsed = parse(path.name, path.read_bytes())
            yield _checked(Document(document_id, parsed.text, parsed.metadata))
    except Unreadable as unreadable:
        yield unreadable
    except OSError as error:
        yield Unreadable(f"it cannot be read ({error.strerror}); change its permissions")


def _checked(document: Document) -> Document | Unreadable:
    if not document.text.strip():
        return Unreadable(f"the document {document.id!r} holds no text; fill or remove it")
    metadata = json.dumps(dict(document.metadata), ensure_ascii=False)
    for what, text in (("id", document.id), ("text", document.text), ("metadata", metadata)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return Unreadable(
                f"the {what} of the document {document.id!r} holds half a surrogate pair at character "
                f"{error.start}; write valid Unicode"
            )
    return document
