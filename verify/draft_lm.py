"""Draft models: what drives a target model, driven for a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.drafting.bridged import Bridge
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.errors import InputError, ModelError
from groundspeed.verify.base import Segment
from groundspeed.verify.cache import whole_chunks
from groundspeed.verify.top_tokens import leading

if TYPE_CHECKING:
    from groundspeed.drafting.base import DraftTree, TargetView
    from groundspeed.types import ProgressCallback
    from groundspeed.verify.base import TargetModel

__all__ = ["TargetAsDraftLM", "bridge_between", "check_same_tokens", "load_draft_lm", "outlook_of"]

_ROOM = 512
"""Tokens that a KV cache has to spare for the tree and the answer before it has to grow."""


def load_draft_lm(
    name: str | None,
    tokenizer: Any,
    *,
    device: str = "auto",
    dtype: str = "auto",
    on_progress: ProgressCallback | None = None,
) -> TargetAsDraftLM:
    """Load a draft model for a target.

    Args:
        name: A hub id, a folder or a GGUF file; None is the embedded SmolLM2-135M-Instruct.
        tokenizer: The target's, whose tokens it must have; None where they are bridged.
        device: As for the target.
        dtype: As for the target.
        on_progress: Told about the work done, in stages.

    Raises:
        InputError: Its tokens are not those of the target.
        ModelError: It cannot be loaded, or can forget nothing.
    """
    from groundspeed.verify.loading import load_model, load_tokenizer
    from groundspeed.verify.target import TransformersTarget

    if tokenizer is not None:
        check_same_tokens(load_tokenizer(name, on_progress), tokenizer)
    model = load_model(name, device, dtype, on_progress).model
    # Not paged, as its passes go on from one another.
    return TargetAsDraftLM(TransformersTarget.packed(model, driver=lambda device: None))


def bridge_between(target: Any, draft: Any) -> Bridge:
    """Two tokenizers as ``BridgedDraftModel`` takes them."""

    def to_text(tokenizer: Any) -> Callable[[Sequence[int]], str]:
        return lambda ids: str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def to_ids(tokenizer: Any) -> Callable[[str], list[int]]:
        return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Bridge(to_text(target), to_ids(target), to_text(draft), to_ids(draft))


def check_same_tokens(draft: Any, target: Any) -> None:
    """Refuse a draft model whose token ids mean other text than the target's; special tokens may differ.

    Args:
        draft: The draft model's tokenizer.
        target: The target's.

    Raises:
        InputError: The message names both.
    """
    ours, theirs = _texts(draft), _texts(target)
    differ = sum(theirs.get(token_id) != text for token_id, text in ours.items())
    differ += len(theirs.keys() - ours.keys())
    if differ:
        raise InputError(
            f"the draft model's tokenizer {draft.name_or_path} ({len(draft):,} tokens) and the target's "
            f"{target.name_or_path} ({len(target):,} tokens) differ in {differ:,} ids; give a smaller "
            "model of the target's own family, or bridge the two by text (BridgedDraftModel, "
            "--bridge-tokenizers)"
        )


def _texts(tokenizer: Any) -> dict[int, str]:
    """The tokens by id, without those that were added for templates and the like."""
    added = tokenizer.added_tokens_decoder
    return {token_id: text for text, token_id in tokenizer.get_vocab().items() if token_id not in added}


def outlook_of(logits: torch.Tensor, k: int) -> Outlook:
    """The k most probable tokens of each row of logits, [r, vocab]."""
    logits = logits.float()
    top = leading(logits, k)
    chosen = logits.gather(1, torch.from_numpy(top).to(logits.device, torch.long))
    return Outlook(top, (chosen - logits.logsumexp(1, keepdim=True)).cpu().numpy())


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

    def open(self, vocab_size: int, target: TargetView | None = None) -> _Text:
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
        return outlook_of(self._target.verify([segment])[0][:, : self._vocab_size], k)

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
