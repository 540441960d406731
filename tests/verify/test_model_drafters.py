"""Drafters that ask a model change no token, greedy or drawn, whatever its family, and no probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import tiny_target
from helpers.draft_lms import TableLM
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model
from helpers.families import VOCABULARY as FAMILY_VOCABULARY
from helpers.model_drafters import changes_nothing
from helpers.statistics import chi_square
from helpers.tiny_target import END, LOGITS, PROMPT, VOCABULARY

from groundspeed.drafting.base import DraftRequest, DraftTree, RecyclingDrafter, RunnerUps
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.bridged import Bridge, BridgedDraftModel
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.lookahead import LookaheadDrafter
from groundspeed.drafting.medusa import Medusa
from groundspeed.drafting.together import Together
from groundspeed.drafting.tree import shallow
from groundspeed.verify.draft_lm import TargetAsDraftLM
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


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom"])
def test_drafters_that_draft_together_change_no_token(family):
    config = TREE_FAMILIES.get(family) or OTHER_FAMILIES[family][1]
    together = Together(BlendDrafter, LookaheadDrafter)
    changes_nothing(TransformersTarget(tiny_model(config())), together)


def character(token):
    """A token as text: each is a word of one letter."""
    return " " + chr(0x4E00 + token)


def bridge_between(vocabulary):
    """Between tokens and those of a draft model, which stand for the same characters and are counted back."""

    def characters(text):
        return [ord(letter) - 0x4E00 for letter in text if letter != " "]

    return Bridge(
        lambda ids: "".join(map(character, ids)),
        characters,
        lambda ids: "".join(character(vocabulary - 1 - token) for token in ids),
        lambda text: [vocabulary - 1 - token for token in characters(text)],
    )


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom"])
def test_a_draft_model_of_other_tokens_changes_no_token(family):
    config = TREE_FAMILIES.get(family) or OTHER_FAMILIES[family][1]
    lm = TargetAsDraftLM(TransformersTarget(tiny_model(TREE_FAMILIES["llama"](), seed=1)))
    bridged = BridgedDraftModel(lm, bridge_between(FAMILY_VOCABULARY), depth=3, adapts=False)
    changes_nothing(TransformersTarget(tiny_model(config())), bridged)


class Outline:
    """Heads, first layers and hidden states of the tiny target: what it says, told a little wrong."""

    count = 2

    def watch(self):
        pass

    def guess(self, target, k):
        logits = LOGITS[[self.last, (self.last + 1) % VOCABULARY]] * 0.7
        order = np.argsort(-logits, axis=1).astype(np.int32)
        return Outlook(order, np.take_along_axis(logits - np.log(np.exp(logits).sum(1))[:, None], order, 1))

    def read_ahead(self, layers, token_ids, parents, held):
        return torch.from_numpy(LOGITS[list(token_ids[held:])] * 0.7)


class Following:
    """A drafter that follows the texts that are drawn, one after the other, as if they were one."""

    def __init__(self, drafter, outline):
        self.drafter, self.outline = drafter, outline
        self.drafted = 0
        known = np.arange(END, dtype=np.int32)
        drafter.begin(DraftRequest(known, (), VOCABULARY, temperature=1.0, target=outline))

    def __call__(self, number, text):
        last = self.outline.last = (PROMPT, *text)[-1]
        self.drafter.extend(np.array([last], np.int32))
        tree = shallow(self.drafter.propose(6), 1)
        if isinstance(self.drafter, RecyclingDrafter):
            rows = np.array([last, *tree.token_ids], np.int32)
            best = LOGITS[rows].argmax(1).astype(np.int32)[:, None]
            self.drafter.recycle(RunnerUps(rows, np.array([-1, *(tree.parents + 1)], np.int32), best))
        if text:
            return DraftTree.empty()
        self.drafted += len(tree)
        return tree


def first_layers():
    config = TREE_FAMILIES["llama"]()
    config.vocab_size, config.max_position_embeddings = VOCABULARY, 1 << 14
    return FirstLayers(TransformersTarget(tiny_model(config)), 1)


def drawing(seed, **how):
    return DraftModel(TableLM(VOCABULARY, seed), depth=1, adapts=False, **how)


FACTORIES = {
    "lookahead": lambda outline: LookaheadDrafter,
    "medusa": Medusa,
    "first layers": lambda outline: DraftModel(first_layers(), depth=2, adapts=False),
    "first layers, drawn": lambda outline: DraftModel(first_layers(), depth=2, draws=2, adapts=False),
    "cascade": lambda outline: drawing(3, draws=2, first=drawing(4, draws=2)),
    "bridged": lambda outline: BridgedDraftModel(
        TableLM(VOCABULARY, 3), bridge_between(VOCABULARY), depth=2, adapts=False
    ),
    "together": lambda outline: Together(LookaheadDrafter, drawing(3, draws=2)),
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_texts_drawn_through_their_drafts_have_exactly_their_probabilities(kind, monkeypatch):
    monkeypatch.setattr(tiny_target, "TEXTS", 1_500)
    outline = Outline()
    drafts = Following(FACTORIES[kind](outline)(), outline)
    scores = tiny_target.shipped_scores({}, 1)
    counts = tiny_target.counted(scores, drafts)

    def softmax(text):
        weights = np.exp(scores[text].astype(float))
        return weights / weights.sum()

    assert drafts.drafted > 750
    assert chi_square(counts, tiny_target.enumerated(softmax)) > 1e-4
