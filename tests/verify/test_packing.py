from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.families import TREE_FAMILIES, tiny_model
from torch import nn

from groundspeed.verify.linear_kernel import HAS_PRODUCTS
from groundspeed.verify.packing import PackedLinear, PairedLinear, pack_linears, packed

paired = pytest.mark.skipif(not HAS_PRODUCTS, reason="this processor does not multiply pairs of bfloat16")


def half_linear(terms, outputs, *, bias=False):
    torch.manual_seed(0)
    return nn.Linear(terms, outputs, bias=bias, dtype=torch.bfloat16)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_layer_multiplies_as_the_plain_one(dtype, rows, bias):
    torch.manual_seed(0)
    linear = nn.Linear(96, 33, bias=bias, dtype=dtype)
    inputs = torch.randn(1, rows, 96, dtype=dtype)
    with torch.inference_mode():
        want = linear(inputs)
        products = [PackedLinear(linear)(inputs), packed(linear)(inputs)]
    limit = 1e-5 if dtype is torch.float32 else 1e-2
    for got in products:
        assert got.shape == want.shape
        assert torch.allclose(got.float(), want.float(), rtol=limit, atol=limit)


def test_our_kernel_takes_bfloat16_where_the_processor_multiplies_pairs():
    assert PairedLinear.takes(half_linear(8, 8)) is HAS_PRODUCTS
    assert not PairedLinear.takes(half_linear(7, 8))
    assert not PairedLinear.takes(nn.Linear(8, 8))


@paired
@pytest.mark.parametrize(("terms", "outputs"), [(2, 1), (576, 192), (1536, 65), (130, 640)])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_row_comes_out_the_same_to_the_bit_whatever_is_beside_it(terms, outputs, bias):
    linear = half_linear(terms, outputs, bias=bias)
    layer = PairedLinear(linear)
    inputs = torch.randn(150, terms).bfloat16()
    whole = layer(inputs)
    exact = inputs.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    # Terms of either sign may nearly cancel: what a sum is off by goes by their size.
    size = inputs.double().abs() @ linear.weight.double().abs().T + 1
    assert ((whole.double() - exact).abs() <= exact.abs() / 250 + size * 1e-6).all()
    for count in (1, 2, 5, 6, 7, 12, 13, 37, 64):
        for first in range(0, 150 - count, 31):
            assert torch.equal(layer(inputs[first : first + count]), whole[first : first + count])


@paired
@torch.inference_mode()
def test_our_kernel_gives_the_same_whatever_the_number_of_threads(monkeypatch):
    layer = PairedLinear(half_linear(64, 200))
    inputs = torch.randn(9, 64).bfloat16()
    want = layer(inputs)
    for threads in (1, 3, 16, 100):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(layer(inputs), want)


@paired
@torch.inference_mode()
def test_our_kernel_takes_inputs_of_any_strides_and_no_rows_at_all():
    layer = PairedLinear(half_linear(64, 70))
    inputs = torch.randn(64, 5).bfloat16()
    assert torch.equal(layer(inputs.T), layer(inputs.T.contiguous()))
    assert layer(torch.empty(2, 0, 64, dtype=torch.bfloat16)).shape == (2, 0, 70)


@paired
@torch.inference_mode()
def test_what_is_not_a_number_stays_in_its_row():
    layer = PairedLinear(half_linear(64, 70))
    inputs = torch.randn(8, 64).bfloat16()
    want = layer(inputs)
    inputs[3, 5], inputs[5, 0] = torch.nan, torch.inf
    got = layer(inputs)
    assert got[3].isnan().all()
    assert not got[5].isfinite().any()
    others = [0, 1, 2, 4, 6, 7]
    assert torch.equal(got[others], want[others])


@paired
def test_our_kernel_refuses_another_dtype_and_another_width():
    layer = PairedLinear(half_linear(64, 70))
    with pytest.raises(TypeError, match="float32"):
        layer(torch.randn(3, 64))
    with pytest.raises(ValueError, match="64"):
        layer(torch.randn(3, 32).bfloat16())
    with pytest.raises(TypeError, match="meta"):
        layer(torch.empty(3, 64, dtype=torch.bfloat16, device="meta"))


@paired
@torch.inference_mode()
def test_a_copy_of_a_layer_outlives_it():
    layer = PairedLinear(half_linear(64, 70, bias=True))
    inputs = torch.randn(3, 64).bfloat16()
    want = layer(inputs)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(layer)))
    layer._packed.zero_()
    layer._bias.zero_()
    assert torch.equal(copied(inputs), want)


@paired
@torch.inference_mode()
def test_threads_may_use_a_layer_at_once():
    layer = PairedLinear(half_linear(256, 512))
    inputs = [torch.randn(1 + i, 256).bfloat16() for i in range(8)]
    want = [layer(rows) for rows in inputs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(layer, inputs * 20))
    assert all(torch.equal(a, b) for a, b in zip(got, want * 20, strict=True))


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
