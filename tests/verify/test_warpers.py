"""What the quick warpers keep is to the bit what transformers' own keep."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as library

from groundspeed.types import GenerationRequest
from groundspeed.verify.processors import make_processors
from groundspeed.verify.warpers import TopP, Typical

PAIRS = [(TopP, library.TopPLogitsWarper), (Typical, library.TypicalLogitsWarper)]
TEMPERATURES = [0.3, 0.8, 1.0, 1.5]
MASSES = [1e-6, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1 - 1e-6]

on_linux = pytest.mark.skipif(
    sys.platform != "linux",
    reason="which of level tokens PyTorch's sort puts first is known for libstdc++ only",
)


def rows(kind, size):
    torch.manual_seed(size)
    spread = {"peaked": 6.0, "random": 2.5, "flat": 0.01, "tied": 2.5, "level": 0.0, "cut": 3.0, "half": 4.0}
    logits = torch.randn(4, size) * spread[kind]
    if kind == "tied":
        logits = logits.round()
    elif kind == "half":
        logits = logits.bfloat16().float()
    elif kind == "cut":
        logits[torch.rand(4, size) < 0.95] = -torch.inf
        logits[:, 0] = 1
    return logits


@on_linux
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 40, 1_000, 49_152])
@pytest.mark.parametrize("kind", ["peaked", "random", "flat", "tied", "level", "cut", "half"])
def test_what_is_kept_is_what_the_library_keeps(ours, theirs, kind, size):
    changed = False
    for row in rows(kind, size):
        for number, mass in enumerate(MASSES):
            scores = row[None] / TEMPERATURES[number % 4]
            before = scores.clone()
            got = ours(mass)(None, scores)
            assert torch.equal(got, theirs(mass)(None, scores)), mass
            assert torch.equal(scores, before)
            changed |= not torch.equal(got, scores)
    assert changed or size < 40 or kind == "level"


@on_linux
@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([-torch.inf, -2.0, -0.0, 0.0, 0.5, 0.50000006, 3.0]), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 1),
)
def test_short_rows_full_of_ties_are_cut_as_in_the_library(scores, mass, which):
    ours, theirs = PAIRS[which]
    row = torch.tensor([[*scores, 1.0]])
    assert torch.equal(ours(mass)(None, row), theirs(mass)(None, row))


@on_linux
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_warpers_together_keep_what_the_librarys_keep(dtype):
    request = GenerationRequest((0,), temperature=0.8, top_k=300, top_p=0.9, min_p=0.01, typical_p=0.9)
    theirs = [
        library.TemperatureLogitsWarper(0.8),
        library.TopKLogitsWarper(300),
        library.TopPLogitsWarper(0.9),
        library.MinPLogitsWarper(0.01),
        library.TypicalLogitsWarper(0.9),
    ]
    torch.manual_seed(0)
    for spread in (1.0, 2.0, 3.0, 5.0):
        wanted = got = (torch.randn(1, 49_152) * spread).to(dtype).float()
        for processor in theirs:
            wanted = processor(None, wanted)
        for processor in make_processors(request, 1, (), torch.device("cpu")):
            got = processor(None, got)
        assert torch.equal(got, wanted)
        assert 1 <= int((got > -torch.inf).sum()) < 300


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf])
def test_what_is_no_number_stays_to_be_found(ours, theirs, bad):
    row = torch.randn(1, 100)
    row[0, 40] = bad
    assert not np.isfinite(ours(0.9)(None, row).max().item())
