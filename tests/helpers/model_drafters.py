"""What every drafter has to hold to on tiny models: the tokens of plain decoding, greedy and drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from groundspeed.drafting.base import DrafterFactory
from groundspeed.types import GenerationRequest, GenerationResult
from helpers.engines import engine_for
from helpers.families import VOCABULARY

NEW = 24
REQUESTS = [
    GenerationRequest(tuple(np.random.default_rng(length).integers(3, VOCABULARY, length).tolist()), **how)
    for length, how in (
        (1, {"max_tokens": NEW}),
        (23, {"max_tokens": NEW}),
        (9, {"max_tokens": NEW, "temperature": 0.7, "seed": 5}),
        (40, {"max_tokens": NEW, "temperature": 1.1, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 6}),
    )
]


def changes_nothing(target: Any, drafter: DrafterFactory) -> list[GenerationResult]:
    """Asserts that requests say the same with a drafter as without, alone and side by side."""
    engine = engine_for(target, drafter)
    plain = [engine.generate(replace(request, speculate=False)).token_ids for request in REQUESTS]
    results = [engine.generate(request) for request in REQUESTS]
    assert [result.token_ids for result in results] == plain
    engine.forget_prefixes()
    together = engine.generate_all(REQUESTS)
    assert [result.token_ids for result in together] == plain
    assert all(result.stats.drafted > 0 for result in results)
    return results
