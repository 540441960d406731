"""An oracle for the token datastore: every document compared with the context, token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from groundspeed.datastores.fingerprint import TokenizerFingerprint
from groundspeed.datastores.search import LONGEST
from groundspeed.datastores.snapshot import Continuations
from groundspeed.datastores.tokens import TokenDatastore

SMALL = TokenizerFingerprint("small", 50_000, "small")
LARGE = TokenizerFingerprint("large", 128_256, "large")


def brute_force(documents: Iterable[tuple[int, ...]], context: list[int]) -> dict[int, dict[int, int]]:
    """By length, longest first, how often each token followed a match of at least that length."""
    matches: list[tuple[int, int]] = []
    for document in documents:
        for position in range(1, len(document)):
            n = 0
            while n < min(len(context), LONGEST, position) and document[position - 1 - n] == context[-1 - n]:
                n += 1
            if n:
                matches.append((n, document[position]))
    found: dict[int, dict[int, int]] = {}
    for length in sorted({n for n, _ in matches}, reverse=True):
        counts: dict[int, int] = {}
        for n, token in matches:
            if n >= length:
                counts[token] = counts.get(token, 0) + 1
        found[length] = counts
    return found


def assert_exact(found: Continuations, wanted: Mapping[int, Mapping[int, int]]) -> None:
    """What was found is what brute force finds, down to the length that is complete."""
    assert found.longest == max(wanted, default=0)
    lengths = [length for length in wanted if length >= found.complete]
    assert lengths == [length for length in found.by_length if length >= found.complete]
    for length in lengths:
        assert found.by_length[length] == wanted[length]


def contents_of(store: TokenDatastore, namespace: str) -> dict[str, tuple[int, ...]]:
    """All documents of a namespace with their tokens, read from its pieces."""
    found = {}
    for piece in store.snapshot([namespace]).pieces:
        starts = piece.part.starts
        for number in range(len(piece.part.documents)):
            if not piece.is_dead(number):
                text = piece.part.text[starts[number] : starts[number + 1] - 1]
                found[piece.part.documents.id(number)] = tuple(text.tolist())
    return found
