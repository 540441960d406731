"""Where more rows match than are looked at, a sample stands for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.datastores import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st

from groundspeed.datastores.snapshot import Snapshot

END = 3  # of every document, and in no context: a row at the end of a document has nothing to stand for


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=60), min_size=1, max_size=6),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 1000),
)
def test_the_weights_of_a_sample_add_up_to_all_matches(
    documents: list[list[int]], context: list[int], spread: int, seed: int
) -> None:
    texts = [(*document, END) for document in documents]
    wanted = brute_force(texts, context)
    snapshot = Snapshot.of([np.array(text) for text in texts], 50_000)
    found = snapshot.continuations(np.array(context), depth=30, spread=spread, seed=seed)
    totals = {length: sum(counts.values()) for length, counts in found.by_length.items()}
    assert totals == pytest.approx({length: sum(counts.values()) for length, counts in wanted.items()})


def test_a_sample_does_not_favour_what_sorts_first() -> None:
    halves = [np.tile([0, 5, 1], 1000), np.tile([2, 5, 3], 1000)]  # rows of 0, 5 stand before those of 2, 5
    snapshot = Snapshot.of(halves, 50_000)
    for seed in range(20):
        (counts,) = snapshot.continuations(np.array([5]), spread=64, seed=seed).by_length.values()
        assert counts == pytest.approx({1: 1000, 3: 1000}, abs=2000 / 64)


def test_a_sample_is_drawn_anew_for_each_seed_and_right_on_average() -> None:
    text = np.random.default_rng(0).choice([1, 2, 2, 2], 1000)
    text[1::2] = 0
    snapshot = Snapshot.of([text], 50_000)
    answers = [
        snapshot.continuations(np.array([0]), depth=1, spread=8, seed=seed).by_length[1]
        for seed in range(400)
    ]
    assert len({tuple(sorted(answer.items())) for answer in answers}) > 1
    wanted = brute_force([tuple(text.tolist())], [0])[1]
    mean = {token: np.mean([answer.get(token, 0.0) for answer in answers]) for token in wanted}
    assert mean == pytest.approx(wanted, rel=0.1)
