from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers.families import VOCABULARY, tiny_model
from transformers import models as families

from groundspeed.drafting.base import DraftTree
from groundspeed.verify import fused_layers
from groundspeed.verify.base import Segment
from groundspeed.verify.fused_layers import FusedLayer, fuse_layers
from groundspeed.verify.linear_kernel import HAS_PRODUCTS
from groundspeed.verify.norms import fuse_norms
from groundspeed.verify.packing import PairedLinear, joined, pack_linears
from groundspeed.verify.target import TransformersTarget

pytestmark = pytest.mark.skipif(not HAS_PRODUCTS, reason="this processor does not multiply pairs of bfloat16")

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}

FUSED = {
    "llama": lambda: families.llama.LlamaConfig(**SIZES),
    "llama with biases": lambda: families.llama.LlamaConfig(**SIZES, attention_bias=True),
    "qwen2": lambda: families.qwen2.Qwen2Config(**SIZES),
    "qwen3": lambda: families.qwen3.Qwen3Config(**SIZES),
    "mistral": lambda: families.mistral.MistralConfig(**SIZES, sliding_window=9),
}

OTHERS = {
    "gemma2": lambda: families.gemma2.Gemma2Config(**SIZES, sliding_window=7),
    "gemma3": lambda: families.gemma3.Gemma3TextConfig(**SIZES),
    "granite": lambda: families.granite.GraniteConfig(**SIZES, residual_multiplier=0.5),
    "gelu": lambda: families.llama.LlamaConfig(**SIZES, hidden_act="gelu"),
    "olmo2": lambda: families.olmo2.Olmo2Config(**SIZES),
    "cohere": lambda: families.cohere.CohereConfig(**SIZES),
    "glm": lambda: families.glm.GlmConfig(**SIZES, partial_rotary_factor=0.5),
    "biased gate": lambda: families.llama.LlamaConfig(**SIZES, mlp_bias=True),
    "odd heads": lambda: families.llama.LlamaConfig(**SIZES | {"head_dim": 24}),
    "phi3": lambda: families.phi3.Phi3Config(**SIZES),
}


def packed_model(config):
    model = tiny_model(config).to(torch.bfloat16)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):  # which are made as zeros
            torch.nn.init.normal_(weight)
    assert pack_linears(model)
    fuse_norms(model)
    return model


def short_ways(model):
    return [vars(layer)["forward"] for layer in model.modules() if "forward" in vars(layer)]


def logits_of(model, ids, tree=None):
    """Of a text and a tree behind it, a part of the text at a time."""
    target = TransformersTarget(model)
    assert target.capability.supports_tree, target.capability.reason
    session = target.open(len(ids) + 64)
    target.verify([Segment(session, ids[:-5], rows=0)])
    return target.verify([Segment(session, ids[-5:], tree or DraftTree.empty(), rows=5)])[0]


def forked():
    tokens, parents = np.array([7, 8, 9, 10], np.int32), np.array([-1, 0, 0, 1], np.int32)
    return DraftTree(
        tokens, parents, np.full(4, 0.5, np.float32), np.zeros(4, np.uint16), np.full(4, -1, np.int64)
    )


@pytest.mark.parametrize("family", FUSED)
@torch.inference_mode()
def test_a_layer_in_few_calls_gives_what_the_layer_gives(family):
    model = packed_model(FUSED[family]())
    ids = torch.randint(3, VOCABULARY, (150,), generator=torch.Generator().manual_seed(2)).tolist()
    want = logits_of(model, ids, forked())
    assert fuse_layers(model) == 3
    assert len(short_ways(model)) == 3
    got = logits_of(model, ids, forked())
    assert (got == want).float().mean() > 0.9
    assert (got.float() - want.float()).abs().max() < 0.05 * want.float().std()


@pytest.mark.parametrize("family", OTHERS)
def test_a_layer_of_another_formula_is_left_alone(family):
    model = packed_model(OTHERS[family]())
    assert fuse_layers(model) == 0
    assert not short_ways(model)


@torch.inference_mode()
def test_layers_that_do_without_rotation_are_left_alone_among_others():
    model = packed_model(families.smollm3.SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1]))
    assert fuse_layers(model) == 2
    assert "forward" not in vars(model.model.layers[1])


@torch.inference_mode()
def test_each_layer_asks_for_its_own_window():
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    config = families.qwen2.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, layer_types=kinds)
    model = packed_model(config)
    want = logits_of(model, list(range(3, 60)))
    assert fuse_layers(model) == 3
    assert [short.scoring.window for short in short_ways(model)] == [None, 7, None]
    assert torch.equal(logits_of(model, list(range(3, 60))), want)


@torch.inference_mode()
def test_whoever_else_calls_the_model_gets_the_layers_own_code(monkeypatch):
    model = packed_model(FUSED["llama"]())
    ids = torch.arange(3, 40)[None]
    want = model(ids).logits
    fuse_layers(model)
    monkeypatch.setattr(FusedLayer, "_heads_of", None)
    assert torch.equal(model(ids).logits, want)


@torch.inference_mode()
def test_a_hook_on_a_part_of_a_layer_sees_what_it_would_see():
    model = packed_model(FUSED["llama"]())
    fuse_layers(model)
    ids = list(range(3, 40))
    want = logits_of(model, ids)
    seen = []
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *args: seen.append(args[2].shape))
    assert (logits_of(model, ids) == want).float().mean() > 0.9
    assert seen[-1] == (1, 5, 64)
    handle.remove()
    changing = model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda *args: args[2] * 0)
    assert not torch.equal(logits_of(model, ids), want)
    changing.remove()
    assert torch.equal(logits_of(model, ids), want)


@torch.inference_mode()
def test_a_copy_of_a_model_outlives_it():
    model = packed_model(FUSED["qwen3"]())
    fuse_layers(model)
    ids = list(range(3, 40))
    want = logits_of(model, ids)
    copied = copy.deepcopy(model)
    for short in short_ways(model):
        short._project._packed.zero_()
    assert len(short_ways(copied)) == 3
    assert torch.equal(logits_of(copied, ids), want)
    loaded = pickle.loads(pickle.dumps(copied.model.layers))
    assert all(short._layer is layer for short, layer in zip(map(vars_forward, loaded), loaded, strict=True))


def vars_forward(layer):
    return vars(layer)["forward"]


def test_a_layer_that_somebody_else_stands_for_is_left_alone():
    model = packed_model(FUSED["llama"]())
    layer = model.model.layers[0]
    layer.forward = type(layer).forward.__get__(layer)
    assert fuse_layers(model) == 2


def test_a_layer_whose_numbers_differ_is_left_alone(monkeypatch):
    """The trial decides, not the names of the parts."""
    rotate = fused_layers._rotate
    monkeypatch.setattr(
        fused_layers, "_rotate", lambda states, cosines, sines: rotate(states, cosines, -sines)
    )
    assert fuse_layers(packed_model(FUSED["llama"]())) == 0


def half_linear(terms, outputs, *, bias=False):
    return PairedLinear(torch.nn.Linear(terms, outputs, bias=bias, dtype=torch.bfloat16))


@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_joined_layers_give_their_outputs_as_one_and_on_their_own(bias):
    layers = [half_linear(32, size, bias=bias) for size in (128, 64, 64)]
    inputs = torch.randn(9, 32).bfloat16()
    want = [layer(inputs) for layer in layers]
    joint = joined(layers)
    assert torch.equal(joint(inputs), torch.cat(want, -1))
    assert all(torch.equal(layer(inputs), one) for layer, one in zip(layers, want, strict=True))
    assert layers[1]._packed.untyped_storage().data_ptr() == joint._packed.untyped_storage().data_ptr()


def test_layers_that_do_not_fit_together_are_not_joined():
    assert joined([half_linear(32, 64), half_linear(32, 70)]) is None
    assert joined([half_linear(32, 64), half_linear(64, 64)]) is None
    assert joined([half_linear(32, 64), half_linear(32, 64, bias=True)]) is None


@pytest.mark.parametrize("outputs", [64, 70, 200])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_product_is_added_as_by_itself_to_the_bit(outputs, bias):
    layer = half_linear(96, outputs, bias=bias)
    inputs, states = torch.randn(1, 37, 96).bfloat16(), torch.randn(1, 37, outputs).bfloat16()
    whole = layer.product(inputs, added=states)
    assert torch.equal(whole, states + layer(inputs))
    for count in (1, 6, 13):
        assert torch.equal(
            layer.product(inputs[:, :count], added=states[:, :count].contiguous()), whole[:, :count]
        )


@pytest.mark.parametrize("outputs", [64, 70, 200])
@torch.inference_mode()
def test_a_gate_gives_what_its_steps_give(outputs):
    gate, factor = half_linear(96, outputs), half_linear(96, outputs)
    inputs = (torch.randn(1, 37, 96) * torch.logspace(-2, 2, 37)[:, None]).bfloat16()
    want = torch.nn.functional.silu(gate(inputs)) * factor(inputs)
    whole = gate.product(inputs, factor=factor)
    assert (whole == want).float().mean() > 0.995
    assert torch.allclose(whole.float(), want.float(), rtol=1e-2, atol=1e-6)
    for count in (1, 6, 13):
        assert torch.equal(gate.product(inputs[:, :count], factor=factor), whole[:, :count])
