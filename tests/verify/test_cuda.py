"""On a GPU: what the CPU tests hold, where a pass goes through PyTorch's own operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.drafters import RightAnswerLast
from helpers.engines import engine_for
from helpers.families import TREE_FAMILIES, VOCABULARY, tiny_model

from groundspeed.types import GenerationRequest
from groundspeed.verify.target import TransformersTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NEW = 24
PROMPTS = [tuple(np.random.default_rng(n).integers(3, VOCABULARY, n).tolist()) for n in (1, 5, 70, 150)]


@pytest.mark.parametrize("family", TREE_FAMILIES)
def test_requests_side_by_side_get_what_generate_gives(family):
    model = tiny_model(TREE_FAMILIES[family]()).to("cuda")
    target = TransformersTarget(model)
    assert target.capability.decoding == "tree", target.capability.reason
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt], device="cuda")
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0
        )
        answers.append(whole[0, len(prompt) :].tolist())
    engine = engine_for(target)
    results = engine.generate_all([GenerationRequest(prompt, max_tokens=NEW) for prompt in PROMPTS])
    assert [list(result.token_ids) for result in results] == answers
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        drafted = engine_for(target, lambda answer=answer: RightAnswerLast(answer))
        result = drafted.generate(GenerationRequest(prompt, max_tokens=NEW))
        assert list(result.token_ids) == answer
        assert result.stats.accepted > 0


def test_a_seed_gives_one_text_with_drafts_and_without():
    target = TransformersTarget(tiny_model(TREE_FAMILIES["llama"]()).to("cuda"))
    engine = engine_for(target)
    drafted, plain = (
        [
            result.token_ids
            for result in engine.generate_all(
                GenerationRequest(
                    prompt, max_tokens=NEW, temperature=0.8, top_p=0.9, seed=7, speculate=speculate
                )
                for prompt in PROMPTS
            )
        ]
        for speculate in (True, False)
    )
    assert drafted == plain
