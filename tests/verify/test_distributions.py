"""Whatever a request asks for and whatever is drafted, texts have exactly the probabilities they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.drafters import tree_of
from helpers.statistics import chi_square
from helpers.tiny_target import (
    END,
    LOGITS,
    PROMPT,
    VOCABULARY,
    counted,
    enumerated,
    shipped_scores,
    texts_of,
)

from groundspeed.drafting.base import DraftTree
from groundspeed.verify import sampling
from groundspeed.verify.draws import draw

SETTINGS = {
    "nothing": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "typical_p": {"typical_p": 0.7},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "frequency_penalty": {"frequency_penalty": 1.2},
    "presence_penalty": {"presence_penalty": -1.5},
    "logit_bias": {"logit_bias": {1: 1.5, 4: -math.inf}},
    "bad_words": {"bad_words": ((3,), (1, 2), (4, 4))},
    "min_tokens": {"min_tokens": 2},
    "all": {
        "temperature": 1.3,
        "top_k": 5,
        "top_p": 0.95,
        "min_p": 0.02,
        "typical_p": 0.95,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": {2: 0.7},
        "bad_words": ((1, 2),),
        "min_tokens": 1,
    },
}


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def formulas(settings, text):
    """The distribution of the next token by the definitions of the settings, [VOCABULARY]."""
    logits = LOGITS[(PROMPT, *text)[-1]].astype(float)
    for token, bias in settings.get("logit_bias", {}).items():
        logits[token] += bias
    for token in {PROMPT, *text}:
        penalty = settings.get("repetition_penalty", 1)
        logits[token] *= 1 / penalty if logits[token] > 0 else penalty
    for token in text:
        logits[token] -= settings.get("frequency_penalty", 0)
    for token in set(text):
        logits[token] -= settings.get("presence_penalty", 0)
    for *before, last in settings.get("bad_words", ()):
        if [PROMPT, *text][len(text) + 1 - len(before) :] == before:
            logits[last] = -math.inf
    if len(text) < settings.get("min_tokens", 0):
        logits[END] = -math.inf

    p = softmax(logits / settings.get("temperature", 1))
    if "top_k" in settings:
        p[p < np.sort(p)[-settings["top_k"]]] = 0
        p /= p.sum()
    if "top_p" in settings:
        order = np.argsort(-p)
        p[order[np.cumsum(p[order]) - p[order] >= settings["top_p"]]] = 0
        p /= p.sum()
    if "min_p" in settings:
        p[p < settings["min_p"] * p.max()] = 0
        p /= p.sum()
    if "typical_p" in settings:
        information = -np.log(np.where(p > 0, p, 1e-300))
        order = np.argsort(np.abs(information - (p * information).sum()))
        p[order[np.cumsum(p[order]) - p[order] >= settings["typical_p"]]] = 0
        p /= p.sum()
    return p


@pytest.mark.parametrize("name", SETTINGS)
def test_processed_scores_are_those_of_the_formulas_behind_every_text(name):
    plain = shipped_scores({}, 2)
    changed = False
    for text, scores in shipped_scores(SETTINGS[name], 2).items():
        np.testing.assert_allclose(
            softmax(scores.astype(float)), formulas(SETTINGS[name], text), atol=1e-6, err_msg=str(text)
        )
        changed |= not np.array_equal(scores, plain[text])
    assert changed is (name != "nothing")


def nothing(number, text):
    return DraftTree.empty()


BUSHES = [
    tree_of(tokens, [-1] * len(tokens))
    for tokens in ([0], [3, 1], [2, 4, 0], [END, 1], [4, 3, 2, 1, 0], [1, 2], [4])
]


def retrieved(number, text):
    """Deterministic drafts of all sorts, independent of the draws."""
    return DraftTree.empty() if text else BUSHES[number % len(BUSHES)]


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_drawn_through_trees_follow_the_formulas(name):
    counts = counted(shipped_scores(SETTINGS[name], 1), retrieved)
    assert chi_square(counts, enumerated(lambda text: formulas(SETTINGS[name], text))) > 1e-4


def test_texts_drawn_without_drafts_follow_the_formulas():
    counts = counted(shipped_scores({}, 1), nothing)
    assert chi_square(counts, enumerated(lambda text: formulas({}, text))) > 1e-4


@pytest.mark.parametrize("drafts", [nothing, retrieved])
def test_draws_that_favour_a_token_by_one_percent_are_caught(drafts, monkeypatch):
    def skewed(scores, seed, position):
        p = softmax(scores.astype(float))
        p[1] += 0.01
        return draw(np.log(p).astype(np.float32), seed, position)

    monkeypatch.setattr(sampling, "draw", skewed)
    counts = counted(shipped_scores({}, 1), drafts)
    assert chi_square(counts, enumerated(lambda text: formulas({}, text))) < 1e-4


def test_the_texts_of_the_tiny_target_have_all_probabilities():
    assert enumerated(lambda text: formulas({}, text)).sum() == pytest.approx(1)
    assert len(texts_of(1)) == VOCABULARY - 1
