"""Draft models: what drives a target model, driven for a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.drafting.draft_lm import Outlook
from groundspeed.errors import ModelError
from groundspeed.verify.base import Segment
from groundspeed.verify.cache import whole_chunks
from groundspeed.verify.sampling import leading

if TYPE_CHECKING:
    from groundspeed.drafting.base import DraftTree
    from groundspeed.verify.base import TargetModel

__all__ = ["TargetAsDraftLM"]

_ROOM = 512
"""Tokens that a KV cache has to spare for the tree and the answer before it has to grow."""


class TargetAsDraftLM:
    """A target model as a ``DraftLM``.

    Attributes:
        branches: Whether it reads trees.
        vocab_size: Number of its token ids.
        context_length: Most tokens of a text, None for no bound.
    """

    def __init__(self, target: TargetModel) -> None:
        """Take a model into service.

        Raises:
            ModelError: It can forget nothing, so no draft of its own could ever be withdrawn.
        """
        if not target.capability.supports_chain:
            raise ModelError(
                f"the draft model cannot withdraw what it drafted: {target.capability.reason}; choose one "
                "with attention layers only"
            )
        self._target = target
        self.branches = target.capability.supports_tree
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length

    def open(self, vocab_size: int) -> _Text:
        """Start a text; see ``DraftLM``."""
        return _Text(self._target, vocab_size)


class _Text:
    def __init__(self, target: TargetModel, vocab_size: int) -> None:
        self._target = target
        self._vocab_size = vocab_size
        self._capacity = 0
        self._session = target.open(0)

    def read(self, token_ids: NDArray[np.int32], tree: DraftTree, held: int, k: int) -> Outlook:
        if not held:
            self._reserve(len(token_ids))
        segment = Segment(self._session, token_ids.tolist(), tree, held=held)
        logits = self._target.verify([segment])[0][:, : self._vocab_size].float()
        top = leading(logits, k)
        chosen = logits.gather(1, torch.from_numpy(top).to(logits.device, torch.long))
        return Outlook(top, (chosen - logits.logsumexp(1, keepdim=True)).cpu().numpy())

    def commit(self, path: Sequence[int]) -> None:
        self._session.commit(path)

    def close(self) -> None:
        self._session.close()

    def _reserve(self, tokens: int) -> None:
        """Make room for so many committed tokens and a tree; only while no nodes wait."""
        length = self._session.length
        needed = length + tokens + _ROOM // 2
        if needed <= self._capacity or not self._target.capability.supports_tree:
            return
        self._capacity = whole_chunks(length + tokens + max(_ROOM, length // 2))
        like, self._session = (
            self._session,
            self._target.open(self._capacity, like=self._session if length else None, length=length),
        )
        like.close()
