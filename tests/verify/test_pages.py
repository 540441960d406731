from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify.cache import CHUNK, Layout, StateKind
from groundspeed.verify.pages import EMPTY, SPARE, PagedCache, PagePool

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def as_in_a_pass():
    with torch.inference_mode():
        yield


def new_pool():
    """Two layers of one kind, a third one of another."""
    small, large = (
        (StateKind("key", 2, size, torch.float32, CPU), StateKind("value", 2, size + 2, torch.float32, CPU))
        for size in (3, 4)
    )
    return PagePool(Layout({0: small, 1: small, 2: large}, complete=True))


def random_states(pool, tokens, rng):
    return [
        tuple(torch.randn(tokens, *states.shape[1:], generator=rng) for states in pool.states(layer))
        for layer in range(3)
    ]


def write(pool, cache, new):
    slots = torch.from_numpy(cache.slots(cache.length, cache.length + len(new[0][0])))
    for layer, pair in enumerate(new):
        for states, part in zip(pool.states(layer), pair, strict=True):
            states[slots] = part


def read(pool, cache):
    slots = torch.from_numpy(cache.slots(0, cache.length))
    return [tuple(states[slots] for states in pool.states(layer)) for layer in range(3)]


def behind(old, new, index):
    return [
        tuple(torch.cat((a, b[index])) for a, b in zip(*pairs, strict=True))
        for pairs in zip(old, new, strict=True)
    ]


def equal(one, other):
    return all(
        torch.equal(*pair) for pairs in zip(one, other, strict=True) for pair in zip(*pairs, strict=True)
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from([1, 2, 100, 150]), st.integers(0, 8), st.booleans(), st.data()
        ),
        max_size=12,
    )
)
def test_texts_hold_what_was_committed_whatever_they_share_and_whoever_leaves(steps):
    rng = torch.Generator().manual_seed(0)
    pool = new_pool()
    texts = {}
    for number, committed, nodes, leaves, data in steps:
        if number not in texts:
            like, length = None, 0
            if texts:
                like = data.draw(st.sampled_from(sorted(texts)))
                length = data.draw(st.integers(0, texts[like][0].length))
            cache = PagedCache(pool, 2500, texts[like][0] if like is not None else None, length)
            kept = (
                [tuple(part[:length] for part in pair) for pair in texts[like][1]] if like is not None else []
            )
            texts[number] = (cache, kept or random_states(pool, 0, rng))
        cache, kept = texts[number]
        path = sorted(data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes))) if nodes else []
        new = random_states(pool, committed + nodes, rng)
        cache.settle()  # as every pass does first
        write(pool, cache, new)
        cache.advance(committed)
        cache.keep(path)
        kept = behind(kept, new, [*range(committed), *(committed + node for node in path)])
        texts[number] = (cache, kept)
        if data.draw(st.booleans()):
            cache.settle()
        if leaves:
            texts.pop(data.draw(st.sampled_from(sorted(texts))))[0].free()
        for cache, kept in texts.values():
            assert cache.moves.size or equal(read(pool, cache), kept)
    for cache, kept in texts.values():
        cache.settle()
        assert equal(read(pool, cache), kept)
        cache.free()
    assert pool.free == pool.pages - 2


def test_a_text_begins_with_what_another_one_has_accepted_though_it_was_not_moved_yet():
    pool = new_pool()
    rng = torch.Generator().manual_seed(0)
    one = PagedCache(pool, 300)
    new = random_states(pool, 10, rng)
    write(pool, one, new)
    one.advance(1)
    one.keep([2, 5, 8])
    assert one.moves.shape == (2, 3)
    other = PagedCache(pool, 300, one, 4)
    one.free()
    assert equal(read(pool, other), behind(random_states(pool, 0, rng), new, [0, 3, 6, 9]))


def test_a_shared_page_is_handed_out_again_when_the_last_of_its_texts_has_left():
    pool = new_pool()
    pool.reserve(10 * CHUNK)
    one = PagedCache(pool, 3 * CHUNK)
    one.advance(2 * CHUNK + 5)
    other = PagedCache(pool, 3 * CHUNK, one, 2 * CHUNK + 5)
    assert other.pages[:2].tolist() == one.pages[:2].tolist()
    assert pool.free == 7
    shared = set(one.pages[:2].tolist())
    one.free()
    assert pool.free == 8
    assert not shared & set(pool.allocate(8).tolist())
    del other  # as when a request is dropped without a word
    gc.collect()
    assert pool.free == 3
    assert shared < set(pool.allocate(3).tolist())
    assert pool.moved == 1  # only where room was made


def test_a_page_holds_zeros_when_it_is_handed_out():
    pool = new_pool()
    cache = PagedCache(pool, CHUNK)
    write(
        pool, cache, [tuple(part * torch.nan for part in pair) for pair in random_states(pool, CHUNK, None)]
    )
    [page] = cache.pages
    cache.free()
    assert pool.allocate(1).tolist() == [page]
    for layer in range(3):
        for states in pool.states(layer):
            assert not states[page * CHUNK : (page + 1) * CHUNK].any()


def test_texts_stay_whole_when_the_pool_grows():
    pool = new_pool()
    rng = torch.Generator().manual_seed(0)
    cache = PagedCache(pool, 2 * CHUNK)
    new = random_states(pool, 200, rng)
    write(pool, cache, new)
    cache.advance(200)
    before, address = pool.moved, pool.states(0)[0].data_ptr()
    more = PagedCache(pool, 5 * CHUNK)
    assert pool.moved == before + 1
    assert pool.states(0)[0].data_ptr() != address
    assert equal(read(pool, cache), new)
    assert not set(more.pages.tolist()) & {EMPTY, SPARE, *cache.pages.tolist()}
    pool.reserve(1)  # there is more than that
    assert pool.moved == before + 1


def test_a_text_has_no_slots_beyond_its_pages():
    cache = PagedCache(new_pool(), CHUNK)
    with pytest.raises(IndexError):
        cache.slots(CHUNK, CHUNK + 1)
    assert np.array_equal(cache.slots(0, 3), cache.pages[0] * CHUNK + np.arange(3))
