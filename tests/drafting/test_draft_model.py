"""A draft model grows the most probable tree, reads every token once, and says what it drew."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from helpers import tiny_target
from helpers.draft_lms import TableLM
from helpers.drafters import tree_of
from helpers.statistics import chi_square
from helpers.tiny_target import VOCABULARY, counted, enumerated, shipped_scores

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.none import NoDrafter
from groundspeed.drafting.tree import depths, prune, shallow
from groundspeed.errors import InputError
from groundspeed.types import Source

VOCAB = 12
PROMPT = np.array([3, 1, 4, 1, 5, 9], np.int32)


def begun(factory, prompt=PROMPT, temperature=0.0):
    drafter = factory()
    drafter.begin(DraftRequest(np.array(prompt, np.int32), (), VOCAB, temperature=temperature))
    return drafter


def texts(tree):
    """By node the tokens of its path."""
    found = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def best_first(lm, text, budget):
    """The most probable continuations, expanded one by one."""
    heap = [(-1.0, ())]
    found = []
    while len(found) <= budget:
        prob, path = heapq.heappop(heap)
        found.append(path)
        for token, logprob in enumerate(lm.logprobs([*text, *path])):
            heapq.heappush(heap, (prob * float(np.exp(logprob)), (*path, token)))
    return set(found[1:])


@pytest.mark.parametrize("budget", [1, 5, 12])
def test_the_tree_holds_the_most_probable_continuations(budget):
    lm = TableLM(VOCAB, spread=2.5)
    tree = begun(DraftModel(lm, depth=60, width=1, adapts=False)).propose(budget)
    tree.validate(VOCAB)
    assert set(texts(tree)) == best_first(lm, PROMPT.tolist(), budget)
    assert set(tree.source.tolist()) == {Source.MODEL}


@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("first", [None, BlendDrafter])
def test_the_model_has_read_what_was_committed_and_nothing_else(branches, first):
    lm = TableLM(VOCAB, branches=branches)
    rng = np.random.default_rng(2)
    text = PROMPT.tolist()
    drafter = begun(DraftModel(lm, first=first, adapts=False))
    for _ in range(60):
        tree = drafter.propose(int(rng.integers(1, 14)))
        tree.validate(VOCAB)
        assert lm.texts[0].committed == text  # the last token is read by the proposal
        path = texts(tree)[int(rng.integers(len(tree)))] if rng.random() < 0.8 else ()
        committed = [*path[: int(rng.integers(len(path) + 1))], int(rng.integers(VOCAB))]
        drafter.extend(np.array(committed, np.int32))
        text += committed
    drafter.end()
    assert lm.texts[0].closed


def test_no_token_of_an_accepted_draft_is_read_twice():
    lm = TableLM(VOCAB, branches=False)
    drafter = begun(DraftModel(lm, depth=4, adapts=False))
    for _ in range(5):
        drafter.propose(8)
        (text,) = lm.texts
        assert lm.tokens == len(text.committed) + len(text.nodes)
        drafter.extend(np.array([*text.nodes[-1], 0], np.int32))
    assert len(text.committed) > len(PROMPT) + 4 + 10


def test_a_model_that_reads_no_trees_drafts_what_goes_on_from_its_chain():
    tree = begun(DraftModel(TableLM(VOCAB, branches=False), adapts=False)).propose(10)
    inner = {int(parent) for parent in tree.parents if parent >= 0}
    assert all(child not in inner or tree.parents[child] in {-1, *inner} for child in range(len(tree)))
    assert len({depth for node, depth in enumerate(depths(tree)) if node in inner}) == len(inner)


def test_a_retrieved_tree_is_continued_and_keeps_its_provenance():
    class Retrieved:
        def __init__(self):
            self.proposed = tree_of([7, 8, 2], [-1, 0, -1])

        def begin(self, request):
            self.extended = []

        def extend(self, token_ids):
            self.extended += token_ids.tolist()

        def propose(self, budget):
            return self.proposed

        def end(self):
            self.ended = True

    first = Retrieved()
    drafter = begun(DraftModel(TableLM(VOCAB), first=lambda: first, depth=1, adapts=False))
    tree = drafter.propose(40)
    tree.validate(VOCAB)
    found = dict(zip(texts(tree), tree.source.tolist(), strict=True))
    assert {path for path, source in found.items() if source == Source.PROMPT} == {(7,), (7, 8), (2,)}
    assert {len(path) for path, source in found.items() if source == Source.MODEL} == {1, 2, 3}
    drafter.extend(np.array([7, 1], np.int32))
    drafter.end()
    assert first.extended == [7, 1]
    assert first.ended


def test_tokens_that_the_target_lacks_are_not_drafted_and_those_the_model_lacks_are_survived():
    drafter = DraftModel(TableLM(30), adapts=False)()
    drafter.begin(DraftRequest(PROMPT, (), 9, temperature=1.0))
    assert drafter.propose(20).token_ids.max() < 9
    small = DraftModel(TableLM(5), adapts=False)()
    small.begin(DraftRequest(PROMPT, (), VOCAB))
    assert len(small.propose(8)) == 8


def test_nothing_is_drafted_where_the_models_context_ends():
    lm = TableLM(VOCAB)
    lm.context_length = 70
    drafter = begun(DraftModel(lm, adapts=False))
    assert len(drafter.propose(4)) == 4
    drafter.extend(np.arange(5, dtype=np.int32))
    assert len(drafter.propose(4)) == 0
    assert max(lm.passes) < 70


def test_what_is_accepted_teaches_what_an_offer_is_worth():
    lm = TableLM(VOCAB)
    factory = DraftModel(lm, adapts=False)
    claims = []
    for _ in range(40):
        drafter = begun(factory)
        tree = drafter.propose(1)
        claims.append(float(tree.probs[0]))
        drafter.extend(np.array([(tree.token_ids[0] + 1) % VOCAB], np.int32))
    assert claims[-1] < claims[0] / 2


class SteadyPace:
    """Texts are written at one rate, whatever happens."""

    def __init__(self, rate):
        self.rate = rate

    def mark(self):
        return 0.0, 0

    def since(self, mark):
        pass

    def wrote(self, tokens):
        pass


def passes_of_a_draft(rate, seconds, accepted):
    """How many passes a draft takes that may take eight."""
    lm = TableLM(VOCAB, spread=6)
    factory = DraftModel(lm, width=1)
    factory.pace = SteadyPace(rate)
    factory.observe(seconds, accepted)
    factory.observe = lambda *measured: None
    begun(factory).propose(12)
    return len(lm.passes)


def test_a_draft_ends_where_another_pass_brings_less_than_is_written_meanwhile():
    assert passes_of_a_draft(10, 0.001, 0.9) == 8
    assert passes_of_a_draft(2_000, 0.001, 0.9) == 1
    passes = [passes_of_a_draft(rate, 0.001, 0.9) for rate in (100, 300, 500, 700, 900, 2_000)]
    assert passes == sorted(passes, reverse=True)
    assert len(set(passes)) > 2
    assert passes_of_a_draft(500, 0.001, 0.9) >= passes_of_a_draft(500, 0.001, 0.3)


@pytest.mark.parametrize(("rate", "asked"), [(1e9, False), (1e-3, True)])
def test_a_model_behind_another_drafter_is_asked_while_it_brings_more_than_it_takes(rate, asked):
    lm = TableLM(VOCAB)
    factory = DraftModel(lm, first=NoDrafter, depth=2)
    factory.pace = SteadyPace(rate)
    drafter = begun(factory)
    for _ in range(20):
        before = len(lm.passes)
        tree = drafter.propose(12)
        drafter.extend(np.array([*tree.token_ids[:1], 1], np.int32))
    assert (len(lm.passes) > before) is asked


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"width": 0}, {"draws": -1}, {"depth": 1.5}])
def test_numbers_out_of_range_are_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(InputError, match=f"{name} is {value}"):
        DraftModel(TableLM(VOCAB), **wrong)


SCORES = shipped_scores({"temperature": 0.9, "top_p": 0.95}, 1)


class Drawn:
    """A tree of a draft model behind each text; it lives as long as the text does."""

    def __init__(self, **how):
        self.factory = DraftModel(TableLM(VOCABULARY, 3), adapts=False, **how)

    def __call__(self, number, text):
        if not text:
            self.drafter = self.factory()
            self.drafter.begin(DraftRequest(np.array([0], np.int32), (), VOCABULARY, temperature=0.9))
        else:
            self.drafter.extend(np.array(text, np.int32))
        tree = self.drafter.propose(number % 5)
        return prune(tree, 0) if text else shallow(tree, 1)  # as deep as the text may still be long


def softmax(scores):
    weights = np.exp(scores.astype(float) - scores.max())
    return weights / weights.sum()


PROBABILITIES = enumerated(lambda text: softmax(SCORES[text]))


@pytest.mark.parametrize(
    "how",
    [
        {"draws": 1, "width": 1, "depth": 2},
        {"draws": 3, "depth": 2},
        {"draws": 0, "depth": 1},
        {"draws": 2, "depth": 1, "first": BlendDrafter},
    ],
)
def test_texts_drawn_through_a_draft_models_trees_keep_their_probabilities(how, monkeypatch):
    monkeypatch.setattr(tiny_target, "TEXTS", 4_000)
    assert chi_square(counted(SCORES, Drawn(**how)), PROBABILITIES) > 1e-4
