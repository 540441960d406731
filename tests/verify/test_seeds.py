"""Sampling is exact, and one seed gives one text, with and without speculation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from helpers.drafters import ADVERSARIES, RightAnswer, tree_of
from helpers.engines import engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from helpers.statistics import chi_square

from groundspeed.types import GenerationRequest, StepEvent
from groundspeed.verify.acceptance import accept
from groundspeed.verify.draws import draw
from groundspeed.verify.sampling import make_chooser
from groundspeed.verify.target import TransformersTarget

NEW = 40
PROMPT = tuple(np.random.default_rng(1).integers(3, VOCABULARY, 23).tolist())
FAMILIES = {
    **TREE_FAMILIES,
    **{name: config for name, (_, config) in OTHER_FAMILIES.items()},
}
SETTINGS = [
    {"temperature": 0.3},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.3},
    {"temperature": 1.0, "frequency_penalty": 0.7, "presence_penalty": 0.3, "typical_p": 0.9},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2},
]


def drawn_by_generate(model, monkeypatch, seed, **settings):
    """What transformers' own loop says when its draws are ours."""
    position = len(PROMPT)

    def multinomial(probabilities, num_samples):
        nonlocal position
        token = draw(probabilities[0].log().numpy(), seed, position)
        position += 1
        return torch.tensor([[token]])

    ids = torch.tensor([PROMPT])
    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=NEW,
            pad_token_id=0,
            **{"top_k": 0, **settings},
        )
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "bloom", "mamba"])
def test_a_seed_gives_the_text_that_generate_says_with_the_same_draws(family, monkeypatch):
    model = tiny_model(FAMILIES[family]())
    target = TransformersTarget(model)
    for seed, settings in enumerate(SETTINGS[:3]):
        wanted = drawn_by_generate(model, monkeypatch, seed, **settings)
        for adversary in ADVERSARIES:
            result = engine_for(target, lambda a=adversary, w=wanted: a(w)).generate(
                GenerationRequest(PROMPT, max_tokens=NEW, seed=seed, **settings)
            )
            assert list(result.token_ids) == wanted, (settings, adversary.__name__)


@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_changes_no_drawn_token(family):
    target = TransformersTarget(tiny_model(FAMILIES[family]()))
    turn = list(FAMILIES).index(family)
    texts, accepted = set(), 0
    for seed, settings in enumerate(SETTINGS):
        request = {"max_tokens": NEW, "seed": seed, **settings}
        plain = engine_for(target).generate(GenerationRequest(PROMPT, speculate=False, **request))
        assert plain.seed == (seed if "temperature" in settings else None)
        adversary = ADVERSARIES[(seed + turn) % len(ADVERSARIES)](plain.token_ids)
        result = engine_for(target, lambda a=adversary: a).generate(GenerationRequest(PROMPT, **request))
        assert result.token_ids == plain.token_ids, (settings, type(adversary).__name__)
        texts.add(plain.token_ids)
        accepted += result.stats.accepted
    assert len(texts) > 2
    assert accepted > 0 or not target.capability.supports_chain


TABLE = np.random.default_rng(3).normal(0, 1.2, (4, 4)).astype(np.float32)
"""Logits of four tokens, by the last one."""

ASKED = GenerationRequest(
    (0,), temperature=0.9, top_p=0.9, frequency_penalty=0.8, presence_penalty=0.4, repetition_penalty=1.5
)


def enumerated(own_path=True):
    """The probability of each text of three tokens behind token 0, by the formulas; [64].

    Args:
        own_path: Whether penalties know of the tokens before; the wrong rule knows the prompt only.
    """
    result = np.zeros(64)
    for index, text in enumerate(product(range(4), repeat=3)):
        probability = 1.0
        for at, token in enumerate(text):
            logits = TABLE[([0, *text])[at]].astype(float)
            answer = text[:at] if own_path else ()
            for seen in {0, *answer}:
                logits[seen] *= 1 / 1.5 if logits[seen] > 0 else 1.5
            for other in range(4):
                logits[other] -= 0.8 * answer.count(other) + 0.4 * (other in answer)
            p = np.exp(logits / 0.9)
            p /= p.sum()
            order = np.argsort(-p)
            before = np.cumsum(p[order]) - p[order]
            p[order[before >= 0.9]] = 0
            probability *= p[token] / p.sum()
        result[index] = probability
    return result


def random_tree(rng, depth):
    tokens, parents, depths = [], [], []
    for _ in range(rng.integers(0, 10)):
        parent = int(rng.integers(-1, len(tokens)))
        below = depths[parent] + 1 if parent >= 0 else 1
        token = int(rng.integers(4))
        if below <= depth and (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
            depths.append(below)
    return tree_of(tokens, parents)


@pytest.fixture(scope="module")
def texts():
    """How often each text was drawn through random trees, and how many of their nodes were accepted."""
    rng = np.random.default_rng(0)
    trees = {depth: [random_tree(rng, depth) for _ in range(60)] for depth in range(3)}
    counts, accepted = np.zeros(64, int), 0
    for seed in range(5_000):
        chooser = make_chooser(ASKED, seed, [0], 3, (), torch.device("cpu"))
        text = [0]
        while len(text) < 4:
            tree = trees[3 - len(text)][rng.integers(60)]
            logits = torch.from_numpy(TABLE[[text[-1], *tree.token_ids.tolist()]])
            path, bonus = accept(tree, chooser(logits))
            text += [*tree.token_ids[path].tolist(), bonus]
            accepted += len(path)
        counts[16 * text[1] + 4 * text[2] + text[3]] += 1
    return counts, accepted


def test_texts_drawn_through_trees_follow_the_distribution_that_the_formulas_give(texts):
    counts, accepted = texts
    assert chi_square(counts, enumerated()) > 1e-4
    assert accepted > 1_000


def test_penalties_that_overlook_the_path_of_a_node_would_be_noticed(texts):
    counts, _ = texts
    wrong = enumerated(own_path=False)
    wrong = (wrong + 1e-12) / (wrong + 1e-12).sum()
    assert chi_square(counts, wrong) < 1e-4


def test_a_nodes_own_path_decides_what_follows_it():
    # Token 1 is best everywhere, until it was said once: behind node 0 that is known, in the same pass.
    logits = torch.tensor([[0.0, 1.0, 0.5, 0.0]]).repeat(3, 1)
    request = GenerationRequest((0,), presence_penalty=0.6)
    chooser = make_chooser(request, None, [0], 3, (), torch.device("cpu"))
    assert accept(tree_of([1, 1], [-1, 0]), chooser(logits)) == ([0], 2)
    unpenalised = make_chooser(GenerationRequest((0,)), None, [0], 3, (), torch.device("cpu"))
    assert accept(tree_of([1, 1], [-1, 0]), unpenalised(logits)) == ([0, 1], 1)


def test_a_processor_sees_every_prefix_once_and_in_order():
    seen = []

    def watch(input_ids, scores):
        seen.append(input_ids[0].tolist())
        return scores

    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))
    request = GenerationRequest(PROMPT, max_tokens=NEW, temperature=1.0, seed=4, logits_processors=(watch,))
    plain = engine_for(target).generate(request)
    end = plain.token_ids[25]
    until = plain.token_ids.index(end)
    target.model.generation_config.eos_token_id = end
    for adversary in ADVERSARIES:
        seen.clear()
        result = engine_for(target, lambda a=adversary: a(plain.token_ids)).generate(request)
        assert result.token_ids == plain.token_ids[:until]
        assert result.finish_reason == "stop"
        # The last call chose the end of the sequence; behind it nobody is asked.
        assert seen == [[*PROMPT, *plain.token_ids[:i]] for i in range(until + 1)]


def test_without_a_seed_a_fresh_one_is_taken_and_repeats_the_text():
    engine = engine_for(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    request = {"max_tokens": NEW, "temperature": 1.0}
    first, second = (engine.generate(GenerationRequest(PROMPT, **request)) for _ in range(2))
    assert first.seed is not None
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = engine.generate(GenerationRequest(PROMPT, seed=first.seed, **request))
    assert (again.token_ids, again.seed) == (first.token_ids, first.seed)


def test_a_text_taken_up_in_the_middle_goes_on_as_before():
    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))
    whole = (
        engine_for(target)
        .generate(GenerationRequest(PROMPT, max_tokens=NEW, temperature=1.0, seed=5))
        .token_ids
    )
    onwards = GenerationRequest(PROMPT + whole[:15], max_tokens=NEW - 15, temperature=1.0, seed=5)
    assert engine_for(target).generate(onwards).token_ids == whole[15:]


def test_drafts_that_the_draws_confirm_are_accepted_whole():
    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))
    request = GenerationRequest(PROMPT, max_tokens=NEW, temperature=1.0, seed=6)
    answer = engine_for(target).generate(request).token_ids
    events = list(engine_for(target, lambda: RightAnswer(answer)).stream(request))
    assert [event.accepted for event in events if isinstance(event, StepEvent)] == [0, 24, 13]
