from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify.attention import TreeAttention, tree_block


@st.composite
def parent_lists(draw):
    size = draw(st.integers(0, 12))
    return [draw(st.integers(-1, node - 1)) for node in range(size)]


def ancestors(parents, node):
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found


@given(committed=st.integers(1, 5), parents=parent_lists())
def test_a_token_sees_the_committed_ones_before_it_and_its_own_path(committed, parents):
    visible, offsets = tree_block(committed, parents)
    for row in range(committed):
        assert visible[row].nonzero().flatten().tolist() == list(range(row + 1))
        assert offsets[row] == row
    for node in range(len(parents)):
        path = ancestors(parents, node)
        want = [*range(committed), *sorted(committed + above for above in path)]
        assert visible[committed + node].nonzero().flatten().tolist() == want
        assert offsets[committed + node] == committed - 1 + len(path)


@given(
    prefix=st.integers(0, 20),
    committed=st.integers(1, 4),
    parents=parent_lists(),
    window=st.none() | st.integers(1, 25),
    rows=st.integers(1, 3),
)
def test_a_mask_hides_what_is_behind_the_window_by_position(prefix, committed, parents, window, rows):
    pattern = TreeAttention(prefix, parents, committed, torch.device("cpu"))
    mask, first = pattern.mask(rows, window, torch.float32, torch.device("cpu"))
    block, offsets = tree_block(committed, parents)
    size = committed + len(parents)
    position = [*range(prefix), *(prefix + int(offset) for offset in offsets)]
    for query in range(size):
        at = position[prefix + query]
        for key in range(prefix + size):
            near = window is None or position[key] > at - window
            seen = near and (key < prefix or bool(block[query, key - prefix]))
            for row in range(rows):
                if key < first:
                    assert not seen
                else:
                    assert (mask[0, 0, row * size + query, key - first] == 0) == seen


def test_positions_go_on_behind_the_prefix_and_siblings_share_theirs():
    pattern = TreeAttention(7, [-1, -1, 0, 2], 2, torch.device("cpu"))
    assert pattern.positions.tolist() == [[7, 8, 9, 9, 10, 11]]
