"""The contract by which a drafter reads with a language model, without knowing what drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree, TargetView

__all__ = ["DraftLM", "DraftText", "Outlook"]


class Outlook(NamedTuple):
    """What a model holds possible behind each of r tokens.

    Attributes:
        token_ids: int32 [r, k], its most probable next tokens, best first.
        logprobs: float32 [r, k], their log-probabilities.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


class DraftText(Protocol):
    """A text in a draft model, with its KV cache: committed tokens, and a tree that grows behind them."""

    def read(self, token_ids: NDArray[np.int32], tree: DraftTree, held: int, k: int) -> Outlook:
        """Take in what is new, in one pass.

        Args:
            token_ids: int32 [m], committed tokens, not read yet; none while a tree grows.
            tree: n nodes behind them.
            held: So many of the first nodes were read since the last ``commit``.
            k: How many tokens of each row are wanted.

        Returns:
            Rows behind the last of ``token_ids``, if there are any, and behind the nodes that were not held.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path``, indices from the root down, and drop the others."""
        ...

    def close(self) -> None:
        """Free the KV cache."""
        ...


class DraftLM(Protocol):
    """A language model to draft with; one serves all requests. ``groundspeed.verify.draft_lm`` makes them.

    Attributes:
        branches: Whether it reads trees; otherwise only chains, one new node a pass.
        vocab_size: Tokens at or above are not known to it.
        context_length: Most tokens of a text with its nodes, None for no bound.
    """

    branches: bool
    vocab_size: int
    context_length: int | None

    def open(self, vocab_size: int, target: TargetView | None = None) -> DraftText:
        """Start a text behind which only tokens below ``vocab_size`` are possible.

        Args:
            vocab_size: Of the request.
            target: What the request hands on of its target, for a model that is a part of it.
        """
        ...
