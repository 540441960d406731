from __future__ import annotations

import pytest
import torch

from groundspeed.verify.sampling import greedy

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 2, 97, 128, 129, 5_000, 49_152])
@pytest.mark.parametrize("levels", [1, 2, 50, 0])
def test_the_choice_is_the_argmax_of_torch_and_of_equals_the_first(dtype, vocabulary, levels):
    torch.manual_seed(vocabulary + levels)
    logits = torch.randint(levels, (9, vocabulary)) if levels else torch.randn(9, vocabulary)
    logits = logits.to(dtype)
    choose = greedy(logits)
    assert [choose(row) for row in range(9)] == logits.argmax(-1).tolist()
    first = (logits == logits.max(-1, keepdim=True).values).int().argmax(-1)
    assert [choose(row) for row in range(9)] == first.tolist()


@pytest.mark.parametrize("place", [0, 130, 299])
def test_logits_that_are_not_numbers_or_excluded_choose_as_in_torch(place):
    logits = torch.full((2, 300), float("-inf"))
    assert greedy(logits)(0) == logits.argmax(-1)[0]
    logits[1, place] = float("nan")
    assert greedy(logits)(1) == place == logits.argmax(-1)[1]
