"""The contract of a draft tree, and the tools that make trees from trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftTree
from groundspeed.drafting.tree import chain, depths, merge, paths, prune, shallow
from groundspeed.errors import DraftError


def tree_of(tokens: list[int], parents: list[int], probs: list[float]) -> DraftTree:
    n = len(tokens)
    return DraftTree(
        token_ids=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        probs=np.array(probs, np.float32),
        source=np.full(n, 2, np.uint16),
        origin=np.arange(n, dtype=np.int64),
    )


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, len(tokens) - 1))
        token = draw(st.integers(0, 5))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
            ceiling = probs[parent] if parent >= 0 else 1.0
            probs.append(float(np.float32(ceiling * draw(st.sampled_from([1.0, 0.5, 0.9])))))
    return tree_of(tokens, parents, probs)


def prefixes(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Probability of every token path from the root."""
    named: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)):
        named[node] = (*named[parent], token)
    return {named[node]: float(prob) for node, prob in enumerate(tree.probs)}


@pytest.mark.parametrize(
    ("tree", "breach"),
    [
        (tree_of([1, 9], [-1, 0], [0.5, 0.4]), "Node 1 .* token 9"),
        (tree_of([1, -1], [-1, 0], [0.5, 0.4]), "Node 1 .* token -1"),
        (tree_of([1, 2], [-1, 1], [0.5, 0.4]), "Node 1 .* parent 1"),
        (tree_of([1, 2], [-2, 0], [0.5, 0.4]), "Node 0 .* parent -2"),
        (tree_of([1, 2], [-1, 0], [0.5, 0.6]), "Node 1 .* probability 0.6"),
        (tree_of([1, 2], [-1, 0], [0.5, 0.0]), "Node 1 .* probability 0.0"),
        (tree_of([1, 2], [-1, 0], [0.5, float("nan")]), "Node 1 .* probability nan"),
        (tree_of([1, 2, 2], [-1, 0, 0], [0.5, 0.3, 0.2]), "Node 2 .* repeats token 2 under parent 0"),
    ],
)
def test_a_tree_that_breaks_the_contract_is_refused_by_node(tree: DraftTree, breach: str) -> None:
    with pytest.raises(DraftError, match=breach):
        tree.validate(9)


def test_a_column_of_another_length_or_type_is_refused() -> None:
    good = tree_of([1, 2], [-1, 0], [0.5, 0.4])
    columns = {
        "token_ids": good.token_ids,
        "parents": good.parents,
        "probs": good.probs,
        "source": good.source,
    }
    with pytest.raises(DraftError, match=r"origin is int64 \[1\] in a tree of 2 nodes"):
        DraftTree(**columns, origin=good.origin[:1]).validate(9)
    with pytest.raises(DraftError, match=r"origin is float64"):
        DraftTree(**columns, origin=good.origin.astype(float)).validate(9)  # type: ignore[arg-type]


@given(trees())
def test_trees_made_in_the_tests_are_valid(tree: DraftTree) -> None:
    tree.validate(6)


def test_the_empty_tree_is_valid() -> None:
    DraftTree.empty().validate(1)


def test_depths_and_paths_follow_the_parents() -> None:
    tree = tree_of([1, 2, 3, 4], [-1, 0, 0, -1], [0.5, 0.3, 0.2, 0.1])
    assert depths(tree).tolist() == [0, 1, 1, 0]
    assert paths(tree) == [[0, 1], [0, 2], [3]]


@given(st.lists(st.integers(0, 5), max_size=8))
def test_a_chain_is_one_path(tokens: list[int]) -> None:
    tree = chain(np.array(tokens, np.int32))
    tree.validate(6)
    assert depths(tree).tolist() == list(range(len(tokens)))


@given(st.lists(trees(), max_size=4))
def test_merging_keeps_every_path_once_with_its_best_probability(several: list[DraftTree]) -> None:
    merged = merge(several)
    merged.validate(6)
    expected: dict[tuple[int, ...], float] = {}
    for tree in several:
        for path, prob in prefixes(tree).items():
            expected[path] = max(prob, expected.get(path, 0.0))
    assert prefixes(merged) == expected


def test_merging_keeps_the_provenance_of_the_first_tree() -> None:
    first = chain(np.array([1, 2], np.int32), origin=np.array([10, 11]))
    second = chain(np.array([1, 3], np.int32), origin=np.array([20, 21]))
    assert dict(
        zip(merge([first, second]).token_ids.tolist(), merge([first, second]).origin.tolist(), strict=True)
    ) == {
        1: 10,
        2: 11,
        3: 21,
    }


@given(trees(), st.integers(0, 12))
def test_pruning_keeps_a_valid_tree_of_the_most_probable_nodes(tree: DraftTree, budget: int) -> None:
    pruned = prune(tree, budget)
    pruned.validate(6)
    assert len(pruned) == min(budget, len(tree))
    assert prefixes(pruned).items() <= prefixes(tree).items()
    assert np.array_equal(np.sort(pruned.probs), np.sort(tree.probs)[len(tree) - len(pruned) :])


@given(trees(), st.integers(0, 13))
def test_a_shallow_tree_holds_the_paths_up_to_a_depth_and_no_other(tree: DraftTree, depth: int) -> None:
    kept = shallow(tree, depth)
    kept.validate(6)
    assert prefixes(kept) == {path: prob for path, prob in prefixes(tree).items() if len(path) <= depth}
