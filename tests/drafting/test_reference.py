"""The reference drafter against a search by hand, and beside the blend's own index."""

from __future__ import annotations

import numpy as np
from helpers.reference import ReferenceDrafter
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.suffix import SuffixIndex
from groundspeed.types import Source

tokens = st.lists(st.sampled_from([1, 2, 3, 60_000]), max_size=25)


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


@given(passages=st.lists(tokens, max_size=3), prompt=tokens, output=tokens, budget=st.integers(0, 6))
def test_what_followed_the_longest_match_is_drafted(
    passages: list[list[int]], prompt: list[int], output: list[int], budget: int
) -> None:
    drafter = ReferenceDrafter()
    drafter.begin(DraftRequest(ids(prompt), tuple(map(ids, passages)), 70_000))
    drafter.extend(ids(output))
    tree = drafter.propose(budget)
    tree.validate(70_000)
    context = (prompt + output)[-16:] if len(prompt) <= 16 else (prompt[-16:] + output)[-16:]
    want: list[int] = []
    for length in range(len(context), 0, -1):
        for text in (*passages, prompt):
            places = [i for i in range(len(text) - length) if text[i : i + length] == context[-length:]]
            if places and not want:
                want = text[places[0] + length :][:budget]
                found = text, places[0] + length
        if want or (budget == 0):
            break
    assert tree.token_ids.tolist() == want
    if want:
        place = int(tree.origin[0]) & 0xFFFFFFFF
        text = passages[int(tree.origin[0]) >> 32] if tree.source[0] == Source.PASSAGE else prompt
        assert (text, place) == found


@given(passage=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=40), context=tokens)
def test_it_follows_a_token_that_the_blends_index_knows_as_follower(
    passage: list[int], context: list[int]
) -> None:
    drafter = ReferenceDrafter()
    drafter.begin(DraftRequest(ids([]), (ids(passage),), 70_000))
    drafter.extend(ids(context))
    tree = drafter.propose(1)
    index = SuffixIndex()
    index.boundary()
    index.extend(ids(passage))
    known: set[int] = set()
    for length in range(min(16, len(context)), 0, -1):
        known = set(index.followers(ids(context[-length:])))
        if known:
            break
    assert set(tree.token_ids.tolist()) <= known
    assert bool(len(tree)) == bool(known)
