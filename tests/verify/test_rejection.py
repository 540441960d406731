"""Drafts that were drawn are taken as often as they may be, and texts keep their probabilities exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.drafters import tree_of
from helpers.statistics import chi_square
from helpers.tiny_target import END, TEXTS, VOCABULARY, counted, enumerated, shipped_scores, texts_of

from groundspeed.drafting.draft_probs import DraftProbs, Draws
from groundspeed.drafting.tree import merge, prune
from groundspeed.types import GenerationRequest
from groundspeed.verify import rejection
from groundspeed.verify.acceptance import accept
from groundspeed.verify.draws import draw, uniforms
from groundspeed.verify.rejection import draw_by_rejection
from groundspeed.verify.sampling import make_chooser

DRAWS = 200_000

SCORES = shipped_scores({"temperature": 0.9, "top_p": 0.95}, 1)
"""Some tokens are excluded, and are drafted all the same."""

IDS = np.array([0, 1, 2, 4, 5], np.int32)
"""What the drafter knows of: not token 3."""

CONTEXTS = [(), *texts_of(1)]
Q = np.random.default_rng(8).dirichlet([0.7] * len(IDS), len(CONTEXTS)).astype(np.float32)
"""What it draws from, by context."""


def softmax(scores):
    weights = np.exp(scores.astype(float) - scores.max())
    return weights / weights.sum()


def drawn(rng, q, count, k):
    """[count, k]: sorted with Gumbel noise, tokens come in the order of draws without replacement."""
    noisy = np.log(q) + rng.gumbel(size=(count, len(q)))
    return IDS[np.argsort(-noisy, axis=1)[:, :k]]


P = softmax(SCORES[()])


def tokens_drawn(*widths, forgotten=-1):
    """How often each token comes out of DRAWS draws.

    Args:
        widths: Drafts of each of several independent drafters.
        forgotten: A token whose drafts are not told.
    """
    rng = np.random.default_rng(sum(widths))
    drafts = [(Q[i], drawn(rng, Q[i], DRAWS, k)) for i, k in enumerate(widths)]
    tokens = [
        draw_by_rejection(
            SCORES[()],
            [Draws(IDS, q, row[row != forgotten]) for q, rows in drafts for row in [rows[i]]],
            3,
            i,
        )
        for i in range(DRAWS)
    ]
    return np.bincount(tokens, minlength=VOCABULARY)


@pytest.mark.parametrize("widths", [(1,), (2,), (5,), (2, 1)])
def test_draws_follow_the_distribution_whatever_was_drafted(widths):
    assert chi_square(tokens_drawn(*widths), P) > 1e-4


def shifted(factor):
    """The distribution of a draw with one draft that is taken ``factor`` times as often as it should be."""
    q = np.zeros(VOCABULARY)
    q[IDS] = Q[0]
    taken = np.minimum(q, factor * P)
    rest = np.maximum(P - q, 0)
    return taken + (1 - taken.sum()) * rest / rest.sum()


def test_an_acceptance_that_shifts_one_percent_of_the_draws_is_caught(monkeypatch):
    factor = 1.045
    assert np.abs(shifted(factor) - P).sum() / 2 == pytest.approx(0.01, rel=0.02)
    monkeypatch.setattr(rejection, "uniforms", lambda *key: uniforms(*key) / factor)
    assert chi_square(tokens_drawn(1), P) < 1e-4


def test_a_rest_that_favours_a_token_in_one_percent_of_the_draws_is_caught(monkeypatch):
    def skewed(scores, seed, position):
        return 1 if position % 55 == 0 else draw(scores, seed, position)

    rest = P.copy()
    rest[IDS] = np.maximum(P[IDS] - Q[0], 0)
    assert (rest.sum() - rest[1]) / 55 == pytest.approx(0.01, rel=0.02)
    monkeypatch.setattr(rejection, "draw", skewed)
    assert chi_square(tokens_drawn(1), P) < 1e-4


@cache
def bush(tokens, size):
    """A drawn tree with a retrieved one merged in, cut to the nodes that look best, and what they follow."""
    contexts = [(), *((token,) for token in tokens if token != END)]
    stochastic = replace(
        tree_of(tokens, [-1] * len(tokens)),
        probs=(0.9 - 0.1 * np.array(tokens)).astype(np.float32),
        draft_probs=DraftProbs(
            np.array([tokens.index(text[0]) if text else -1 for text in contexts], np.int32),
            np.broadcast_to(IDS, (len(contexts), len(IDS))),
            Q[[CONTEXTS.index(text) for text in contexts]],
            np.arange(len(contexts), dtype=np.int32)[:, None],
        ),
    )
    tree = prune(merge([tree_of([2, 3], [-1, -1], 0.65), stochastic]), size)
    return tree, [contexts[row] for row in tree.draft_probs.drawn.ravel()]


class Drafts:
    """Three tokens drawn behind each context, in trees that are merged with retrieved ones and cut."""

    def __init__(self):
        rng = np.random.default_rng(5)
        self.drawn = {text: drawn(rng, q, TEXTS, 3) for text, q in zip(CONTEXTS, Q, strict=True)}

    def __call__(self, number, text):
        if text:
            tree, contexts = bush((), 0)
            probs = replace(
                tree.draft_probs, probs=Q[[CONTEXTS.index(text)]], drawn=self.drawn[text][[number]]
            )
        else:
            tree, contexts = bush(tuple(self.drawn[()][number].tolist()), number % 4)
            probs = replace(tree.draft_probs, drawn=np.stack([self.drawn[c][number] for c in contexts]))
        return replace(tree, draft_probs=probs)


PROBABILITIES = enumerated(lambda text: softmax(SCORES[text]))


def test_texts_drawn_through_merged_and_cut_trees_keep_their_probabilities():
    assert chi_square(counted(SCORES, Drafts()), PROBABILITIES) > 1e-4


def test_leaving_out_drafts_by_what_they_are_would_be_caught():
    assert chi_square(tokens_drawn(2, forgotten=4), P) < 1e-4


def test_a_draft_from_the_targets_own_distribution_is_always_taken():
    own = [Draws(np.arange(VOCABULARY, dtype=np.int32), P.astype(np.float32), np.array([4], np.int32))]
    assert {draw_by_rejection(SCORES[()], own, seed, 9) for seed in range(500)} == {4}


def test_an_excluded_token_is_never_taken_however_often_it_was_drafted():
    sure = [Draws(np.array([5], np.int32), np.ones(1, np.float32), np.array([5], np.int32))]
    assert SCORES[()][5] == -np.inf
    assert 5 not in {draw_by_rejection(SCORES[()], sure, seed, 9) for seed in range(500)}


def test_the_same_seed_and_drafts_give_the_same_token_and_other_positions_others():
    drafts = [Draws(IDS, Q[0], np.array([2, 0], np.int32))]
    tokens = [draw_by_rejection(SCORES[()], drafts, 7, position) for position in range(50)]
    assert tokens == [draw_by_rejection(SCORES[()], drafts, 7, position) for position in range(50)]
    assert len(set(tokens)) > 2


def test_greedy_decoding_takes_no_notice_of_what_was_drawn():
    tree, _ = bush((2, 0, 1), 4)
    logits = torch.eye(VOCABULARY)[[2, 4, 4, 4, 4]]
    node = tree.token_ids.tolist().index(2)
    chooser = make_chooser(GenerationRequest((0,)), None, [0], 3, (), torch.device("cpu"))
    assert accept(tree, chooser(logits)) == ([node], 4)
    penalised = make_chooser(
        GenerationRequest((0,), presence_penalty=1), None, [0], 3, (), torch.device("cpu")
    )
    assert accept(tree, penalised(logits)) == ([node], 4)
