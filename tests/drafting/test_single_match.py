"""The single match against a search by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.none import NoDrafter
from groundspeed.drafting.single_match import SingleMatchDrafter, index_history
from groundspeed.drafting.suffix import MAX_MATCH
from groundspeed.types import Source

VOCABULARY = 60_000


@st.composite
def texts(draw: st.DrawFn) -> list[list[int]]:
    """Two passages, a prompt, an output and two earlier answers over few or many tokens, some repetitive."""
    token = st.integers(0, draw(st.sampled_from([0, 2, 49_999])))
    drawn = [draw(st.lists(token, max_size=30)) for _ in range(6)]
    return [text * draw(st.sampled_from([1, 1, 3, 20])) for text in drawn]


def ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def paths_behind(places: list[list[int]]) -> dict[tuple[int, ...], int]:
    """How often each path stands at the beginning of the texts."""
    counts: dict[tuple[int, ...], int] = {}
    for ahead in places:
        for length in range(1, len(ahead) + 1):
            path = tuple(ahead[:length])
            counts[path] = counts.get(path, 0) + 1
    return counts


def places_behind(texts: list[list[int]], context: list[int]) -> tuple[int, int, list[list[int]]]:
    """Length of the longest match that is followed, how often it stands there, and what follows each time."""
    for length in range(min(len(context), MAX_MATCH), 0, -1):
        wanted = context[-length:]
        behind = [
            text[i + length :]
            for text in texts
            for i in range(len(text) - length + 1)
            if text[i : i + length] == wanted
        ]
        if any(behind):
            return length, len(behind), behind
    return 0, 0, []


def path_of(tree: DraftTree, node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node >= 0:
        path.append(int(tree.token_ids[node]))
        node = int(tree.parents[node])
    return tuple(path[::-1])


@settings(deadline=None)  # the first example compiles the kernels
@given(texts(), st.integers(0, 40))
def test_the_most_frequent_paths_behind_the_longest_match_are_drafted(
    drawn: list[list[int]], budget: int
) -> None:
    first, second, prompt, output, *history = drawn
    drafter = SingleMatchDrafter(index_history(map(ids, history)))
    drafter.begin(DraftRequest(ids(prompt), (ids(first), ids(second)), VOCABULARY))
    drafter.extend(ids(output[:1]))
    drafter.extend(ids(output[1:]))
    tree = drafter.propose(budget)
    tree.validate(VOCABULARY)

    committed = prompt + output
    ours = places_behind([first, second, committed], committed)
    theirs = places_behind(history, committed)
    length, matches, behind = ours if ours[0] >= theirs[0] else theirs
    wanted = paths_behind(behind) if length else {}
    drafted = {path_of(tree, node): prob for node, prob in enumerate(tree.probs.tolist())}
    if length + budget <= MAX_MATCH:  # longer contexts are not told apart
        assert len(drafted) == min(budget, len(wanted))
        assert sorted(wanted.values(), reverse=True)[:budget] == [wanted[path] for path in drafted]
        for path, prob in drafted.items():
            assert prob == np.float32(wanted[path] / matches)


@given(texts())
def test_a_node_stands_where_its_origin_says(drawn: list[list[int]]) -> None:
    first, second, prompt, output, *_ = drawn
    drafter = SingleMatchDrafter()
    drafter.begin(DraftRequest(ids(prompt), (ids(first), ids(second)), VOCABULARY))
    drafter.extend(ids(output))
    tree = drafter.propose(16)
    for token, source, origin in zip(
        tree.token_ids.tolist(), tree.source.tolist(), tree.origin.tolist(), strict=True
    ):
        if source == Source.PASSAGE:
            assert (first, second)[origin >> 32][origin & 0xFFFFFFFF] == token
        else:
            assert (prompt + output)[origin] == token
            assert (origin < len(prompt)) == (source == Source.PROMPT)


@pytest.mark.parametrize("period", [[7], [7, 8], [7, 8, 9, 7]])
def test_a_text_that_repeats_itself_is_drafted_on_beyond_the_longest_match(period: list[int]) -> None:
    text = period * 100
    for history in ([], [ids(text)]):
        drafter = SingleMatchDrafter(index_history(history))
        drafter.begin(DraftRequest(ids([1] if history else text), (), VOCABULARY))
        drafter.extend(ids(text))
        tree = drafter.propose(2 * MAX_MATCH)
        tree.validate(VOCABULARY)
        longest = max((path_of(tree, node) for node in range(len(tree))), key=len)
        assert len(longest) > MAX_MATCH
        assert list(longest) == (2 * text)[: len(longest)]


def test_an_id_outside_the_vocabulary_is_not_drafted() -> None:
    drafter = SingleMatchDrafter()
    drafter.begin(DraftRequest(ids([1, 2, 3, 99, 4, 1, 2]), (), vocab_size=10))
    assert drafter.propose(8).token_ids.tolist() == [3]


def test_a_finished_request_leaves_nothing_behind() -> None:
    drafter = SingleMatchDrafter(index_history([ids([7, 8, 9])]))
    drafter.begin(DraftRequest(ids([1, 2, 3, 7]), (), VOCABULARY))
    assert drafter.propose(8).token_ids.tolist() == [8, 9]
    drafter.end()
    drafter.begin(DraftRequest(ids([5, 1]), (), VOCABULARY))
    assert not len(drafter.propose(8))


def test_no_drafter_drafts_nothing() -> None:
    drafter = NoDrafter()
    drafter.begin(DraftRequest(ids([1, 1]), (), VOCABULARY))
    drafter.extend(ids([1]))
    assert not len(drafter.propose(8))
    drafter.end()
