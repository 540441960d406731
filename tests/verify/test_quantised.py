"""Targets quantised by torchao, GPTQ and AWQ, where their packages are installed.

torch 2.13 warns of what torchao 0.18 and gptqmodel 7.7 import: run it with ``-W ignore::DeprecationWarning``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.drafters import ADVERSARIES
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, tiny_model
from helpers.tokenizers import byte_tokenizer
from safetensors.torch import save_file
from torch import nn

from groundspeed.types import GenerationRequest
from groundspeed.verify.loading import load_model
from groundspeed.verify.packing import PackedLinear, pack_linears
from groundspeed.verify.target import TransformersTarget

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(values: torch.Tensor, order: Iterable[int]) -> torch.Tensor:
    """Eight values of a row to an int32, the first of ``order`` lowest: [rows, n] -> [rows, n / 8]."""
    words = sum(values[:, column::8].long() << 4 * nibble for nibble, column in enumerate(order))
    return words.to(torch.uint32).view(torch.int32)


def quantised(layer: nn.Linear, kind: str) -> dict[str, torch.Tensor]:
    """A layer in the format of checkpoints of this kind, once it is rounded to 4 bits by groups of inputs."""
    weight = layer.weight.detach().float().T.unflatten(0, (-1, GROUP))  # [groups, GROUP, outputs]
    scales = (weight.abs().amax(1) / 7).clamp(min=1e-6).half()
    zeros = torch.full_like(scales, 8)
    levels = (weight / scales[:, None].float()).round().clamp(-8, 7).flatten(0, 1) + 8
    layer.weight.data = ((levels - 8) * scales.repeat_interleave(GROUP, 0)).T.to(layer.weight.dtype)
    if kind == "awq":
        return {"qweight": packed(levels, AWQ_ORDER), "qzeros": packed(zeros, AWQ_ORDER), "scales": scales}
    return {
        "qweight": packed(levels.T, range(8)).T,
        "qzeros": packed(zeros - 1, range(8)),  # the format is off by one
        "scales": scales,
        "g_idx": torch.arange(layer.in_features, dtype=torch.int32) // GROUP,
    }


def save_quantised(model: Any, kind: str, folder: Path) -> None:
    """Round the layers of ``model`` and save it so, its head and embeddings apart."""
    model.save_pretrained(folder)
    tensors = dict(model.state_dict())
    for name, layer in model.model.named_modules():
        if isinstance(layer, nn.Linear):
            del tensors[f"model.{name}.weight"]
            tensors |= {f"model.{name}.{part}": value for part, value in quantised(layer, kind).items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    form: dict[str, Any] = {"quant_method": kind, "bits": 4, "group_size": GROUP, "desc_act": False}
    form |= {"zero_point": True, "version": "gemm"} if kind == "awq" else {"sym": True}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": form}))


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_drafts_change_no_token_of_a_target_of_four_bits(kind, tmp_path):
    pytest.importorskip("gptqmodel", reason="needs `pip install gptqmodel optimum`")
    pytest.importorskip("optimum", reason="needs `pip install optimum`")
    config = TREE_FAMILIES["llama"]()
    config.update({"hidden_size": 64, "intermediate_size": 96, "head_dim": 16})  # whole groups everywhere
    rounded = tiny_model(config)
    save_quantised(rounded, kind, tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model = load_model(str(tmp_path), "cpu", "float32").model
    assert type(model.model.layers[0].mlp.up_proj) is not nn.Linear
    prompt = tuple(range(5, 25))
    with torch.inference_mode():
        logits, wanted = (m(torch.tensor([prompt])).logits[0] for m in (model, rounded))
    assert torch.corrcoef(torch.stack((logits.flatten(), wanted.flatten())))[0, 1] > 0.99
    target = TransformersTarget(model)
    plain = engine_for(target).generate(GenerationRequest(prompt, max_tokens=40, speculate=False))
    for adversary in ADVERSARIES:
        engine = engine_for(target, lambda a=adversary: a(list(plain.token_ids)))
        result = engine.generate(GenerationRequest(prompt, max_tokens=40))
        assert result.token_ids == plain.token_ids, adversary.__name__


def test_int8_weights_are_not_packed_and_drafts_change_no_token():
    quantization = pytest.importorskip("torchao.quantization", reason="needs `pip install torchao`")
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
