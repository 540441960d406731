"""The blend: valid, calibrated in form, and it finds what there is to find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.offers import WEIGHTS
from groundspeed.errors import DraftError
from groundspeed.types import Source

VOCABULARY = 50_000


def ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def begun(prompt: list[int], *passages: list[int], vocab_size: int = VOCABULARY) -> BlendDrafter:
    drafter = BlendDrafter()
    drafter.begin(DraftRequest(ids(prompt), tuple(ids(passage) for passage in passages), vocab_size))
    return drafter


def leading_tokens(tree: DraftTree) -> list[int]:
    """Tokens of the chain that the nodes begin with."""
    chain = [i for i, parent in enumerate(tree.parents.tolist()) if parent == i - 1]
    return tree.token_ids[: len(chain) if chain == list(range(len(chain))) else 0].tolist()


def same(left: DraftTree, right: DraftTree) -> bool:
    columns = ("token_ids", "parents", "probs", "source", "origin")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in columns)


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], list[list[int]], list[int]]:
    """(prompt, passages, output) over 1, 2 or 50,000 tokens; often copied from one another."""
    token = st.integers(0, draw(st.sampled_from([0, 1, VOCABULARY - 1])))
    passages = draw(st.lists(st.lists(token, max_size=30), max_size=3))
    pieces = st.one_of(st.lists(token, max_size=10), st.sampled_from([*passages, []]))
    prompt = [token for piece in draw(st.lists(pieces, max_size=4)) for token in piece]
    output = [token for piece in draw(st.lists(pieces, max_size=4)) for token in piece]
    return prompt, passages, output


@given(requests(), st.integers(0, 70))
def test_every_tree_keeps_the_contract(
    case: tuple[list[int], list[list[int]], list[int]], budget: int
) -> None:
    prompt, passages, output = case
    drafter = begun(prompt, *passages)
    for token in [None, *output]:
        if token is not None:
            drafter.extend(ids([token]))
        tree = drafter.propose(budget)
        tree.validate(VOCABULARY)
        assert len(tree) <= budget


@given(requests(), st.integers(1, 40))
def test_every_node_says_where_it_stands(
    case: tuple[list[int], list[list[int]], list[int]], budget: int
) -> None:
    prompt, passages, output = case
    drafter = begun(prompt, *passages)
    drafter.extend(ids(output))
    tree = drafter.propose(budget)
    for token, source, origin in zip(
        tree.token_ids.tolist(), tree.source.tolist(), tree.origin.tolist(), strict=True
    ):
        if source == Source.PASSAGE:
            assert passages[origin >> 32][origin & 0xFFFFFFFF] == token
        else:
            assert (prompt + output)[origin] == token
            assert (source == Source.PROMPT) == (origin < len(prompt))


@given(requests(), st.integers(1, 40), st.integers(0, 20))
def test_extending_token_by_token_drafts_the_same_as_all_at_once(
    case: tuple[list[int], list[list[int]], list[int]], budget: int, cut: int
) -> None:
    prompt, passages, output = case
    stepwise, at_once = begun(prompt, *passages), begun(prompt, *passages)
    stepwise.extend(ids(output[:cut]))
    stepwise.propose(budget)
    for token in output[cut:]:
        stepwise.extend(ids([token]))
    at_once.extend(ids(output))
    assert same(stepwise.propose(budget), at_once.propose(budget))


@given(requests(), st.integers(1, 20), st.integers(0, 40))
def test_a_smaller_budget_keeps_the_most_probable_nodes(
    case: tuple[list[int], list[list[int]], list[int]], budget: int, more: int
) -> None:
    prompt, passages, output = case
    drafter = begun(prompt, *passages)
    drafter.extend(ids(output))
    small, large = drafter.propose(budget), drafter.propose(budget + more)
    best = np.sort(large.probs)[::-1][: len(small)]
    assert np.array_equal(np.sort(small.probs)[::-1], best)


@given(requests(), st.integers(1, 40))
def test_nodes_come_depth_first_and_the_most_probable_child_first(
    case: tuple[list[int], list[list[int]], list[int]], budget: int
) -> None:
    prompt, passages, output = case
    drafter = begun(prompt, *passages)
    drafter.extend(ids(output))
    tree = drafter.propose(budget)
    path: list[int] = []
    last_child: dict[int, float] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        while path and path[-1] != parent:
            path.pop()
        assert parent == (path[-1] if path else -1)
        assert tree.probs[node] <= last_child.get(parent, 1.0)
        last_child[parent] = float(tree.probs[node])
        path.append(node)


def test_a_copy_is_drafted_on_from_its_passage() -> None:
    passage = list(range(100, 140))
    drafter = begun([1, 2, 3, *passage, 4, 5], passage)
    drafter.extend(ids(passage[:6]))
    tree = drafter.propose(16)
    assert leading_tokens(tree)[:8] == passage[6:14]
    assert set(tree.source[:8].tolist()) == {Source.PASSAGE}
    assert tree.origin[:8].tolist() == list(range(6, 14))


def test_a_passage_outside_the_prompt_is_drafted_from() -> None:
    passage = list(range(100, 140))
    drafter = begun([1, 2, 3], [7, 8, 9], passage)
    drafter.extend(ids(passage[:6]))
    tree = drafter.propose(16)
    assert leading_tokens(tree)[:4] == passage[6:10]
    assert tree.origin[0] == 1 << 32 | 6


@pytest.mark.parametrize(
    ("told", "resumes"),
    [
        ([100, 101, 102, 103, 104, 999], 106),  # 105 substituted
        ([100, 101, 102, 103, 104, 999], 105),  # 999 inserted
        ([100, 101, 102, 103, 104, 106], 107),  # 105 left out
    ],
)
def test_a_copy_resumes_after_one_changed_token(told: list[int], resumes: int) -> None:
    drafter = begun([1, 2, 3, *range(100, 140), 4, 5])
    drafter.extend(ids(told))
    tree = drafter.propose(32)
    assert resumes in tree.token_ids[tree.parents == -1]


def test_nothing_is_drafted_across_the_end_of_a_passage() -> None:
    often_said = list(range(200, 230)) * 2  # fills order 0, which may offer anything that was said
    drafter = begun(often_said, [10, 11, 12, 13], [20, 21, 22])
    drafter.extend(ids([10, 11, 12]))
    assert 13 in drafter.propose(64).token_ids
    drafter.extend(ids([13]))
    assert not {20, 21, 22} & set(drafter.propose(64).token_ids.tolist())


def test_ids_outside_the_vocabulary_are_never_drafted() -> None:
    drafter = begun([1, 2, 3, 60_000, 4, 1, 2, 3, 60_000, 4, 1, 2, 3])
    drafter.propose(32).validate(VOCABULARY)


def test_no_budget_means_an_empty_tree() -> None:
    assert len(begun([1, 2, 1]).propose(0)) == 0


def test_a_drafter_that_ended_holds_nothing_of_the_request() -> None:
    drafter = begun([1, 2, 3, 1, 2, 3, 1])
    assert len(drafter.propose(8)) > 0
    drafter.end()
    assert len(drafter.propose(8)) == 0


def test_priors_of_another_version_are_refused() -> None:
    with pytest.raises(DraftError, match=rf"\({WEIGHTS},\)"):
        BlendDrafter(np.zeros(3))


@given(requests())
def test_offers_are_distinct_and_hold_every_token_drafted_next(
    case: tuple[list[int], list[list[int]], list[int]],
) -> None:
    prompt, passages, output = case
    drafter = begun(prompt, *passages)
    drafter.extend(ids(output))
    candidates, features, none_features = drafter.offers()
    assert len(set(candidates.tolist())) == len(candidates) == len(features)
    tree = drafter.propose(64)
    assert set(tree.token_ids[tree.parents == -1].tolist()) <= set(candidates.tolist())
    assert all(((column >= 0) & (column < WEIGHTS)).all() for column in (features, none_features))
