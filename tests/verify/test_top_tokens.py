from __future__ import annotations

import pytest
import torch

from groundspeed.verify.top_tokens import leading

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 3, 127, 128, 129, 1_000, 49_152])
@pytest.mark.parametrize("k", [1, 2, 8, 20])
def test_the_leading_tokens_are_those_of_a_sort(dtype, vocabulary, k):
    torch.manual_seed(vocabulary)
    logits = torch.randn(5, vocabulary).to(dtype)
    got = leading(logits, k)
    k = min(k, vocabulary)
    assert got.shape == (5, k)
    assert got.dtype.name == "int32"
    ids = torch.from_numpy(got).long()
    assert all(len(set(row)) == k for row in got.tolist())
    assert torch.equal(logits.gather(1, ids), logits.topk(k).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [9, 128, 1_001])
def test_of_equal_logits_the_first_lead_and_zero_has_no_sign(dtype, vocabulary):
    torch.manual_seed(vocabulary)
    logits = torch.randint(-2, 1, (9, vocabulary)).to(dtype)
    logits[:, ::3] *= -1.0  # zeros of both signs, and numbers above them
    logits[:5].clamp_(max=-0.0)
    want = torch.argsort(-logits.float(), dim=-1, stable=True)[:, :8]
    assert torch.equal(torch.from_numpy(leading(logits, 8)).long(), want)


def test_rows_that_do_not_lie_behind_one_another_are_read_as_they_are():
    logits = torch.randn(6, 300)
    assert (leading(logits[::2, :200], 3) == logits[::2, :200].topk(3).indices.numpy()).all()
