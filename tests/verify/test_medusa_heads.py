"""Medusa heads see what the output head sees, are kept as published ones are, and refuse other things."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.engines import engine_for
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, VOCABULARY, tiny_model
from safetensors.torch import save_file

from groundspeed.drafting.draft_lm import Outlook
from groundspeed.drafting.medusa import Medusa
from groundspeed.errors import InputError, ModelError
from groundspeed.types import GenerationRequest
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target import TransformersTarget

PROMPT = tuple(range(5, 25))


def random_heads(**how):
    torch.manual_seed(1)
    heads = MedusaHeads(32, 3, **how)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return heads.requires_grad_(False)


class Watching:
    """One head that knows the answer, and notes the hidden states that it is asked about."""

    count = 1

    def __init__(self, answer):
        self.answer = answer
        self.seen = []
        self.said = 0

    def guess(self, target, k):
        states = target.hidden_states()
        self.seen.append((states.clone(), target.head(states).clone()))
        self.said += len(states)
        return Outlook(np.array([[self.answer[self.said]]], np.int32), np.full((1, 1), -0.7, np.float32))


@pytest.mark.parametrize("family", ["llama", "gemma2", "opt", "gpt_neox"])
def test_the_hidden_states_are_those_that_the_committed_tokens_were_chosen_behind(family):
    model = tiny_model(TREE_FAMILIES[family]())
    target = TransformersTarget(model)
    request = GenerationRequest(PROMPT, max_tokens=30)
    answer = engine_for(target).generate(request).token_ids
    heads = Watching(answer)
    result = engine_for(target, Medusa(heads)).generate(request)
    assert result.token_ids == answer
    with torch.inference_mode():
        own = model.get_output_embeddings()
        whole = []
        with_hook = own.register_forward_pre_hook(lambda module, given: whole.append(given[0][0]))
        model(torch.tensor([[*PROMPT, *answer]]))
        with_hook.remove()
        said = own(whole[0])
    at = len(PROMPT) - 1
    assert [len(states) for states, _ in heads.seen] == [1] + [2] * 13
    for states, logits in heads.seen:
        wanted = whole[0][at : at + len(states)]
        torch.testing.assert_close(states, wanted, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(logits, said[at : at + len(states)], atol=2e-3, rtol=2e-3)
        at += len(states)


@pytest.mark.parametrize("how", [{}, {"layers": 2}, {"vocab_size": VOCABULARY}])
def test_heads_come_back_from_their_folder(tmp_path, how):
    heads = random_heads(**how)
    heads.save(tmp_path / "heads")
    again = MedusaHeads.load(tmp_path / "heads")
    hidden = torch.randn(5, 32)
    assert torch.equal(again(hidden), heads(hidden))
    assert again.count == 3


def test_published_heads_are_understood_by_their_names(tmp_path):
    torch.manual_seed(2)
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = torch.randn(32, 32)
        tensors[f"{head}.0.linear.bias"] = torch.randn(32)
        tensors[f"{head}.1.weight"] = torch.randn(VOCABULARY, 32)
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 5, "medusa_num_layers": 1}))
    hidden = torch.randn(4, 32)
    logits = MedusaHeads.load(tmp_path)(hidden)
    for head in range(2):
        inner = hidden @ tensors[f"{head}.0.linear.weight"].T + tensors[f"{head}.0.linear.bias"]
        wanted = (hidden + inner * inner.sigmoid()) @ tensors[f"{head}.1.weight"].T
        torch.testing.assert_close(logits[head], wanted)


def test_what_holds_no_heads_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no config.json"):
        MedusaHeads.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "medusa_lm_head.pt").touch()
    with pytest.raises(InputError, match=r"convert its .pt file"):
        MedusaHeads.load(tmp_path)
    (tmp_path / "medusa_lm_head.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="holds no Medusa heads"):
        MedusaHeads.load(tmp_path)
    save_file({"0.0.linear.weight": torch.ones(3, 3)}, tmp_path / "medusa_lm_head.safetensors")
    with pytest.raises(ModelError, match="holds no Medusa heads"):
        MedusaHeads.load(tmp_path)


def test_heads_of_another_model_cost_the_drafts_and_not_the_answer(caplog):
    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()))
    request = GenerationRequest(PROMPT, max_tokens=10)
    wanted = engine_for(target).generate(request)
    result = engine_for(target, Medusa(MedusaHeads(16, 2))).generate(request)
    assert result.token_ids == wanted.token_ids
    assert result.stats.drafted == 0
    assert "width 16" in caplog.text


def test_a_model_that_verifies_chains_only_goes_on_without_heads(caplog):
    target = TransformersTarget(tiny_model(OTHER_FAMILIES["lfm2"][1]()))
    result = engine_for(target, Medusa(random_heads())).generate(GenerationRequest(PROMPT, max_tokens=10))
    assert result.stats.drafted == 0
    assert "choose another drafter" in caplog.text
