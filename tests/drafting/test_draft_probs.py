"""Stochastic drafters say what they drew, and it stays true however a tree is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.drafters import tree_of

from groundspeed.drafting.budget import share_budget
from groundspeed.drafting.draft_probs import DraftProbs
from groundspeed.drafting.tree import leading_chain, merge, prune, shallow
from groundspeed.errors import DraftError

#         root
#       3      1
#     4  2     4
PROBS = DraftProbs(
    nodes=np.array([-1, 0, 1], np.int32),
    token_ids=np.array([[1, 3, 6], [2, 4, 5], [0, 4, 5]], np.int32),
    probs=np.array([[0.5, 0.25, 0.25], [0.5, 0.5, 0], [0, 1, 0]], np.float32),
    drawn=np.array([[3, 1], [4, 2], [4, -1]], np.int32),
)
TREE = replace(
    tree_of([3, 1, 4, 2, 4], [-1, -1, 0, 0, 1]),
    probs=np.array([0.5, 0.9, 0.4, 0.3, 0.8], np.float32),
    draft_probs=PROBS,
)


def drawn_behind(tree):
    """Drafts by the path of tokens that they stand behind."""
    found = {}
    for node, drafts in tree.draft_probs.by_node().items():
        path = []
        while node >= 0:
            path.insert(0, int(tree.token_ids[node]))
            node = int(tree.parents[node])
        found[tuple(path)] = [(d.token_ids.tolist(), d.probs.tolist(), d.drawn.tolist()) for d in drafts]
    return found


WHOLE = drawn_behind(TREE)


def test_every_node_has_its_draws_in_order():
    TREE.validate(7)
    assert WHOLE == {
        (): [([1, 3, 6], [0.5, 0.25, 0.25], [3, 1])],
        (3,): [([2, 4, 5], [0.5, 0.5, 0], [4, 2])],
        (1,): [([0, 4, 5], [0, 1, 0], [4])],
    }


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (lambda tree: prune(tree, 2), [(), (1,)]),
        (lambda tree: prune(tree, 0), [()]),
        (lambda tree: shallow(tree, 1), [(), (1,), (3,)]),
        (lambda tree: shallow(tree, 0), [()]),
        (leading_chain, [(), (3,)]),
        (lambda tree: share_budget([tree], np.array([1, 1, 1, 9, 9, 9.0]))[0], [(), (1,)]),
        (lambda tree: merge([tree_of([4, 1, 0], [-1, -1, 1]), tree]), [(), (1,), (3,)]),
        (lambda tree: merge([tree, tree_of([5], [-1])]), [(), (1,), (3,)]),
        (lambda tree: prune(merge([tree, tree_of([5, 0], [-1, 0])]), 3), [(), (1,)]),
    ],
)
def test_a_tree_that_is_cut_or_merged_keeps_all_draws_of_the_nodes_that_are_left(cut, left):
    tree = cut(TREE)
    tree.validate(7)
    assert drawn_behind(tree) == {path: WHOLE[path] for path in left}


def test_two_stochastic_drafts_are_not_merged():
    with pytest.raises(DraftError, match="two stochastic drafts"):
        merge([TREE, TREE])


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("nodes", [-1, 0, 5], r"distribution 2, drawn from behind node 5 .* nodes in \[-1, 5\)"),
        ("nodes", [-2, 0, 1], r"nodes in \[-1, 5\)"),
        ("nodes", [-1, 0], r"token_ids is int32 \[3, 3\] beside 2 nodes"),
        ("token_ids", [[3, 1, 6], [2, 4, 5], [0, 4, 5]], r"distribution 0.*token_ids that rise in \[0, 7\)"),
        ("token_ids", [[1, 3, 7], [2, 4, 5], [0, 4, 5]], r"token_ids that rise in \[0, 7\)"),
        ("token_ids", [[-1, 3, 6], [2, 4, 5], [0, 4, 5]], r"token_ids that rise in \[0, 7\)"),
        ("probs", [[0.5, 0.25, 0.25], [0.5, 0.4, 0], [0, 1, 0]], "distribution 1.*sum to 1"),
        ("probs", [[0.5, 0.75, -0.25], [0.5, 0.5, 0], [0, 1, 0]], "not negative"),
        ("probs", [[np.nan, 0.25, 0.25], [0.5, 0.5, 0], [0, 1, 0]], "not negative"),
        ("probs", [[1.0], [1.0], [1.0]], r"probs is float32 \[3, 1\] .* float32 \[3, 3\]"),
        ("drawn", [[3, 3], [4, 2], [4, -1]], "distribution 0.*differ and are possible"),
        ("drawn", [[3, 1], [4, 5], [4, -1]], "distribution 1.*differ and are possible"),
        ("drawn", [[3, 1], [4, 0], [4, -1]], "distribution 1.*differ and are possible"),
        ("drawn", [[3, 1], [4, 2], [-1, 4]], "distribution 2.*differ and are possible"),
        ("drawn", [[3, 1], [4, 2], [4, -2]], "distribution 2.*differ and are possible"),
    ],
)
def test_draws_that_break_the_contract_are_refused_by_name(column, value, says):
    broken = replace(PROBS, **{column: np.array(value, getattr(PROBS, column).dtype)})
    with pytest.raises(DraftError, match=says):
        replace(TREE, draft_probs=broken).validate(7)


def test_no_draws_at_all_are_fine():
    none = DraftProbs(
        np.empty(0, np.int32),
        np.empty((0, 1), np.int32),
        np.empty((0, 1), np.float32),
        np.empty((0, 1), np.int32),
    )
    replace(TREE, draft_probs=none).validate(7)
