from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import RunnerUps
from groundspeed.drafting.recycled import RecycledTokens
from groundspeed.errors import DraftError

WIDTH = 3


@st.composite
def verifications(draw):
    """The token before, and rows of a tree with what was shown behind each."""
    tokens = st.integers(0, 5)
    parents = [-1]
    for row in range(1, draw(st.integers(1, 6))):
        parents.append(draw(st.integers(0, row - 1)))
    n = len(parents)
    shown = RunnerUps(
        np.array([draw(tokens) for _ in range(n)], np.int32),
        np.array(parents, np.int32),
        np.array([[draw(tokens) for _ in range(WIDTH)] for _ in range(n)], np.int32),
    )
    return draw(st.integers(-1, 5)), shown


@given(st.lists(verifications(), max_size=8))
def test_a_table_with_room_is_a_dictionary_of_the_last_two_tokens_and_of_the_last(verified):
    table = RecycledTokens(capacity=1024, width=WIDTH)
    pairs: dict[tuple[int, int], list[int]] = {}
    singles: dict[int, list[int]] = {}
    for previous, shown in verified:
        table.store(previous, shown)
        tokens = shown.token_ids.tolist()
        for row, (token, parent) in enumerate(zip(tokens, shown.parents.tolist(), strict=True)):
            before = previous if row == 0 else tokens[parent]
            singles[token] = shown.top_ids[row].tolist()
            if before >= 0:
                pairs[before, token] = singles[token]
    for previous in range(-1, 7):
        for token in range(7):
            found, order = table.lookup(previous, token)
            if (previous, token) in pairs:
                assert (found.tolist(), order) == (pairs[previous, token], 2)
            elif token in singles:
                assert (found.tolist(), order) == (singles[token], 1)
            else:
                assert (found.tolist(), order) == ([], 0)


def test_a_full_table_keeps_its_size_and_what_is_new():
    table = RecycledTokens(capacity=64, width=WIDTH)
    for token in range(5_000):
        table.store(-1, one(token, [token + 1, token + 2, token + 3]))
        assert table.lookup(-1, token)[0].tolist() == [token + 1, token + 2, token + 3]
    kept = [token for token in range(5_000) if table.lookup(-1, token)[1]]
    assert len(kept) == 64
    assert min(kept) > 5_000 - 64 * 8


def test_fewer_tokens_than_the_table_is_wide_are_kept_and_more_are_cut():
    table = RecycledTokens(capacity=64, width=WIDTH)
    table.store(-1, one(7, [1]))
    assert table.lookup(9, 7)[0].tolist() == [1]
    table.store(-1, one(7, [5, 4, 3, 2]))
    assert table.lookup(9, 7)[0].tolist() == [5, 4, 3]


def test_large_token_ids_and_the_first_token_of_all_are_keys_like_others():
    table = RecycledTokens(capacity=64, width=WIDTH)
    largest = 2**31 - 2
    table.store(largest, one(largest, [0, 1, 2]))
    table.store(0, one(0, [3, 4, 5]))
    assert table.lookup(largest, largest)[1] == 2
    assert table.lookup(0, 0)[0].tolist() == [3, 4, 5]
    assert table.lookup(0, largest)[1] == 1


def test_threads_may_share_a_table():
    table = RecycledTokens(capacity=256, width=WIDTH)

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for token in rng.integers(0, 400, 2_000).tolist():
            table.store(token, one(token, [token, token, token]))
            found, order = table.lookup(token, int(rng.integers(0, 400)))
            if order and len(found) != WIDTH:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize(("capacity", "width"), [(0, 1), (4, 1), (100, 1), (64, 0)])
def test_a_size_that_cannot_be_is_refused(capacity, width):
    with pytest.raises(DraftError, match="power of two"):
        RecycledTokens(capacity, width)


def one(token: int, top: list[int]) -> RunnerUps:
    return RunnerUps(np.array([token], np.int32), np.array([-1], np.int32), np.array([top], np.int32))
