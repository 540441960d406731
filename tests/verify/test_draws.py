"""Draws follow the distribution they are drawn from, and depend on seed and position alone."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.statistics import chi_square
from hypothesis import given
from hypothesis import strategies as st

from groundspeed.verify.draws import draw, fresh_seed, uniforms

DRAWS = 200_000
PROBABILITIES = np.array([0.45, 0.2, 0.0, 0.15, 0.1, 0.06, 0.03, 0.009, 0.001])


def log(probabilities):
    with np.errstate(divide="ignore"):
        return np.log(probabilities).astype(np.float32)


def drawn_in_full(scores, seed, position):
    """With noise from numpy's generator for every token."""
    bits = np.random.Philox(key=seed, counter=[0, position, 0, 0]).random_raw(len(scores)) >> np.uint64(12)
    return (scores - np.log(-np.log((bits + 0.5) * 2.0**-52))).argmax()


@pytest.fixture(scope="module")
def counts():
    scores = log(PROBABILITIES) + np.float32(3)
    drawn = [draw(scores, 11, position) for position in range(DRAWS)]
    return np.bincount(drawn, minlength=len(PROBABILITIES))


def test_draws_over_positions_follow_the_distribution(counts):
    assert chi_square(counts, PROBABILITIES) > 1e-4


def test_a_bias_of_one_percent_would_be_noticed(counts):
    biased = PROBABILITIES.copy()
    biased[:2] += [0.01, -0.01]
    assert chi_square(counts, biased) < 1e-4


def test_draws_over_seeds_follow_the_distribution():
    scores = log(PROBABILITIES)
    drawn = [draw(scores, seed, 7) for seed in range(50_000)]
    assert chi_square(np.bincount(drawn, minlength=len(scores)), PROBABILITIES) > 1e-4


@pytest.mark.parametrize(("seeds", "positions"), [((1, 1), (0, 1)), ((1, 2), (0, 0)), ((0, 1), (1, 0))])
def test_draws_of_neighbouring_seeds_and_positions_are_independent(seeds, positions):
    scores = log(PROBABILITIES[:2] / PROBABILITIES[:2].sum())
    pairs = [
        2 * draw(scores, 100 * i + seeds[0], 50 * i + positions[0])
        + draw(scores, 100 * i + seeds[1], 50 * i + positions[1])
        for i in range(20_000)
    ]
    one = PROBABILITIES[:2] / PROBABILITIES[:2].sum()
    assert chi_square(np.bincount(pairs, minlength=4), np.outer(one, one).ravel()) > 1e-4


@given(
    st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=40),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
)
def test_leaving_out_what_cannot_win_changes_no_draw(scores, seed, position):
    scores = np.array(scores, np.float32)
    assert draw(scores, seed, position) == drawn_in_full(scores, seed, position)


@pytest.mark.parametrize("size", [1, 3, 97, 5_000, 49_152, 50_001])
@pytest.mark.parametrize("spread", [0, 0.1, 3, 30])
def test_rows_of_every_size_and_shape_are_drawn_from_as_with_noise_for_every_token(size, spread):
    rng = np.random.default_rng(size)
    for number in range(40):
        scores = rng.normal(0, spread, size).astype(np.float32)
        scores[rng.random(size) < (0, 0.5, 0.999)[number % 3]] = -np.inf
        scores[rng.integers(size)] = 1
        assert draw(scores, number, size) == drawn_in_full(scores, number, size)


def test_uniform_numbers_are_those_of_numpys_generator_and_of_a_stream_of_their_own():
    bits = np.random.Philox(key=2**64 - 1, counter=[0, 5, 1, 0]).random_raw(9) >> np.uint64(12)
    for count in range(10):
        np.testing.assert_array_equal(uniforms(count, 2**64 - 1, 5), (bits[:count] + 0.5) * 2.0**-52)


def test_the_reach_of_the_noise_covers_its_extremes():
    least, most = 0.5 * 2.0**-52, (2.0**52 - 0.5) * 2.0**-52
    assert 0 < least < most < 1
    assert -np.log(-np.log(most)) + np.log(-np.log(least)) < 41


def test_the_draws_of_a_seed_are_the_same_for_ever():
    scores = np.zeros(1000, np.float32)
    assert [draw(scores, 2**64 - 1, position) for position in range(4)] == [644, 690, 267, 523]


def test_fresh_seeds_differ_and_survive_json():
    seeds = [fresh_seed() for _ in range(100)]
    assert len(set(seeds)) == 100
    assert all(int(float(seed)) == seed >= 0 for seed in seeds)
