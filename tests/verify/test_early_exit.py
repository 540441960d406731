"""The first layers draft in the request's own KV cache as a model cut short would, and are measured."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers.engines import engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from groundspeed.drafting.base import DraftRequest
from groundspeed.drafting.draft_model import DraftModel
from groundspeed.errors import DraftError, InputError, ModelError
from groundspeed.types import GenerationRequest, Source
from groundspeed.verify.base import Segment
from groundspeed.verify.early_exit import Exit, FirstLayers, measure_exits
from groundspeed.verify.shallow import shallow_twin
from groundspeed.verify.target import TransformersTarget

TEXT = np.random.default_rng(4).integers(3, VOCABULARY, 30).tolist()


def cut_short(model, layers):
    """A model of the first layers, made by transformers from a configuration."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    short = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    short.load_state_dict(model.state_dict(), strict=False)
    return short


@pytest.fixture(scope="module")
def target():
    return TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "opt", "gpt_neox", "phi3"])
def test_a_twin_says_what_a_model_of_so_many_layers_says_and_changes_nothing(family):
    model = tiny_model(TREE_FAMILIES[family]())
    with torch.inference_mode():
        before = model(torch.tensor([TEXT])).logits
        twin = shallow_twin(model, 2)(torch.tensor([TEXT])).logits
        torch.testing.assert_close(twin, cut_short(model, 2)(torch.tensor([TEXT])).logits)
        assert torch.equal(model(torch.tensor([TEXT])).logits, before)
        assert not torch.equal(twin, before)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_tree_grows_behind_the_requests_own_cache(family):
    model = tiny_model(TREE_FAMILIES[family]())
    target = TransformersTarget(model)
    short = cut_short(model, 2)
    session = target.open(128)
    target.verify([Segment(session, TEXT[:-1])])
    session.commit([])
    nodes, parents = [TEXT[-1], 7, 8, 9, 11], np.array([-1, 0, 0, 1, 2], np.int32)
    rows = [
        target.read_ahead(session, 2, nodes[:n], parents[:n], held) for held, n in ((0, 1), (1, 3), (3, 5))
    ]
    paths = [[], [7], [8], [7, 9], [8, 11]]
    with torch.inference_mode():
        for row, path in zip(torch.cat(rows), paths, strict=True):
            wanted = short(torch.tensor([[*TEXT, *path]])).logits[0, -1]
            torch.testing.assert_close(row, wanted, atol=1e-3, rtol=1e-3)


def test_layers_that_say_what_all_say_are_accepted_whole(target):
    model = copy.deepcopy(target.model)
    for layer in model.model.layers[1:]:  # they add nothing
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    sure = TransformersTarget(model)
    result = engine_for(sure, DraftModel(FirstLayers(sure, 1), depth=4, width=1, adapts=False)).generate(
        GenerationRequest(tuple(TEXT), max_tokens=41)
    )
    assert result.stats.steps <= 10
    assert result.sources.count(Source.MODEL) == result.stats.accepted >= 30


def test_what_is_measured_is_what_the_layers_agree_on(target):
    exits = measure_exits(target, TEXT)
    assert [one.layers for one in exits] == [1, 2]
    with torch.inference_mode():
        wanted = target.model(torch.tensor([TEXT])).logits[0].argmax(-1)
        for one in exits:
            said = cut_short(target.model, one.layers)(torch.tensor([TEXT])).logits[0].argmax(-1)
            assert one.agreement == pytest.approx(float((said == wanted).float().mean()))
            assert one.cost > 0


def test_the_speed_of_an_exit_is_that_of_its_best_length():
    assert Exit(1, 0.0, 0.5).speed == pytest.approx(1 / 1.5)
    assert Exit(1, 0.5, 0.1).speed == pytest.approx(max(1.5 / 1.1, 1.75 / 1.2, 1.875 / 1.3, 1.9375 / 1.4))
    assert Exit(1, 1.0, 0.25).speed == pytest.approx(9 / 3)


def test_as_many_layers_are_chosen_as_promise_most(target):
    lm = FirstLayers.chosen(target, TEXT)
    assert lm.layers == max(lm.exits, key=lambda one: one.speed).layers


def test_layers_that_were_trained_to_exit_early_are_nearly_always_right():
    # As LayerSkip trains (Elhoushi et al. 2024, section 4.1): a loss behind all layers, one behind the first.
    torch.manual_seed(5)
    follows = torch.randperm(VOCABULARY)

    def texts(first, length):
        text = [first]
        while len(text) < length:
            text.append(follows[text[-1]])
        return torch.stack(text, 1)

    model = tiny_model(TREE_FAMILIES["llama"](), seed=5)
    (written,) = texts(torch.tensor([7]), 40).tolist()
    before = measure_exits(TransformersTarget(model), written)[0]
    exits = (model, shallow_twin(model, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        ids = texts(torch.randint(VOCABULARY, (32,)), 16)
        losses = [cross_entropy(out(ids).logits[:, :-1].mT, ids[:, 1:]) for out in exits]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    target = TransformersTarget(model.requires_grad_(False))
    lm = FirstLayers.chosen(target, written)
    assert before.agreement < 0.3
    assert lm.exits[0].agreement > 0.8
    request = GenerationRequest(tuple(written[:8]), max_tokens=32)
    engine = engine_for(target, DraftModel(lm, depth=4, width=1, adapts=False))
    result = engine.generate(request)
    assert result.token_ids == engine_for(target).generate(request).token_ids
    assert result.stats.tokens_per_step > 3


@pytest.mark.parametrize("layers", [0, 3, 4])
def test_a_number_of_layers_that_is_not_there_is_refused(target, layers):
    with pytest.raises(InputError, match="a model of 3"):
        FirstLayers(target, layers)


def test_a_model_that_verifies_no_trees_is_refused():
    with pytest.raises(ModelError, match="cannot draft for this model"):
        FirstLayers(TransformersTarget(tiny_model(OTHER_FAMILIES["lfm2"][1]())), 1)


def test_without_a_request_of_the_target_there_is_nothing_to_draft_in(target):
    with pytest.raises(DraftError, match="none was handed on"):
        DraftModel(FirstLayers(target, 1))().begin(DraftRequest(np.zeros(1, np.int32), (), VOCABULARY))


def test_a_text_of_one_token_is_nothing_to_measure_on(target):
    with pytest.raises(InputError, match="two tokens or more"):
        measure_exits(target, TEXT[:1])
