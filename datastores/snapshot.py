"""What some namespaces of a store hold at one moment, and the questions that can be asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.parts import Addition, Part, Piece, token_dtype
from groundspeed.datastores.pointers import piece_table
from groundspeed.errors import InputError

__all__ = ["Continuations", "Snapshot", "StoredPosition"]


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Where a stored token is from.

    Attributes:
        namespace: Of the document.
        document_id: Its id.
        offset: Number of the token in the document.
        metadata: Of the document.
    """

    namespace: str
    document_id: str
    offset: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Continuations:
    """What followed a context.

    Attributes:
        longest: Tokens of the longest match that something followed, 0 for none; at most ``LONGEST``.
        complete: The shortest length whose counts take in everything.
        by_length: For each length that was looked at, longest first, the tokens that followed a match of at
            least that length, with how often; an unbiased estimate where there were too many to look at.
    """

    longest: int
    complete: int
    by_length: Mapping[int, Mapping[int, float]]


class Snapshot:
    """The pieces of some namespaces. Never changes; keeps alive what it needs, also files that are deleted.

    Attributes:
        pieces: Largest first.
        namespaces: Of each piece.
        table: int64 [p, COLUMNS], what kernels take (see ``pointers``); valid while the snapshot lives.
        like: Empty array of the text's dtype, the other thing kernels take.
    """

    __slots__ = ("like", "namespaces", "pieces", "table")

    def __init__(self, pieces: Sequence[tuple[str, Piece]], dtype: np.dtype[Any]) -> None:
        ordered = sorted(
            ((name, piece) for name, piece in pieces if piece.live_documents),
            key=lambda entry: -len(entry[1].part.text),
        )
        self.namespaces = tuple(name for name, _ in ordered)
        self.pieces = tuple(piece for _, piece in ordered)
        self.table = piece_table(self.pieces)
        self.like: NDArray[Any] = np.empty(0, dtype)

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """table, like: what kernels take. Hold the snapshot for as long."""
        return self.table, self.like

    @classmethod
    def of(cls, documents: Sequence[NDArray[Any]], vocab_size: int) -> Snapshot:
        """Documents that are kept in memory only, int [k] each: earlier answers, a small corpus.

        Args:
            documents: Ids below ``vocab_size``.
            vocab_size: Of the tokenizer.
        """
        additions = [Addition(str(number), document) for number, document in enumerate(documents)]
        dtype = token_dtype(vocab_size)
        return cls([("memory", Piece(Part.of(additions, dtype, "memory")))], dtype)

    @property
    def tokens(self) -> int:
        """Tokens that can be found."""
        return sum(piece.live_tokens for piece in self.pieces)

    def find(
        self, context: NDArray[Any], *, depth: int = 2, spread: int = 64, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
        """The matches of a context, see ``gather``.

        Args:
            context: int [c], the last token last.
            depth: Lengths wanted of each piece.
            spread: Most rows of one length in one piece.
            seed: Of the sample.

        Returns:
            int64 [m, MATCH_COLUMNS], float64 [m] weights, and the shortest complete length.
        """
        from groundspeed.datastores.matches import MATCH_COLUMNS, NO_LIMIT, gather
        from groundspeed.datastores.search import LONGEST

        room = max(len(self.pieces) * depth * spread, 1)
        out = np.empty((room, MATCH_COLUMNS), np.int64)
        weights = np.empty(room, np.float64)
        backwards = np.ascontiguousarray(context[-LONGEST:][::-1], np.int64)
        n, complete = gather(
            self.table,
            self.like,
            backwards,
            len(backwards),
            depth,
            spread,
            NO_LIMIT,
            NO_LIMIT,
            np.uint64(seed),
            out,
            weights,
        )
        return out[:n], weights[:n], complete

    def continuations(
        self, context: NDArray[Any], *, depth: int = 2, spread: int = 64, seed: int = 0
    ) -> Continuations:
        """What followed a context, by length of match; the arguments are those of ``find``."""
        from groundspeed.datastores.matches import LENGTH, TOKEN

        matches, weights, complete = self.find(context, depth=depth, spread=spread, seed=seed)
        by_length: dict[int, dict[int, float]] = {}
        for length in sorted(set(matches[:, LENGTH].tolist()), reverse=True):
            counts: dict[int, float] = {}
            reach = matches[:, LENGTH] >= length
            for token, weight in zip(matches[reach, TOKEN].tolist(), weights[reach].tolist(), strict=True):
                counts[token] = counts.get(token, 0.0) + weight
            by_length[length] = counts
        return Continuations(max(by_length, default=0), complete, by_length)

    def document_at(self, piece: int, position: int) -> StoredPosition:
        """Whose token stands at a position.

        Raises:
            InputError: No token stands there.
        """
        part = self.pieces[piece].part
        number = int(np.searchsorted(part.starts, position, side="right")) - 1
        if not 0 <= position < len(part.text) or part.text[position] == part.text[0]:
            raise InputError(
                f"No token stands at position {position} of piece {piece}; give one that `find` returned."
            )
        return StoredPosition(
            self.namespaces[piece],
            part.documents.id(number),
            position - int(part.starts[number]),
            part.documents.metadata(number),
        )
