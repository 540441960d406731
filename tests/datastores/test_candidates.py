from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from groundspeed.datastores.candidates import candidates
from groundspeed.datastores.parts import Addition, Part, Piece
from groundspeed.datastores.snapshot import Snapshot


def draft(documents: list[list[int]], context: list[int], budget: int) -> list[tuple[tuple[int, ...], float]]:
    """The paths of the nodes of a draft with their shares, in the order they were taken."""
    return nodes_of(Snapshot.of([np.array(document) for document in documents], 100), context, budget)


def nodes_of(snapshot: Snapshot, context: list[int], budget: int) -> list[tuple[tuple[int, ...], float]]:
    tokens, parents = np.empty(budget, np.int64), np.empty(budget, np.int64)
    shares: NDArray[np.float64] = np.empty(budget)
    backwards = np.array(context[::-1], np.int64)
    n = candidates(
        snapshot.table, snapshot.like, backwards, len(context), 2, 64, np.uint64(0), tokens, parents, shares
    )
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens[:n].tolist(), parents[:n].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return list(zip(paths, shares[:n].tolist(), strict=True))


def test_a_draft_holds_the_paths_that_most_matches_go_on_with() -> None:
    rng = np.random.default_rng(3)
    documents = [[1, 2, *rng.integers(3, 6, 12).tolist()] for _ in range(40)]
    got = draft(documents, [1, 2], 30)
    # Every document starts with the context; the shares of a path are counted by comparing all of them.
    counts: dict[tuple[int, ...], int] = {}
    for document in documents:
        for end in range(3, len(document) + 1):
            path = tuple(document[2:end])
            counts[path] = counts.get(path, 0) + 1
    best = sorted(counts.values(), reverse=True)[:30]
    assert len({path for path, _ in got}) == 30
    assert [counts[path] for path, _ in got] == best
    np.testing.assert_allclose([share for _, share in got], np.array(best) * 0.75 / 40, rtol=1e-9)


def test_equally_likely_continuations_grow_equally_deep() -> None:
    documents = [[1, 2, *range(first, first + 10)] for first in (10, 30, 50)]
    got = draft(documents, [1, 2], 12)
    depths = {first: max(len(path) for path, _ in got if path[0] == first) for first in (10, 30, 50)}
    assert depths == {10: 4, 30: 4, 50: 4}


def test_short_matches_take_no_room_where_enough_matches_are_long() -> None:
    long = [[1, 2, 3, 50 + at] for at in range(4)]
    short = [[9, 3, 80 + at] for at in range(4)]
    assert {path for path, _ in draft(long + short, [1, 2, 3], 30)} == {(50 + at,) for at in range(4)}
    some = {path for path, _ in draft(long[1:] + short, [1, 2, 3], 30)}
    assert some == {(50 + at,) for at in range(1, 4)} | {(80 + at,) for at in range(4)}


def test_matches_of_one_piece_make_shorter_ones_of_others_needless() -> None:
    dtype = np.dtype(np.uint16)
    contents = ([[1, 2, 3, 50 + at] for at in range(4)], [[9, 3, 80]], [[2, 3, 81]], [[1, 2, 3, 82]])
    additions = [[Addition(str(tokens), np.array(tokens, dtype)) for tokens in part] for part in contents]
    pieces = [("corpus", Piece(Part.of(part, dtype, "memory"))) for part in additions]
    got = nodes_of(Snapshot(pieces, dtype), [1, 2, 3], 30)
    assert {path for path, _ in got} == {(token,) for token in (*range(50, 54), 82)}


def test_a_smaller_draft_is_the_beginning_of_a_larger_one() -> None:
    rng = np.random.default_rng(5)
    for alphabet in (5, 6, 40):
        documents = [[1, 2, *rng.integers(3, alphabet, rng.integers(1, 20)).tolist()] for _ in range(30)]
        largest = draft(documents, [1, 2], 200)
        assert len(largest) > 60
        for budget in range(1, 61):
            assert draft(documents, [1, 2], budget) == largest[:budget]


def test_a_text_whose_end_is_damaged_is_not_followed_past_it() -> None:
    dtype = np.dtype(np.uint16)
    documents = [[1, 2, 3, *range(10, 40)], [1, 2, 3, 50]]
    part = Part.of([Addition(str(tokens), np.array(tokens, dtype)) for tokens in documents], dtype, "memory")
    memory = np.full(len(part.text) + 40, 77, dtype)  # what stands behind the text is nobody's
    memory[: len(part.text)] = part.text
    memory[len(part.text) - 1] = 60  # was a separator
    damaged = replace(part, text=memory[: len(part.text)])
    got = {path for path, _ in nodes_of(Snapshot([("corpus", Piece(damaged))], dtype), [1, 2, 3], 20)}
    assert got == {tuple(range(10, end)) for end in range(11, 31)}
    whole = {path for path, _ in nodes_of(Snapshot([("corpus", Piece(part))], dtype), [1, 2, 3], 20)}
    assert (50,) in whole
