"""Prompt lookup against the rule it copies."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.prompt_lookup import PromptLookupDrafter
from groundspeed.types import Source


def by_the_rule(tokens: list[int], max_ngram: int, budget: int) -> list[int]:
    """What follows the first place where the last n-gram stands and is followed by something."""
    for n in range(max_ngram, 0, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + budget]
    return []


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=10),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_the_first_place_of_the_longest_ngram_is_copied(
    prompt: list[int], output: list[int], max_ngram: int, budget: int
) -> None:
    drafter = PromptLookupDrafter(max_ngram)
    drafter.begin(DraftRequest(np.array(prompt, np.int32), (), vocab_size=10))
    drafter.extend(np.array(output, np.int32))
    tree = drafter.propose(budget)
    tree.validate(10)
    assert tree.token_ids.tolist() == by_the_rule(prompt + output, max_ngram, budget)
    assert tree.token_ids.tolist() == [(prompt + output)[origin] for origin in tree.origin.tolist()]
    assert [origin < len(prompt) for origin in tree.origin.tolist()] == (
        tree.source == Source.PROMPT
    ).tolist()


def test_a_draft_stops_before_an_id_outside_the_vocabulary() -> None:
    drafter = PromptLookupDrafter()
    drafter.begin(DraftRequest(np.array([1, 2, 3, 99, 4, 1, 2], np.int32), (), vocab_size=10))
    assert drafter.propose(8).token_ids.tolist() == [3]
