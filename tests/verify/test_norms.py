from __future__ import annotations

import copy
import pickle

import pytest
import torch
from helpers.families import TREE_FAMILIES, tiny_model
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from groundspeed.verify.norms import FusedNorm, fuse_norms
from groundspeed.verify.target import TransformersTarget


def made(kind, size=96, epsilon=1e-5, dtype=torch.bfloat16):
    torch.manual_seed(0)
    norm = kind(size, epsilon).to(dtype)
    nn.init.normal_(norm.weight)
    return nn.ModuleDict({"norm": norm}).requires_grad_(requires_grad=False)


def rows(count, size=96, scale=1.0):
    return (torch.randn(count, size, generator=torch.Generator().manual_seed(1)) * scale).bfloat16()


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("size", [8, 96, 576])
@torch.inference_mode()
def test_a_norm_in_one_call_gives_what_its_formula_gives(kind, scale, size):
    model = made(kind, size)
    states = rows(50, size, scale)
    want = model["norm"](states)
    assert fuse_norms(model) == 1
    assert isinstance(model["norm"], FusedNorm)
    got = model["norm"](states)
    assert (got == want).float().mean() > 0.99
    assert torch.allclose(got.float(), want.float(), rtol=1e-2, atol=0)


@torch.inference_mode()
def test_a_row_comes_out_the_same_to_the_bit_whatever_is_beside_it():
    model = made(LlamaRMSNorm, 576)
    fuse_norms(model)
    states = rows(300, 576)  # enough for several threads
    whole = model["norm"](states)
    for count in (1, 2, 7, 64):
        assert torch.equal(model["norm"](states[50 : 50 + count]), whole[50 : 50 + count])
    assert torch.equal(model["norm"](states[None, None])[0, 0], whole)
    assert torch.equal(model["norm"](states.T.contiguous().T), whole)


class NormOfAnotherKind(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) + 1


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states, gate=None):
        return super().forward(hidden_states)


class StrangeRMSNorm(NormOfAnotherKind):
    pass


@pytest.mark.parametrize("kind", [GatedRMSNorm, StrangeRMSNorm, NormOfAnotherKind])
def test_a_norm_of_another_formula_is_left_alone(kind):
    model = made(kind)
    before = model["norm"]
    assert fuse_norms(model) == 0
    assert model["norm"] is before


def test_a_norm_in_float32_is_left_alone():
    assert fuse_norms(made(LlamaRMSNorm, dtype=torch.float32)) == 0


def test_states_of_another_dtype_or_size_are_refused():
    model = made(LlamaRMSNorm)
    fuse_norms(model)
    with pytest.raises(TypeError, match="float32"):
        model["norm"](torch.randn(2, 96))
    with pytest.raises(ValueError, match="96"):
        model["norm"](rows(2, 48))
    with pytest.raises(TypeError, match="meta"):
        model["norm"](torch.empty(2, 96, dtype=torch.bfloat16, device="meta"))


@torch.inference_mode()
def test_a_copy_of_a_norm_outlives_it():
    model = made(LlamaRMSNorm)
    fuse_norms(model)
    want = model["norm"](rows(3))
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    model["norm"]._factors.zero_()
    assert torch.equal(copied["norm"](rows(3)), want)


@pytest.mark.parametrize("family", TREE_FAMILIES)
@torch.inference_mode()
def test_a_model_in_bfloat16_with_its_layers_packed_takes_what_it_took_and_gives_nearly_the_same(family):
    model = tiny_model(TREE_FAMILIES[family]()).to(torch.bfloat16)
    ids = list(range(5, 25))
    plain = TransformersTarget(model)
    want = plain.forward(ids, 20).float()
    target = TransformersTarget.packed(model)
    got = target.forward(ids, 20).float()
    assert target.capability.decoding == plain.capability.decoding, target.capability.reason
    assert (got - want).pow(2).mean().sqrt() < 0.05 * want.std()
