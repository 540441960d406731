from __future__ import annotations

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify import cache as caches
from groundspeed.verify.cache import CHUNK, KeyValueCache, Layout


def states(rng, tokens, dim=3, heads=2, dtype=torch.float32):
    return torch.randn(heads, tokens, dim, generator=rng).to(dtype)


def store(cache, layer, key, value):
    cache.prepare(layer, key[None], value[None])
    cache.write(layer, key, value)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 100, 150]), st.integers(0, 8), st.data()),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([False, caches.HAS_PAIRS]),
)
def test_the_cache_holds_what_was_committed_and_nothing_else(steps, known, dtype, pairs):
    with patch.object(caches, "HAS_PAIRS", pairs):
        hold_what_was_committed(steps, known, dtype)


def hold_what_was_committed(steps, known, dtype):
    rng = torch.Generator().manual_seed(0)
    layout = Layout({})
    if known:  # then layers of a kind share a buffer
        first = KeyValueCache(layout, 1)
        for layer in range(2):
            store(first, layer, states(rng, 1, dtype=dtype), states(rng, 1, dim=5, dtype=dtype))
        layout.complete = True
    cache = KeyValueCache(layout, 1000)
    kept = [(torch.empty(2, 0, 3, dtype=dtype), torch.empty(2, 0, 5, dtype=dtype)) for _ in range(2)]
    for committed, nodes, data in steps:
        path = sorted(data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes))) if nodes else []
        index = torch.tensor([*range(committed), *(committed + node for node in path)])
        for layer in range(2):
            key = states(rng, committed + nodes, dtype=dtype)
            value = states(rng, committed + nodes, dim=5, dtype=dtype)
            store(cache, layer, key, value)
            seen = cache.read(layer, 0, cache.length + committed + nodes)
            assert torch.equal(seen[0], torch.cat((kept[layer][0], key), 1))
            assert torch.equal(seen[1], torch.cat((kept[layer][1], value), 1))
            kept[layer] = tuple(
                torch.cat((old, new[:, index]), 1) for old, new in zip(kept[layer], (key, value), strict=True)
            )
        cache.advance(committed)
        cache.keep(path)
        assert cache.length == kept[0][0].shape[1]
    for layer in range(2):
        for got, want in zip(cache.read(layer, 0, cache.length), kept[layer], strict=True):
            assert torch.equal(got, want)


def test_a_text_that_begins_like_another_takes_over_what_that_one_read():
    rng = torch.Generator().manual_seed(0)
    layout = Layout({})
    one = KeyValueCache(layout, 400)
    key, value = states(rng, 300), states(rng, 300)
    store(one, 0, key, value)
    one.advance(300)
    layout.complete = True
    other = KeyValueCache(layout, 200)
    other.take(one, 150)
    assert other.length == 150
    store(other, 0, key[:, :20], value[:, :20])
    other.advance(20)
    assert torch.equal(other.read(0, 0, 170)[0], torch.cat((key[:, :150], key[:, :20]), 1))
    assert torch.equal(one.read(0, 0, 300)[1], value)


def test_a_path_that_already_stands_in_place_moves_nothing():
    cache = KeyValueCache(Layout({}), 10)
    rng = torch.Generator().manual_seed(0)
    store(cache, 0, states(rng, 5), states(rng, 5))
    before = [part.clone() for part in cache.read(0, 0, 5)]
    cache.advance(1)
    cache.keep([0, 1, 2])
    assert cache.length == 4
    assert all(torch.equal(*pair) for pair in zip(cache.read(0, 0, 5), before, strict=True))


def test_the_layout_says_what_a_token_takes():
    layout = Layout({})
    cache = KeyValueCache(layout, 10)
    rng = torch.Generator().manual_seed(0)
    for layer, heads in enumerate((2, 2, 4)):
        store(cache, layer, states(rng, 1, heads=heads), states(rng, 1, heads=heads, dim=5))
    assert layout.bytes_per_token == 4 * (2 + 2 + 4) * (3 + 5)
    assert cache.chunks * CHUNK >= cache.capacity
