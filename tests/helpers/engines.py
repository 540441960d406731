"""Engines over tiny models, without a tokenizer file."""

from __future__ import annotations

from typing import Any

import pytest

from groundspeed.drafting.blend import BlendDrafter
from groundspeed.drafting.budget import BatchCost, CostModel
from groundspeed.drafting.worth import Worth
from groundspeed.verify.engine import Engine


class FixedCost(CostModel):
    """Costs that stay as they were given, whatever the steps take."""

    def observe(self, nodes: int, context: int, seconds: float) -> None:
        assert seconds > 0


FREE = FixedCost([0, 24], [1.0, 1.0])
"""Drafts cost nothing, so everything up to 24 nodes is verified."""


def draft_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines draft at every step, whatever the clock says."""
    monkeypatch.setattr(BatchCost, "of", lambda costs, texts: FREE)
    monkeypatch.setattr(Worth, "wanted", lambda worth, texts: True)


class Words:
    """Stands in for a tokenizer: a token is its number."""

    def __call__(self, text: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        if isinstance(text, str):
            return {"input_ids": [int(word) for word in text.split()]}
        return {"input_ids": [self(one)["input_ids"] for one in text]}

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(f"{i} " for i in ids)


def engine_for(target: Any, drafter: Any = BlendDrafter) -> Engine:
    return Engine(target, Words(), drafter=drafter, cost=FREE)
