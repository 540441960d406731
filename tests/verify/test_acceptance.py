from __future__ import annotations

import numpy as np
from helpers.drafters import tree_of
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftTree
from groundspeed.verify.acceptance import accept


def test_the_path_of_the_targets_choices_is_accepted_with_one_token_more():
    tree = tree_of([5, 6, 7, 8], [-1, 0, 0, 2])
    choices = {0: 5, 1: 7, 3: 8, 4: 9}
    assert accept(tree, choices.__getitem__) == ([0, 2, 3], 9)


def test_an_empty_tree_gives_the_bonus_token_alone():
    assert accept(DraftTree.empty(), {0: 3}.__getitem__) == ([], 3)


def test_nothing_is_asked_for_behind_a_token_that_ends_the_text():
    tree = tree_of([5, 6, 7], [-1, 0, 1])
    assert accept(tree, {0: 5, 1: 6}.__getitem__, {6}) == ([0], 6)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), max_size=14), st.integers(0, 2**32 - 1))
def test_only_rows_of_accepted_nodes_are_ever_asked_for(rows, seed):
    tokens: list[int] = []
    parents: list[int] = []
    for token, place in rows:
        parent = int(place * len(tokens)) - 1
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, 3, len(tokens) + 1).tolist()
    asked: list[int] = []

    def choose(row: int) -> int:
        asked.append(row)
        return choices[row]

    path, bonus = accept(tree_of(tokens, parents), choose)
    assert asked == [0, *(node + 1 for node in path)]
    assert [parents[node] for node in path] == [-1, *path][: len(path)]
    assert [tokens[node] for node in path] == [choices[row] for row in asked[:-1]]
    assert bonus == choices[asked[-1]]
    last = path[-1] if path else -1
    assert (last, bonus) not in set(zip(parents, tokens, strict=True))
