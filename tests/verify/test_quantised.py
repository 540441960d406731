"""A target quantised by torchao, where that is installed.

torch 2.13 warns of what torchao 0.18 imports, so run it with ``-W ignore::DeprecationWarning``.
"""

from __future__ import annotations

import pytest
import torch
from helpers.drafters import ADVERSARIES
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from torch import nn

from groundspeed.types import GenerationRequest
from groundspeed.verify.packing import PackedLinear, pack_linears
from groundspeed.verify.target import TransformersTarget

quantization = pytest.importorskip("torchao.quantization", reason="needs `pip install torchao`")


def test_int8_weights_are_not_packed_and_drafts_change_no_token():
    model = tiny_model(TREE_FAMILIES["llama"]())
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    assert pack_linears(model) == 1
    assert isinstance(model.lm_head, PackedLinear)
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear
    target = TransformersTarget(model)
    assert target.capability.decoding == "tree", target.capability.reason
    prompt = tuple(range(5, 25))
    ids = torch.tensor([prompt])
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    wanted = wanted[0, len(prompt) :].tolist()
    for adversary in ADVERSARIES:
        engine = engine_for(target, lambda a=adversary: a(wanted))
        result = engine.generate(GenerationRequest(prompt, max_tokens=40))
        assert list(result.token_ids) == wanted, adversary.__name__
