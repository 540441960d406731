"""Attention of packed passes against the formula, row by row."""

from __future__ import annotations

from unittest.mock import patch

import torch
from helpers.attention import ancestors, formula, parent_lists
from hypothesis import given, settings
from hypothesis import strategies as st

from groundspeed.verify import cache as caches
from groundspeed.verify.attention import PassAttention, Stretch
from groundspeed.verify.cache import KeyValueCache, Layout
from groundspeed.verify.step_attention import Scoring
from groundspeed.verify.vectors import HAS_PAIRS

IN_PAIRS = st.sampled_from([False, HAS_PAIRS])


def multiplying(pairs):
    """On a processor that multiplies bfloat16 in pairs, or one that does not."""
    return patch.object(caches, "HAS_PAIRS", pairs)


def cache_of(prefix, key, value, rng):
    """A cache of a text that has ``prefix`` tokens, with its keys and values."""
    keys = torch.randn(key.shape[1], prefix, key.shape[3], generator=rng).to(key.dtype)
    values = torch.randn(value.shape[1], prefix, value.shape[3], generator=rng).to(key.dtype)
    return cache_with(keys, values, key, value, 100), keys, values


def cache_with(keys, values, key, value, room):
    """A cache that holds keys and values, what it was given before being anything, and has room for more."""
    cache = KeyValueCache(Layout({}), keys.shape[1] + room)
    cache.prepare(0, key, value)
    for buffer in cache._buffers:
        buffer.fill_(torch.nan)
    cache.write(0, keys, values)
    cache.advance(keys.shape[1])
    return cache


@settings(deadline=None)
@given(committed=st.integers(1, 5), parents=parent_lists())
def test_a_token_sees_the_committed_ones_before_it_and_its_own_path(committed, parents):
    stretch = Stretch(KeyValueCache(Layout({}), 1), committed, parents)
    for row in range(committed):
        assert stretch.offsets[row] == row
        assert stretch.paths[row, : row + 1].tolist() == list(range(row + 1))
    for node in range(len(parents)):
        row, path = committed + node, ancestors(parents, node)
        want = [*range(committed), *(committed + above for above in path)]
        assert stretch.offsets[row] == len(want) - 1
        assert stretch.paths[row, : len(want)].tolist() == want


SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([7, 8, 20, 64]), st.sampled_from([5, 8, 24, 64])
)


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 30, 127, 128, 129, 300]), st.sampled_from([1, 2, 70]), parent_lists(40)
        ),
        min_size=1,
        max_size=3,
    ),
    shape=SHAPES,
    window=st.none() | st.sampled_from([1, 5, 130, 250]),
    softcap=st.none() | st.just(5.0),
    scaling=st.sampled_from([0.3, 0.0, -0.3]),
    with_sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    pairs=IN_PAIRS,
    seed=st.integers(0, 1000),
)
def test_every_row_attends_to_its_own_text_and_path_within_the_window(
    texts, shape, window, softcap, scaling, with_sinks, dtype, pairs, seed
):
    groups, each, key_size, value_size = shape
    rng = torch.Generator().manual_seed(seed)
    rows = sum(committed + len(parents) for _, committed, parents in texts)
    query = torch.randn(1, rows, groups * each, key_size, generator=rng).to(dtype).transpose(1, 2)
    key = torch.randn(1, rows, groups, key_size, generator=rng).to(dtype).transpose(1, 2)
    value = torch.randn(1, rows, groups, value_size, generator=rng).to(dtype).transpose(1, 2)
    sinks = torch.randn(groups * each, generator=rng).to(dtype) if with_sinks else None
    stretches, stored, first = [], [], 0
    for prefix, committed, parents in texts:
        with multiplying(pairs):
            cache, keys, values = cache_of(prefix, key, value, rng)
        stretches.append(Stretch(cache, committed, parents, first))
        stored.append((keys, values))
        first += stretches[-1].rows
    pattern = PassAttention(stretches, rows, 1, torch.device("cpu"))
    assert pattern.update(key, value, 0) == (key, value)
    with multiplying(pairs):
        out = pattern.attend(query, key, value, Scoring(scaling, window, softcap, sinks))
    limit = 1e-5 if dtype != torch.bfloat16 else 0.03
    for stretch, (keys, values) in zip(stretches, stored, strict=True):
        prefix = stretch.cache.length
        for row in range(stretch.rows):
            position = prefix + int(stretch.offsets[row])
            if stretch.paths.size:
                own = torch.from_numpy(stretch.paths[row, : stretch.offsets[row] + 1]).long() + stretch.first
            else:
                own = torch.arange(row + 1) + stretch.first
            begin = 0 if window is None else max(0, position + 1 - window)
            assert pattern.positions[0, stretch.first + row] == position
            for head in range(groups * each):
                g = head // each
                seen = (
                    torch.cat((keys[g], key[0, g, own]))[begin:],
                    torch.cat((values[g], value[0, g, own]))[begin:],
                )
                sink = None if sinks is None else sinks[head]
                want = formula(query[0, head, stretch.first + row], *seen, scaling, softcap, sink)
                got = out[0, stretch.first + row, head].double()
                assert (got - want).abs().max() < limit * (1 + want.abs().max())


@settings(deadline=None, max_examples=40)
@given(
    prefix=st.integers(1, 400),
    parents=parent_lists(30),
    neighbours=st.integers(0, 3),
    window=st.none() | st.sampled_from([7, 200]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    pairs=IN_PAIRS,
    seed=st.integers(0, 1000),
)
def test_a_row_comes_out_the_same_to_the_bit_whatever_is_drafted_beside_it(
    prefix, parents, neighbours, window, dtype, pairs, seed
):
    rng = torch.Generator().manual_seed(seed)
    rows = 1 + len(parents)

    def attend(stretches, query, key, value):
        pattern = PassAttention(stretches, query.shape[2], 1, torch.device("cpu"))
        pattern.update(key, value, 0)
        with multiplying(pairs):
            return pattern.attend(query, key, value, Scoring(0.3, window))[0]

    many = rows * (1 + neighbours)
    query, key, value = (torch.randn(1, heads, many, 64, generator=rng).to(dtype) for heads in (6, 2, 2))
    stretches, first = [], 0
    stored = []
    for _ in range(1 + neighbours):
        with multiplying(pairs):
            cache, keys, values = cache_of(prefix, key, value, rng)
        stored.append((keys, values))
        stretches.append(Stretch(cache, 1, parents, first))
        first += rows
    together = attend(stretches, query, key, value)
    # The same text goes on token by token, as without a draft, along every path.
    (keys, values), stretch = stored[-1], stretches[-1]
    for row in range(rows):
        with multiplying(pairs):
            cache = cache_with(keys, values, key, value, rows)
        for step in stretch.paths[row, : stretch.offsets[row] + 1]:
            at = slice(stretch.first + step, stretch.first + step + 1)
            alone = attend([Stretch(cache, 1, parents[:0])], query[:, :, at], key[:, :, at], value[:, :, at])
            cache.advance(1)
        assert torch.equal(alone[0], together[stretch.first + row])
