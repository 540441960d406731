"""Drafters that ask the target itself change no token, greedy or drawn, whatever its family."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import tiny_target
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model
from helpers.model_drafters import changes_nothing
from helpers.statistics import chi_square
from helpers.tiny_target import END, LOGITS, PROMPT, VOCABULARY

from groundspeed.drafting.base import DraftRequest, DraftTree, RecyclingDrafter, RunnerUps
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.drafting.medusa import Medusa
from groundspeed.drafting.tree import shallow
from groundspeed.verify.early_exit import FirstLayers
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target import TransformersTarget


@pytest.fixture(scope="module", params=TREE_FAMILIES)
def target(request):
    return TransformersTarget(tiny_model(TREE_FAMILIES[request.param]()))


def test_lookahead_changes_no_token(target):
    changes_nothing(target, LookaheadDrafter)


def test_lookahead_changes_no_token_where_only_chains_can_be_verified():
    changes_nothing(TransformersTarget(tiny_model(OTHER_FAMILIES["bloom"][1]())), LookaheadDrafter)


def test_the_targets_own_first_layers_change_no_token(target):
    changes_nothing(target, DraftModel(FirstLayers(target, 2), adapts=False))


def test_medusa_heads_change_no_token(target):
    width = target.model.get_output_embeddings().in_features
    changes_nothing(target, Medusa(MedusaHeads(width, 3)))


class Outline:
    """Heads and hidden states of the tiny target: what it holds possible, told a little wrong."""

    count = 2

    def watch(self):
        pass

    def guess(self, target, k):
        logits = LOGITS[[self.last, (self.last + 1) % VOCABULARY]] * 0.7
        order = np.argsort(-logits, axis=1).astype(np.int32)
        return Outlook(order, np.take_along_axis(logits - np.log(np.exp(logits).sum(1))[:, None], order, 1))


class Following:
    """A drafter that follows the texts that are drawn, one after the other, as if they were one."""

    def __init__(self, drafter, outline):
        self.drafter, self.outline = drafter, outline
        drafter.begin(DraftRequest(np.arange(END, dtype=np.int32), (), VOCABULARY, target=outline))

    def __call__(self, number, text):
        last = self.outline.last = (PROMPT, *text)[-1]
        self.drafter.extend(np.array([last], np.int32))
        tree = shallow(self.drafter.propose(6), 1)
        if isinstance(self.drafter, RecyclingDrafter):
            rows = np.array([last, *tree.token_ids], np.int32)
            best = LOGITS[rows].argmax(1).astype(np.int32)[:, None]
            self.drafter.recycle(RunnerUps(rows, np.array([-1, *(tree.parents + 1)], np.int32), best))
        return DraftTree.empty() if text else tree


@pytest.mark.parametrize("kind", ["lookahead", "medusa"])
def test_texts_drawn_through_their_drafts_have_exactly_their_probabilities(kind, monkeypatch):
    monkeypatch.setattr(tiny_target, "TEXTS", 6_000)
    outline = Outline()
    drafter = {"lookahead": LookaheadDrafter, "medusa": Medusa(outline)}[kind]()
    scores = tiny_target.shipped_scores({}, 1)
    counts = tiny_target.counted(scores, Following(drafter, outline))

    def softmax(text):
        weights = np.exp(scores[text].astype(float))
        return weights / weights.sum()

    assert chi_square(counts, tiny_target.enumerated(softmax)) > 1e-4
