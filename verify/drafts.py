"""The drafts of one request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from groundspeed.drafting.base import Drafter, DraftRequest, DraftTree, RecyclingDrafter, RunnerUps
from groundspeed.errors import DraftError
from groundspeed.types import Passage
from groundspeed.verify.grounding import stretches
from groundspeed.verify.sampling import leading

if TYPE_CHECKING:
    import torch

    from groundspeed.verify.engine import Engine

__all__ = ["Drafts"]

logger = logging.getLogger(__name__)


class Drafts:
    """Asks the drafter of a request, which only ever costs time: once it fails, no drafts come any more."""

    def __init__(self, engine: Engine) -> None:
        """None come before ``begin``.

        Args:
            engine: Whose drafter is used.
        """
        self._engine = engine
        self._drafter: Drafter | None = None

    def begin(self, prompt_ids: Sequence[int], passages: Sequence[Passage]) -> None:
        """Show the drafter the prompt and the passages."""
        tokenizer = self._engine.tokenizer
        try:
            texts = _draft_texts(passages)
            encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
            self._drafter = self._engine.drafter()
            self._drafter.begin(
                DraftRequest(
                    prompt_ids=np.array(prompt_ids, np.int32),
                    passages=tuple(np.array(ids, np.int32) for ids in encoded),
                    vocab_size=self._engine.target.vocab_size,
                    forms=self._engine.forms,
                )
            )
        except Exception:
            self._drop("begin")

    def extend(self, token_ids: Sequence[int]) -> None:
        """Show it the tokens that joined the answer."""
        if self._drafter is not None:
            try:
                self._drafter.extend(np.array(token_ids, np.int32))
            except Exception:
                self._drop("extend")

    def recycle(self, token: int, tree: DraftTree, logits: torch.Tensor) -> None:
        """Show it the logits [n + 1, vocab] of a pass behind the last committed token and the n nodes."""
        if isinstance(self._drafter, RecyclingDrafter) and self._drafter.runners_up:
            try:
                self._drafter.recycle(
                    RunnerUps(
                        np.concatenate([np.array([token], np.int32), tree.token_ids]),
                        np.concatenate([np.array([-1], np.int32), tree.parents + 1]),
                        leading(logits, self._drafter.runners_up),
                    )
                )
            except Exception:
                self._drop("recycle")

    def propose(self, budget: int) -> DraftTree:
        """What it drafts, of at most ``budget`` nodes; none without a drafter."""
        if self._drafter is None:
            return DraftTree.empty()
        try:
            tree = self._drafter.propose(budget)
            tree.validate(self._engine.target.vocab_size)
            if len(tree) > budget:
                raise DraftError(f"a budget of {budget} nodes was given and {len(tree)} were drafted")
        except Exception:
            self._drop("propose")
            return DraftTree.empty()
        return tree

    def end(self) -> None:
        """Let the drafter go."""
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            try:
                drafter.end()
            except Exception:
                logger.warning("the drafter failed in end", exc_info=True)

    def _drop(self, doing: str) -> None:
        logger.warning("the drafter failed in %s; the request goes on without drafts", doing, exc_info=True)
        self.end()


def _draft_texts(passages: Sequence[Passage]) -> list[str]:
    """What to draft from by passage: each stretch once, at the best of its passages, empty at the others."""
    texts = [""] * len(passages)
    for best, _, text in stretches(passages):
        texts[best] = text
    # The same text may stand in several documents.
    return [
        "" if any(text in other and (text != other or j < i) for j, other in enumerate(texts)) else text
        for i, text in enumerate(texts)
    ]
