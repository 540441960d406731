"""Sorted stretches of text, in memory or mapped from a file, and which of their documents are deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.errors import InputError

__all__ = [
    "Addition",
    "DocumentList",
    "DocumentTable",
    "Part",
    "Piece",
    "Records",
    "check_addition",
    "encoded",
    "join_texts",
    "token_dtype",
]


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """A document on its way into a store.

    Attributes:
        id: Unique in its namespace.
        token_ids: int [k].
        metadata: Anything JSON can hold.
    """

    id: str
    token_ids: NDArray[Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The d documents of a part as a segment holds them.

    Attributes:
        data: uint8 [b], one record after the other: the JSON of an id, or of an id and metadata.
        offsets: int64 [d + 1], where each starts; b last.
        order: uint32 [d], the documents in the order of their ids as ``encoded`` writes them.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    order: NDArray[np.uint32]


class DocumentTable(Protocol):
    """The documents of a part, numbered in the order of its text."""

    def __len__(self) -> int: ...

    def id(self, number: int) -> str:
        """The id of a document."""
        ...

    def metadata(self, number: int) -> Mapping[str, Any]:
        """The metadata of a document."""
        ...

    def find(self, document_id: str) -> list[int]:
        """The documents with an id, in no order; more than one where all but one are deleted."""
        ...

    def records(self) -> Records:
        """All of them, to be copied."""
        ...


class DocumentList:
    """A document table in memory."""

    def __init__(self, ids: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> None:
        self._ids = ids
        self._metadata = metadata
        self._numbers: dict[str, list[int]] = {}
        for number, document_id in enumerate(ids):
            self._numbers.setdefault(document_id, []).append(number)

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, number: int) -> str:
        """The id of a document."""
        return self._ids[number]

    def metadata(self, number: int) -> Mapping[str, Any]:
        """The metadata of a document."""
        return self._metadata[number]

    def find(self, document_id: str) -> list[int]:
        """The documents with an id."""
        return self._numbers.get(document_id, [])

    def records(self) -> Records:
        """All of them, encoded."""
        ids = [encoded(document_id) for document_id in self._ids]
        records = [
            b"[%b, %b]" % (encoded_id, encoded(dict(metadata))) if metadata else encoded_id
            for encoded_id, metadata in zip(ids, self._metadata, strict=True)
        ]
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record) for record in records], out=offsets[1:])
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.uint32)
        return Records(np.frombuffer(b"".join(records), np.uint8), offsets, order)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def encoded(value: object) -> bytes:
    """An id or metadata as a record holds it."""
    return _encode(value).encode()


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A text of d documents and its rows by context. Never changes.

    Attributes:
        text: uint16 or uint32 [n], a separator, then every document followed by a separator.
        rows: uint32 [n], see ``sort_contexts``. The order holds for the last ``LONGEST`` tokens.
        keys: uint64, see ``top_keys``.
        starts: uint32 [d + 1], position of the first token of every document; the last entry is n.
        documents: Who they are.
        name: The file of a sealed segment, the log of a part in memory.
    """

    text: NDArray[Any]
    rows: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    starts: NDArray[np.uint32]
    documents: DocumentTable
    name: str

    @classmethod
    def of(cls, additions: Sequence[Addition], dtype: np.dtype[Any], name: str) -> Part:
        """Sort documents in memory."""
        from groundspeed.datastores.search import top_keys
        from groundspeed.datastores.sorting import sort_contexts

        text, starts = join_texts([addition.token_ids for addition in additions], dtype)
        rows = sort_contexts(text)
        documents = DocumentList(
            [addition.id for addition in additions], [addition.metadata for addition in additions]
        )
        return cls(text, rows, top_keys(text, rows), starts, documents, name)

    @property
    def tokens(self) -> int:
        """Tokens, without separators."""
        return len(self.text) - len(self.starts)


_NONE_DEAD = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part as one moment sees it: with some of its documents deleted. Never changes.

    Attributes:
        part: The text.
        dead: int64 [m], numbers of the deleted documents, rising.
        gaps: int64 [m, 2], first position of each and the one past its separator.
    """

    part: Part
    dead: NDArray[np.int64] = field(default_factory=lambda: _NONE_DEAD)
    gaps: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        starts = self.part.starts
        gaps = np.stack([starts[self.dead], starts[self.dead + 1]], axis=1).astype(np.int64)
        object.__setattr__(self, "gaps", np.ascontiguousarray(gaps))

    def find(self, document_id: str) -> int | None:
        """The number of the document with an id that is not deleted."""
        for number in self.part.documents.find(document_id):
            if not self.is_dead(number):
                return number
        return None

    def is_dead(self, number: int) -> bool:
        """Whether a document is deleted."""
        at = int(np.searchsorted(self.dead, number))
        return at < len(self.dead) and int(self.dead[at]) == number

    def without(self, number: int) -> Piece:
        """The same with one more document deleted."""
        at = int(np.searchsorted(self.dead, number))
        return Piece(self.part, np.insert(self.dead, at, number))

    @property
    def live_documents(self) -> int:
        """Documents that are not deleted."""
        return len(self.part.documents) - len(self.dead)

    @property
    def live_symbols(self) -> int:
        """Tokens and separators of the documents that are not deleted, and the first separator."""
        return len(self.part.text) - int((self.gaps[:, 1] - self.gaps[:, 0]).sum())

    @property
    def live_tokens(self) -> int:
        """Tokens of the documents that are not deleted."""
        return self.live_symbols - self.live_documents - 1

    def first_live(self) -> int:
        """Number of the oldest document that is not deleted; the number of documents when all are."""
        gaps = np.flatnonzero(self.dead != np.arange(len(self.dead)))
        return int(gaps[0]) if len(gaps) else len(self.dead)


def check_addition(tokenizer: TokenizerFingerprint, namespace: str, addition: Addition) -> Addition:
    """Make sure that a document can be kept, so that nothing fails once it is in the log.

    Returns:
        The same in the store's dtype.

    Raises:
        InputError: Saying what is wrong with it.
    """
    for what, name in (("namespace", namespace), ("document id", addition.id)):
        if not isinstance(name, str) or not name:
            raise InputError(f"The {what} is {name!r}; give a string that is not empty.")
    ids = addition.token_ids
    if ids.ndim != 1 or not (ids.dtype.kind in "iu" or ids.size == 0):
        raise InputError(
            f"The tokens of {addition.id!r} are {ids.dtype} {list(ids.shape)}; give integers [k]."
        )
    # Both extremes of many short documents would take longer than the rest of the check.
    signed = ids.dtype.kind != "u"
    if ids.size and (ids.max() >= tokenizer.vocab_size or (signed and ids.min() < 0)):
        outside = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        raise InputError(
            f"The tokens of {addition.id!r} hold {int(outside[0])}; ids of {tokenizer.name} lie in "
            f"[0, {tokenizer.vocab_size})."
        )
    metadata = dict(addition.metadata)
    try:
        namespace.encode()
        addition.id.encode()
        if metadata:  # most have none, and JSON would take most of the time
            metadata = json.loads(json.dumps(metadata))
            json.dumps(metadata, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The id or metadata of {addition.id!r} cannot be written as JSON in UTF-8 ({error}); give valid "
            "strings, numbers, lists and mappings."
        ) from error
    return Addition(addition.id, ids.astype(token_dtype(tokenizer.vocab_size)), metadata)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """How tokens are kept: 2 bytes while a separator still fits beside them, otherwise 4."""
    return np.dtype(np.uint16 if vocab_size < 1 << 16 else np.uint32)


def join_texts(
    documents: Sequence[NDArray[Any]], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Lay documents behind each other, with separators round them.

    Returns:
        The text, [n] of ``dtype``, and uint32 [d + 1] where each document starts, n last.
    """
    starts = np.ones(len(documents) + 1, np.uint32)
    np.cumsum([len(document) + 1 for document in documents], out=starts[1:])
    starts[1:] += np.uint32(1)
    text = np.empty(int(starts[-1]), dtype)
    text[:] = np.iinfo(dtype).max
    for document, start in zip(documents, starts[:-1].tolist(), strict=True):
        text[start : start + len(document)] = document
    return text, starts
