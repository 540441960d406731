"""A target model as draft model: trees that grow pass by pass, and answers that stay what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.drafters import tree_of
from helpers.engines import draft_freely, engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from helpers.tokenizers import byte_tokenizer

from groundspeed.drafting.blend import Blend, BlendDrafter
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.drafting.tree import prune
from groundspeed.errors import InputError, ModelError
from groundspeed.types import GenerationRequest
from groundspeed.verify.base import Segment
from groundspeed.verify.draft_lm import TargetAsDraftLM, check_same_tokens
from groundspeed.verify.engine import Engine
from groundspeed.verify.make_drafter import drafter_by_name
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target import TransformersTarget

PROMPT = tuple(np.random.default_rng(1).integers(3, VOCABULARY, 125).tolist())
"""The nodes behind it stand in two chunks of the cache."""

TREE = replace(
    tree_of([5, 6, 7, 8, 9, 10], [-1, 0, 0, -1, 2, 4]), probs=np.linspace(0.9, 0.4, 6).astype(np.float32)
)


@pytest.mark.parametrize("family", TREE_FAMILIES)
def test_a_tree_read_in_several_passes_is_what_it_is_in_one(family):
    target = TransformersTarget(tiny_model(TREE_FAMILIES[family]()))
    whole, grown = target.open(256), target.open(256)
    for session in (whole, grown):
        target.verify([Segment(session, PROMPT[:-1], rows=0)])
    (wanted,) = target.verify([Segment(whole, PROMPT[-1:], TREE)])
    found = [target.verify([Segment(grown, PROMPT[-1:])])[0]]
    for held, size in ((0, 1), (1, 4), (4, 6)):
        found += target.verify([Segment(grown, (), prune(TREE, size), held=held)])
    torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-4)
    whole.commit([0, 2, 4, 5])
    grown.commit([0, 2, 4, 5])
    pair = [target.verify([Segment(session, [11])])[0] for session in (whole, grown)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bloom", "lfm2"])
def test_a_chain_read_in_several_passes_is_what_it_is_in_one(family):
    target = TransformersTarget(tiny_model(OTHER_FAMILIES[family][1]()))
    chain = tree_of([5, 6, 7, 8], [-1, 0, 1, 2])
    whole, grown = target.open(256), target.open(256)
    (wanted,) = target.verify([Segment(whole, PROMPT, chain)])
    found = [target.verify([Segment(grown, PROMPT)])[0]]
    for held in range(4):
        found += target.verify([Segment(grown, (), prune(chain, held + 1), held=held)])
    torch.testing.assert_close(torch.cat(found), wanted, rtol=1e-4, atol=1e-4)
    whole.commit([0, 1])
    grown.commit([0, 1])
    pair = [target.verify([Segment(session, [11])])[0] for session in (whole, grown)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-4)


def test_a_model_that_can_forget_nothing_is_refused_as_draft_model():
    mamba = TransformersTarget(tiny_model(OTHER_FAMILIES["mamba"][1]()))
    with pytest.raises(ModelError, match="cannot withdraw what it drafted"):
        TargetAsDraftLM(mamba)


@pytest.fixture(scope="module")
def target():
    return TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))


def answers(target, drafter, **settings):
    """Of the engine with a drafter, and without."""
    engine = engine_for(target, drafter)
    request = GenerationRequest(PROMPT, max_tokens=24, **settings)
    return engine.generate(request), engine.generate(replace(request, speculate=False))


@pytest.mark.parametrize("family", [*TREE_FAMILIES, "bloom", "lfm2", "llama4"])
def test_a_draft_model_of_any_family_changes_no_token_chosen_or_drawn(family, target, caplog):
    config = TREE_FAMILIES.get(family) or OTHER_FAMILIES[family][1]
    lm = TargetAsDraftLM(TransformersTarget(tiny_model(config(), seed=1)))
    caplog.clear()  # what transformers says of a configuration, the first time that it sees it
    for temperature, first in ((0.0, None), (0.8, None), (0.8, BlendDrafter)):
        drafter = DraftModel(lm, first=first, depth=3, adapts=False)
        drafted, plain = answers(target, drafter, temperature=temperature, seed=4)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted > 0
    assert not caplog.records


@pytest.mark.parametrize("family", ["gemma3", "bloom", "mamba"])
def test_targets_of_any_kind_take_its_drafts(family):
    config = TREE_FAMILIES.get(family) or OTHER_FAMILIES[family][1]
    lm = TargetAsDraftLM(TransformersTarget(tiny_model(TREE_FAMILIES["llama"]())))
    drafted, plain = answers(TransformersTarget(tiny_model(config())), DraftModel(lm, adapts=False))
    assert drafted.token_ids == plain.token_ids


def test_the_target_as_its_own_draft_model_is_nearly_always_right(target):
    own = TargetAsDraftLM(target)
    chain, plain = answers(target, DraftModel(own, width=1, adapts=False))
    assert chain.token_ids == plain.token_ids
    assert chain.stats.tokens_per_step > 3
    assert chain.stats.accepted_by_source == {"model": chain.stats.accepted}
    drawn, _ = answers(target, DraftModel(own, width=1, draws=1, adapts=False), temperature=1.0, seed=1)
    assert drawn.stats.tokens_per_step > 3


def test_a_cascade_reads_what_the_smaller_model_drafted(target):
    small = DraftModel(
        TargetAsDraftLM(TransformersTarget(tiny_model(TREE_FAMILIES["qwen3"]()))), adapts=False
    )
    cascade = DraftModel(TargetAsDraftLM(target), first=small, depth=1, adapts=False)
    for temperature in (0.0, 0.8):
        drafted, plain = answers(target, cascade, temperature=temperature, seed=4)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.tokens_per_step > 1.4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one tokenizer, and one of another."""
    found = {}
    for name, merged, seed in (
        ("target", ("th", "the"), 0),
        ("small", ("th", "the"), 0),
        ("other", ("an",), 1),
    ):
        tokenizer = byte_tokenizer(*merged)
        config = TREE_FAMILIES["llama"]()
        config.vocab_size = len(tokenizer)
        folder = tmp_path_factory.mktemp(name)
        tokenizer.save_pretrained(folder)
        tiny_model(config, seed).save_pretrained(folder)
        found[name] = str(folder)
    return found


def test_a_draft_model_is_loaded_by_name_and_grows_what_the_blend_drafts(folders, monkeypatch):
    draft_freely(monkeypatch)
    engine = Engine.from_pretrained(folders["target"], dtype="float32", draft_model=folders["small"])
    assert isinstance(engine.drafter.first, Blend)
    request = GenerationRequest("the cat", max_tokens=24)
    drafted = engine.generate(request)
    assert drafted.token_ids == engine.generate(replace(request, speculate=False)).token_ids
    assert drafted.stats.accepted_by_source["model"] > 0


def test_a_draft_model_of_other_tokens_is_refused_by_name_and_bridged_when_asked(folders):
    wanted = (
        rf"{folders['other']} \(258 tokens\) and the target's {folders['target']} \(259 tokens\) differ in"
    )
    with pytest.raises(InputError, match=wanted):
        Engine.from_pretrained(folders["target"], draft_model=folders["other"])
    engine = Engine.from_pretrained(
        folders["target"], dtype="float32", draft_model=folders["other"], bridge_tokenizers=True
    )
    request = GenerationRequest("the cat sat on the mat", max_tokens=24)
    drafted = engine.generate(request)
    assert drafted.token_ids == engine.generate(replace(request, speculate=False)).token_ids


def test_a_draft_model_and_a_drafter_are_not_both_taken(folders):
    with pytest.raises(InputError, match="a draft model and a drafter were given"):
        Engine.from_pretrained(folders["target"], draft_model=folders["small"], drafter=Blend())


@pytest.mark.parametrize("drafter", ["lookahead", "first-layers", "heads"])
def test_a_drafter_that_asks_the_target_is_made_by_its_name(folders, tmp_path, drafter):
    if drafter == "heads":
        drafter = str(tmp_path)
        MedusaHeads(32, 2).save(tmp_path)
    engine = Engine.from_pretrained(folders["target"], dtype="float32", drafter=drafter)
    request = GenerationRequest("the cat sat on the mat, the cat", max_tokens=24)
    drafted = engine.generate(request)
    assert drafted.token_ids == engine.generate(replace(request, speculate=False)).token_ids
    assert drafted.stats.drafted > 0


def test_the_blend_has_a_name_too_and_takes_a_draft_model(folders):
    engine = Engine.from_pretrained(folders["target"], drafter="blend", draft_model=folders["small"])
    assert isinstance(engine.drafter.first, Blend)


def test_drafters_that_are_not_there_are_refused_by_name(folders, tmp_path):
    with pytest.raises(InputError, match="no drafter 'nobody'; give blend, lookahead, first-layers, or a"):
        Engine.from_pretrained(folders["target"], drafter="nobody")
    MedusaHeads(16, 2).save(tmp_path)
    with pytest.raises(InputError, match="width 16 and the target's have 32"):
        Engine.from_pretrained(folders["target"], drafter=str(tmp_path))
    chains = TransformersTarget(tiny_model(OTHER_FAMILIES["bloom"][1]()))
    with pytest.raises(ModelError, match="Medusa heads cannot draft for this model"):
        drafter_by_name(str(tmp_path))(chains, None)


def test_special_tokens_may_differ_and_text_may_not():
    one, other = byte_tokenizer("th", "the"), byte_tokenizer("th", "the")
    other.add_special_tokens({"pad_token": "<pad>"})
    check_same_tokens(one, other)
    with pytest.raises(InputError, match="differ in 1 ids"):
        check_same_tokens(one, byte_tokenizer("th"))
