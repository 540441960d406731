"""Attention over pages against the formula, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.attention import ancestors, formula, parent_lists
from helpers.drafters import tree_of
from hypothesis import given, settings
from hypothesis import strategies as st

from groundspeed.verify.base import Segment
from groundspeed.verify.cache import Layout, StateKind, chunks_of
from groundspeed.verify.paged_attention import PagedAttention, PassInputs, Shape, pack
from groundspeed.verify.pages import EMPTY, PagedCache, PagePool
from groundspeed.verify.paths import trace_spans
from groundspeed.verify.step_attention import Scoring


@pytest.fixture(autouse=True, scope="module")
def as_in_a_pass():
    with torch.inference_mode():
        yield


def own_rows(committed, parents):
    """By row, those of its stretch that it sees, in order of position."""
    paths = [list(range(row + 1)) for row in range(committed)]
    return paths + [
        [*range(committed), *(committed + above for above in ancestors(parents, node))]
        for node in range(len(parents))
    ]


@settings(deadline=None)
@given(committed=st.integers(1, 5), parents=parent_lists())
def test_two_numbers_a_row_tell_who_sees_whom(committed, parents):
    rows = committed + len(parents)
    enter, leave, offsets = np.full((3, rows), -7)
    trace_spans(parents, committed, enter, leave, offsets)
    for row, path in enumerate(own_rows(committed, parents)):
        assert [at for at in range(rows) if enter[at] <= enter[row] < leave[at]] == sorted(path)
        assert offsets[row] == len(path) - 1


@settings(deadline=None, max_examples=30)
@given(
    texts=st.lists(
        st.tuples(st.sampled_from([0, 1, 30, 127, 128, 300]), st.sampled_from([1, 2, 9]), parent_lists()),
        min_size=1,
        max_size=3,
    ),
    spare=st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 2)),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from([8, 20]), st.sampled_from([8, 24])),
    window=st.none() | st.sampled_from([1, 5, 130, 250]),
    softcap=st.none() | st.just(5.0),
    with_sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_row_attends_to_its_own_text_and_path_whatever_is_to_spare(
    texts, spare, heads, window, softcap, with_sinks, seed
):
    groups, each, key_size, value_size = heads
    rng = torch.Generator().manual_seed(seed)
    kinds = [
        StateKind(role, groups, size, torch.float32, torch.device("cpu"))
        for role, size in (("key", key_size), ("value", value_size))
    ]
    pool = PagePool(Layout({0: tuple(kinds)}, complete=True))
    caches, segments = [], []
    for prefix, committed, parents in texts:
        caches.append(PagedCache(pool, prefix + committed + len(parents)))
        caches[-1].advance(prefix)
        segments.append(Segment(None, [5] * committed, tree_of([6] * len(parents), parents)))
    for states in pool.states(0):  # what is left of others must do nothing
        states.normal_(generator=rng)
        states[EMPTY * 128 : (EMPTY + 1) * 128] = 0
    counts = [committed + len(parents) for _, committed, parents in texts]
    ends = [chunks_of(text[0] + count) for text, count in zip(texts, counts, strict=True)]
    shape = Shape(len(texts) + spare[0], max(counts) + spare[1], max(ends) + spare[2])
    inputs = PassInputs.cut(shape, torch.from_numpy(pack(shape, segments, caches)))
    query = torch.randn(1, shape.tokens, groups * each, key_size, generator=rng).transpose(1, 2)
    key = torch.randn(1, shape.tokens, groups, key_size, generator=rng).transpose(1, 2)
    value = torch.randn(1, shape.tokens, groups, value_size, generator=rng).transpose(1, 2)
    sinks = torch.randn(groups * each, generator=rng) if with_sinks else None
    slots = [torch.from_numpy(cache.slots(0, cache.length)) for cache in caches]
    stored = [[states[own] for states in pool.states(0)] for own in slots]
    pattern = PagedAttention(pool, shape, inputs, 1)
    pattern.update(key, value, 0)
    out = pattern.attend(query, key, value, Scoring(0.3, window, softcap, sinks))
    assert out.isfinite().all()
    for text, (prefix, committed, parents) in enumerate(texts):
        for row, path in enumerate(own_rows(committed, parents)):
            at = text * shape.rows + row
            begin = 0 if window is None else max(0, prefix + len(path) - window)
            assert pattern.positions[0, at] == prefix + len(path) - 1
            own = torch.tensor(path) + text * shape.rows
            for head in range(groups * each):
                g = head // each
                seen = [
                    torch.cat((old[:, g], new[0, g, own]))[begin:]
                    for old, new in zip(stored[text], (key, value), strict=True)
                ]
                sink = None if sinks is None else sinks[head]
                want = formula(query[0, head, at], *seen, 0.3, softcap, sink)
                assert (out[0, at, head] - want).abs().max() < 1e-5 * (1 + want.abs().max())
    for own, before in zip(slots, stored, strict=True):
        assert all(torch.equal(states[own], old) for states, old in zip(pool.states(0), before, strict=True))
    assert not any(states[EMPTY * 128 : (EMPTY + 1) * 128].any() for states in pool.states(0))
