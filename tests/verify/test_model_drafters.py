"""Drafters that ask the target itself change no token, greedy or drawn, whatever its family."""

from __future__ import annotations

import pytest
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model
from helpers.model_drafters import changes_nothing

from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.verify.target import TransformersTarget


@pytest.fixture(scope="module", params=TREE_FAMILIES)
def target(request):
    return TransformersTarget(tiny_model(TREE_FAMILIES[request.param]()))


def test_lookahead_changes_no_token(target):
    changes_nothing(target, LookaheadDrafter)


@pytest.mark.parametrize("family", ["bloom", "lfm2"])
def test_lookahead_changes_no_token_where_only_chains_can_be_verified(family):
    changes_nothing(TransformersTarget(tiny_model(OTHER_FAMILIES[family][1]())), LookaheadDrafter)
