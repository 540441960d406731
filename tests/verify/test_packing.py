from __future__ import annotations

import pytest
import torch
from helpers.families import TREE_FAMILIES, tiny_model
from torch import nn

from groundspeed.verify.packing import PackedLinear, pack_linears


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_layer_multiplies_as_the_plain_one(dtype, rows, bias):
    torch.manual_seed(0)
    linear = nn.Linear(96, 33, bias=bias, dtype=dtype)
    inputs = torch.randn(1, rows, 96, dtype=dtype)
    with torch.inference_mode():
        want, got = linear(inputs), PackedLinear(linear)(inputs)
    limit = 1e-5 if dtype is torch.float32 else 1e-2
    assert torch.allclose(got.float(), want.float(), rtol=limit, atol=limit)


def test_packing_a_model_replaces_every_linear_layer_and_changes_no_answer():
    model = tiny_model(TREE_FAMILIES["llama"]())
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.inference_mode():
        want = model(ids).logits
        packed = pack_linears(model)
        got = model(ids).logits
    assert packed == 3 * 7 + 1
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)


def test_layers_in_other_dtypes_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear


class Quantised(torch.Tensor):
    """Claims to be bfloat16, as torchao's tensors do."""


def test_layers_whose_weights_only_stand_for_numbers_are_left_alone():
    linear = nn.Linear(8, 8, dtype=torch.bfloat16)
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Quantised))
    model = nn.Sequential(linear, nn.Linear(8, 8, dtype=torch.bfloat16))
    assert pack_linears(model) == 1
    assert model[0] is linear
