from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify.cache import PreallocatedCache


def states(rng, tokens, dim=3, heads=2):
    return torch.randn(1, heads, tokens, dim, generator=rng)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 8), st.data()),
        min_size=1,
        max_size=6,
    )
)
def test_the_cache_holds_what_was_committed_and_nothing_else(steps):
    rng = torch.Generator().manual_seed(0)
    cache = PreallocatedCache(2, 80)
    kept = [(torch.empty(1, 2, 0, 3), torch.empty(1, 2, 0, 5)) for _ in range(2)]
    for committed, nodes, data in steps:
        path = sorted(data.draw(st.sets(st.integers(0, nodes - 1), max_size=nodes))) if nodes else []
        index = torch.tensor([*range(committed), *(committed + node for node in path)])
        for layer in range(2):
            key, value = states(rng, committed + nodes), states(rng, committed + nodes, dim=5)
            seen = cache.update(key, value, layer)
            assert torch.equal(seen[0], torch.cat((kept[layer][0], key), 2))
            assert torch.equal(seen[1], torch.cat((kept[layer][1], value), 2))
            kept[layer] = tuple(
                torch.cat((old, new[:, :, index]), 2)
                for old, new in zip(kept[layer], (key, value), strict=True)
            )
        cache.advance(committed)
        cache.keep(path)
        assert cache.get_seq_length() == kept[0][0].shape[2]


def test_a_path_that_already_stands_in_place_moves_nothing():
    cache = PreallocatedCache(1, 10)
    rng = torch.Generator().manual_seed(0)
    cache.update(states(rng, 5), states(rng, 5), 0)
    before = cache.layers[0].keys.clone()
    cache.advance(1)
    cache.keep([0, 1, 2])
    assert cache.length == 4
    assert torch.equal(cache.layers[0].keys[:, :, :5], before[:, :, :5])


def test_layers_of_one_shape_share_a_buffer_and_others_get_their_own():
    cache = PreallocatedCache(3, 10)
    rng = torch.Generator().manual_seed(0)
    for layer, heads in enumerate((2, 2, 4)):
        cache.update(states(rng, 1, heads=heads), states(rng, 1, heads=heads), layer)
    first, second, third = (layer.keys.untyped_storage().data_ptr() for layer in cache.layers)
    assert first == second != third
