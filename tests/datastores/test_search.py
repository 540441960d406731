from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from groundspeed.datastores.search import LONGEST, levels, separator, top_keys
from groundspeed.datastores.sorting import sort_contexts


def as_text(documents: list[list[int]], dtype: type) -> NDArray[np.unsignedinteger]:
    end = int(np.iinfo(dtype).max)
    return np.array([end, *(token for document in documents for token in (*document, end))], dtype)


def brute_force(text: NDArray[np.unsignedinteger], context: list[int]) -> list[tuple[int, set[int]]]:
    """(length, positions that match at least so much), longest first, by comparing at every position."""
    tokens = text.tolist()
    overlaps = []
    for position in range(len(tokens)):
        n = 0
        while n < min(len(context), LONGEST) and tokens[position - n] == context[-1 - n]:
            n += 1
        overlaps.append(n)
    return [
        (length, {position for position, n in enumerate(overlaps) if n >= length})
        for length in sorted(set(overlaps) - {0}, reverse=True)
    ]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("vocabulary", [1, 2, 50_000])
def test_levels_are_those_of_comparing_the_context_everywhere(dtype: type, vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    for size in (0, 1, 7, 300, 3_000):
        # Few distinct tokens whatever the vocabulary, or nothing would match.
        alphabet = rng.integers(0, vocabulary, 12)
        documents = [rng.choice(alphabet, rng.integers(0, 40)).tolist() for _ in range(size // 20 + 1)]
        check(as_text(documents, dtype), [rng.choice(alphabet, n).tolist() for n in range(1, 30)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=60), max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
)
def test_levels_hold_on_repetitive_texts(documents: list[list[int]], context: list[int]) -> None:
    check(as_text(documents, np.uint16), [context])


def check(text: NDArray[np.unsignedinteger], contexts: list[list[int]]) -> None:
    rows = sort_contexts(text)
    keys = top_keys(text, rows)
    assert sorted(rows.tolist()) == list(range(len(text)))
    for context in contexts:
        found = np.empty((3, 3), np.int64)
        n = levels(text, rows, keys, np.array(context[::-1], np.int64), len(context), found)
        got = [(length, set(rows[first : last + 1].tolist())) for length, first, last in found[:n].tolist()]
        assert got == brute_force(text, context)[:3]


def test_the_separator_is_no_token_of_the_vocabulary() -> None:
    assert separator(np.empty(0, np.uint16)) == 65_535
    assert separator(np.empty(0, np.uint32)) == 4_294_967_295
