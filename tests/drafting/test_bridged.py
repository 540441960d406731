"""A draft model with other tokens drafts by way of text, and several drafters draft together."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.draft_lms import TableLM
from helpers.drafters import tree_of
from helpers.tokenizers import byte_tokenizer

from groundspeed.drafting.base import DraftRequest, DraftTree, RunnerUps
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.bridged import BridgedDraftModel
from groundspeed.drafting.together import Together
from groundspeed.errors import DraftError
from groundspeed.types import Source
from groundspeed.verify.draft_lm import bridge_between

TARGET = byte_tokenizer("th", "the", "an", "at")
DRAFT = byte_tokenizer("he", "ca", "cat", "on")
BRIDGE = bridge_between(TARGET, DRAFT)
TEXT = "the cat sat on the mat and the other cat sat on the other mat all day long"


class Reciter(TableLM):
    """Knows one text by heart, in its own tokens."""

    def __init__(self) -> None:
        super().__init__(len(DRAFT))
        self.heart = BRIDGE.to_draft_ids(TEXT)

    def logprobs(self, text):
        logits = np.zeros(self.vocab_size)
        if BRIDGE.to_draft_text(text) == BRIDGE.to_draft_text(self.heart[: len(text)]) and len(text) < len(
            self.heart
        ):
            logits[self.heart[len(text)]] = 20
        return logits - np.log(np.exp(logits).sum())


def begun(factory, text):
    drafter = factory()
    drafter.begin(DraftRequest(np.array(BRIDGE.to_ids(text), np.int32), (), len(TARGET)))
    return drafter


def test_what_the_model_knows_comes_out_in_the_targets_tokens():
    drafter = begun(BridgedDraftModel(Reciter(), BRIDGE, depth=6, adapts=False), "the cat sat on the ")
    tree = drafter.propose(20)
    tree.validate(len(TARGET))
    text = BRIDGE.to_text(tree.token_ids)
    assert text
    assert TEXT.startswith("the cat sat on the " + text)
    assert set(tree.source.tolist()) == {Source.MODEL}
    assert (np.diff(tree.probs) < 0).all()


def test_the_whole_text_is_written_in_few_steps_and_read_once_but_for_its_end():
    lm = Reciter()
    start = "the cat sat on the "
    drafter = begun(BridgedDraftModel(lm, BRIDGE, adapts=False), start)
    ids = BRIDGE.to_ids(TEXT)
    at, steps = len(BRIDGE.to_ids(start)), 0
    while at < len(ids):
        tree = drafter.propose(20)
        right = 0
        while right < min(len(tree), len(ids) - at) and tree.token_ids[right] == ids[at + right]:
            right += 1
        committed = ids[at : at + right + 1]
        drafter.extend(np.array(committed, np.int32))
        at += len(committed)
        steps += 1
        read = BRIDGE.to_draft_text(lm.texts[0].committed)
        assert TEXT.startswith(read)
        assert BRIDGE.to_text(ids[:at]).startswith(read)
    assert steps < (len(ids) - len(BRIDGE.to_ids(start))) / 4
    assert len(read) > len(TEXT) / 2
    drafter.end()
    assert lm.texts[0].closed


def test_text_that_does_not_fit_costs_the_draft_and_nothing_else():
    half = [TARGET("é", add_special_tokens=False)["input_ids"][0]]
    drafter = BridgedDraftModel(Reciter(), BRIDGE, adapts=False)()
    drafter.begin(DraftRequest(np.array(half, np.int32), (), len(TARGET)))
    for wrong in (half, [255, 254, 3]):
        tree = drafter.propose(20)
        tree.validate(len(TARGET))
        assert len(tree) <= 20
        drafter.extend(np.array(wrong, np.int32))
    drafter.propose(20).validate(len(TARGET))


def test_a_text_without_spaces_is_settled_all_the_same():
    lm = Reciter()
    drafter = begun(BridgedDraftModel(lm, BRIDGE, depth=2, adapts=False), "x" * 300)
    drafter.propose(4)
    assert len(lm.texts[0].committed) > 250


class Fixed:
    """Proposes the same every time."""

    runners_up = 3

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.seen: list[str] = []

    def begin(self, request):
        self.seen.append("begin")

    def extend(self, token_ids):
        self.seen.append("extend")

    def recycle(self, shown):
        self.seen.append("recycle")

    def propose(self, budget):
        return self.tree

    def end(self):
        self.seen.append("end")


def test_trees_of_several_drafters_share_what_they_begin_with():
    one, other = Fixed(tree_of([1, 2], [-1, 0], 0.5)), Fixed(tree_of([1, 3, 4], [-1, 0, -1], 0.4))
    drafter = begun(Together(lambda: one, lambda: other, BlendDrafter), "x")
    assert drafter.runners_up == BlendDrafter.runners_up
    tree = drafter.propose(3)
    tree.validate(len(TARGET))
    assert sorted(tree.token_ids.tolist()) == [1, 2, 3]
    assert tree.probs.tolist() == pytest.approx([0.5, 0.5, 0.4])
    token = np.zeros(1, np.int32)
    drafter.recycle(RunnerUps(token, token - 1, token[None]))
    drafter.extend(token)
    drafter.end()
    assert one.seen == other.seen == ["begin", "recycle", "extend", "end"]


def test_a_chain_of_drafters_of_which_two_draw_is_refused_when_they_do():
    from groundspeed.drafting.draft_model import DraftModel

    drawing = DraftModel(TableLM(20), draws=1, adapts=False)
    drafter = Together(drawing, drawing)()
    drafter.begin(DraftRequest(np.zeros(1, np.int32), (), 20, temperature=1.0))
    with pytest.raises(DraftError, match="two stochastic drafts"):
        drafter.propose(4)
