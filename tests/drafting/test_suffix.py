"""The suffix index against brute force and against suffix trees."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from suffix_trees import STree

from groundspeed.drafting.suffix import MAX_MATCH, SuffixIndex
from groundspeed.jit import kernel


def ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def index_of(texts: list[list[int]]) -> SuffixIndex:
    index = SuffixIndex()
    for text in texts:
        index.boundary()
        index.extend(ids(text))
    return index


def followers_by_brute_force(texts: list[list[int]]) -> dict[tuple[int, ...], Counter[int]]:
    """Every context of at most MAX_MATCH tokens with how often each token follows it."""
    followers: dict[tuple[int, ...], Counter[int]] = {}
    for text in texts:
        for end, token in enumerate(text):
            for start in range(max(0, end - MAX_MATCH), end + 1):
                followers.setdefault(tuple(text[start:end]), Counter())[token] += 1
    return followers


@st.composite
def token_texts(draw: st.DrawFn) -> list[list[int]]:
    """Up to four texts over 1, 2 or 50,000 tokens, some with a stretch said many times over."""
    token = st.integers(0, draw(st.sampled_from([0, 1, 49_999])))
    texts = draw(st.lists(st.lists(token, max_size=40), min_size=1, max_size=4))
    return [text * draw(st.sampled_from([1, 1, 3])) for text in texts]


@given(token_texts())
def test_followers_and_their_counts_equal_the_brute_force(texts: list[list[int]]) -> None:
    index = index_of(texts)
    for context, followers in followers_by_brute_force(texts).items():
        assert index.followers(ids(list(context))) == followers


@given(token_texts(), st.integers(0, 40))
def test_a_text_grown_in_pieces_is_indexed_like_one_given_whole(texts: list[list[int]], cut: int) -> None:
    whole = index_of(texts)
    pieces = index_of(texts[:-1])
    pieces.boundary()
    pieces.extend(ids(texts[-1][:cut]))
    for token in texts[-1][cut:]:
        pieces.extend(ids([token]))
    states, edges = whole.registers[0], whole.registers[1]
    assert np.array_equal(whole.registers, pieces.registers)
    assert np.array_equal(whole.states[:states], pieces.states[:states])
    assert np.array_equal(whole.edges[:edges], pieces.edges[:edges])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_occurrences_equal_those_of_a_suffix_tree(text: list[int]) -> None:
    # The tree takes text only: ids go to code points beyond the surrogates, which chr() cannot pass on.
    tree = STree.STree("".join(chr(0x10000 + token) for token in text))
    index = index_of([text])
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + 8) + 1):
            occurrences = tree.find_all("".join(chr(0x10000 + token) for token in text[start:end]))
            assert index.followers(ids(text[start : end - 1]))[text[end - 1]] == len(occurrences)


def test_no_context_reaches_across_a_boundary() -> None:
    index = index_of([[1, 2], [3, 4]])
    assert index.followers(ids([2])) == {}
    assert index.followers(ids([3])) == {4: 1}


def test_an_empty_text_changes_nothing_about_what_follows_what() -> None:
    assert index_of([[], [1, 2], []]).followers(ids([1])) == {2: 1}
    assert index_of([[]]).followers(ids([])) == {}


@pytest.mark.parametrize("period", [1, 7])
def test_a_long_repetitive_text_outgrows_the_first_arrays(period: int) -> None:
    text = [i % period for i in range(9_000)]
    index = index_of([text])
    starts = range(0, len(text) - MAX_MATCH, period)
    assert index.followers(ids(text[:MAX_MATCH])) == {text[MAX_MATCH]: len(starts)}


def test_kernels_compile_where_numba_may_write_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    assert kernel(_one_more)(1) == 2


def _one_more(number: int) -> int:
    return number + 1
