"""The window is moved on as by hand, its n-grams come back as drafts, and it gives way where it costs."""

from __future__ import annotations

import numpy as np
import pytest

from groundspeed.drafting.base import DraftRequest, RunnerUps
from groundspeed.drafting.lookahead import LookaheadDrafter, NgramPool
from groundspeed.drafting.tree import leading_chain, prune
from groundspeed.errors import InputError

VOCABULARY = 50


def said(path):
    """A target of which each token depends on all tokens before it."""
    return (7 * sum((i + 1) * token for i, token in enumerate(path)) + len(path)) % VOCABULARY


def shown(tree, text):
    """What the target says behind the last token of a text and behind each node."""
    paths = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append([*(text if parent < 0 else paths[parent]), token])
    return RunnerUps(
        np.array([text[-1], *tree.token_ids], np.int32),
        np.array([-1, *(tree.parents + 1)], np.int32),
        np.array([[said(path)] for path in [text, *paths]], np.int32),
    )


def begun(prompt, **shape):
    drafter = LookaheadDrafter(**shape)
    drafter.begin(DraftRequest(np.array(prompt, np.int32), (), VOCABULARY))
    return drafter


def columns_of(drafter):
    return drafter._window.T.tolist()


@pytest.mark.parametrize(("window", "ngram"), [(1, 2), (3, 2), (1, 4), (4, 3), (5, 4)])
def test_the_window_moves_on_by_what_the_target_says_behind_its_columns(window, ngram):
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter = begun(text, window=window, ngram=ngram, candidates=9)
    for step in range(12):
        tree = drafter.propose(60)
        tree.validate(VOCABULARY)
        before = columns_of(drafter)
        drafter.recycle(shown(tree, text))
        # Column i stands behind the first guesses of the columns before it.
        first = [column[0] for column in before]
        wanted = [[*column[1:], said([*text, *first[:i], *column])] for i, column in enumerate(before)]
        assert columns_of(drafter) == wanted
        for column, new in zip(before, wanted, strict=True):
            assert (*column[1:], new[-1]) in dict(drafter._pool.behind(column[0]))
        count = 1 + step % 3
        text = [*text, *(said([*text, i]) for i in range(count))]
        drafter.extend(np.array(text[-count:], np.int32))
        kept = wanted[count - 1 :]
        assert columns_of(drafter)[: len(kept)] == kept


def test_an_ngram_that_begins_with_the_last_token_is_drafted_and_the_latest_comes_first():
    drafter = begun([8, 20, 21, 9, 8, 30, 31, 9, 8], window=2, ngram=3)
    chains = drafter.propose(60)
    assert leading_chain(chains).token_ids[:2].tolist() == [30, 31]
    assert 20 in chains.token_ids[chains.parents == -1]


def test_the_pool_keeps_the_latest_of_each_first_token():
    pool = NgramPool(2)
    for ngram in ((1, 2), (1, 3), (4, 4), (1, 2), (1, 5)):
        pool.add(ngram, guessed=ngram == (1, 5))
    assert pool.behind(1) == [((5,), True), ((2,), False)]
    assert pool.behind(4) == [((4,), False)]
    assert pool.behind(2) == []


def test_tokens_that_are_accepted_become_probable_and_others_improbable():
    drafter = begun([1, 2, 3] * 4, window=1, ngram=3)
    for _ in range(12):
        before = drafter.propose(60).probs[0]
        drafter.extend(np.array([1, 2, 3], np.int32))
    assert drafter.propose(60).probs[0] > before > 0.4
    for _ in range(30):
        drafter.propose(60)
        drafter.extend(np.array([40, 41, 42], np.int32))
        drafter.extend(np.array([3], np.int32))
    assert drafter.propose(60).probs[0] < 0.4


def test_a_window_that_brings_nothing_is_worth_less_and_less_and_is_cut_by_columns():
    drafter = begun([1, 2, 3, 4, 5, 6], window=3, ngram=3)
    tree = drafter.propose(60)
    worth = tree.probs.min()
    for token in range(10, 40):
        drafter.propose(60)
        drafter.extend(np.array([token], np.int32))
    tree = drafter.propose(60)
    assert tree.probs.min() < worth / 2
    before = columns_of(drafter)
    drafter.recycle(shown(prune(tree, 2), [1, 2, 3]))
    assert columns_of(drafter)[0][0] == before[0][1]


def test_a_window_that_brought_nothing_for_long_keeps_to_the_contract():
    drafter = begun([1, 2, 3, 1, 2], window=3, ngram=3)
    for token in [*range(5, 45)] * 60:
        drafter.propose(24)
        drafter.extend(np.array([token], np.int32))
    tree = drafter.propose(24)
    tree.validate(VOCABULARY)
    assert len(tree) > 0


@pytest.mark.parametrize("budget", [0, 1, 5, 7])
def test_no_more_is_drafted_than_the_budget_has_room_for(budget):
    drafter = begun([1, 2, 3, 1, 2, 4, 1], window=4, ngram=4)
    assert len(drafter.propose(budget)) == budget


def test_a_window_that_cannot_be_is_refused():
    with pytest.raises(InputError, match="give at least 1, 2 and 1"):
        LookaheadDrafter(ngram=1)
