"""What costs more than it brings is switched off, and tried again now and then."""

from __future__ import annotations

import numpy as np
import pytest

from groundspeed.drafting.worth import Pace, Trust, Worth


def asked(worth, gains, spent=1.0):
    """In which steps a draft was wanted; ``gains`` by step."""
    found = []
    for gained in gains:
        wanted = worth.wanted()
        found.append(wanted)
        if wanted:
            worth.judge(gained, spent)
    return np.array(found)


def test_what_never_pays_is_off_within_ten_steps_and_tried_less_and_less():
    wanted = asked(Worth(), [0.0] * 2_000)
    assert wanted[:9].all()
    assert not wanted[9:25].any()
    assert wanted[25:34].all()
    assert 0 < wanted[1_000:].mean() < 0.08


def test_what_pays_is_always_asked():
    assert asked(Worth(), [1.1] * 500).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_that_pays_by_luck_only_is_off_most_of_the_time(seed):
    gains = 4.0 * (np.random.default_rng(seed).random(2_000) < 0.15)
    wanted = asked(Worth(), gains)
    assert (~wanted[:50]).any()
    assert wanted.mean() < 0.5


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_that_pays_twice_over_is_on_most_of_the_time_though_it_often_fails(seed):
    gains = 5.0 * (np.random.default_rng(seed).random(2_000) < 0.4)
    assert asked(Worth(), gains).mean() > 0.85


def test_it_is_on_again_once_the_text_allows_it():
    wanted = asked(Worth(), [0.0] * 200 + [3.0] * 800)
    assert wanted[600:].all()


def test_a_pause_ends_once_half_as_many_texts_share_the_pass():
    worth = Worth()
    while worth.wanted(8):
        worth.judge(0.0, 1.0)
    assert not worth.wanted(5)
    assert worth.wanted(4)


def test_who_begins_with_a_pause_is_not_asked_early():
    worth = Worth(trusted=False)
    assert not any(worth.wanted(texts) for texts in (8, 4, 2, 1))


def test_catching_up_is_spread_over_the_steps_after_it():
    dear, cheap = Worth(), Worth()
    for worth, first in ((dear, 64 * 0.3), (cheap, 64 * 0.1)):
        assert worth.wanted()
        worth.judge(0.0, first)
    assert not asked(dear, [1.2] * 100).all()
    assert asked(cheap, [1.2] * 100).all()


def test_without_trust_it_begins_with_a_pause():
    wanted = asked(Worth(trusted=False), [2.0] * 60)
    assert not wanted[:16].any()
    assert wanted[16:].all()


def test_the_verdict_is_that_of_the_last_judgement():
    worth = Worth()
    asked(worth, [2.0] * 5)
    assert worth.verdict is None
    asked(worth, [2.0] * 20)
    assert worth.verdict is True
    asked(worth, [0.0] * 40)
    assert worth.verdict is False


def test_the_pace_is_that_of_all_texts_together():
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.rate == 0
    for _ in range(50):
        marks = [pace.mark(), pace.mark()]
        now += 0.5
        pace.wrote(3)
        pace.wrote(1)
        for mark in marks:
            pace.since(mark)
    assert pace.rate == pytest.approx(8)


def test_texts_for_which_it_did_not_pay_cost_the_next_one_its_trust_until_one_does():
    trust = Trust()
    for gained, trusted in ((0.0, True), (0.0, True), (0.0, True), (0.0, True), (2.0, False), (0.0, True)):
        worth = trust.worth()
        assert worth.wanted() is trusted
        asked(worth, [gained] * 40)
        trust.learn(worth)
    trust.learn(Worth())
    assert trust.worth().wanted()
