"""The contract of verification: a target model takes in a text and a draft tree in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from groundspeed.drafting.base import DraftTree
from groundspeed.types import Decoding

if TYPE_CHECKING:
    import torch

__all__ = ["Capability", "TargetModel", "TargetSession"]


@dataclass(frozen=True, slots=True)
class Capability:
    """What a target model can verify in one pass.

    Attributes:
        decoding: ``tree`` (any draft tree), ``chain`` (a single path), ``plain`` (nothing: one token a pass).
        reason: Why not ``tree``; None for a tree.
        cached: False where not even the model's own cache can be driven: each pass reads the whole text.
    """

    decoding: Decoding
    reason: str | None = None
    cached: bool = True

    @property
    def supports_tree(self) -> bool:
        """Whether trees with branches can be verified."""
        return self.decoding == "tree"

    @property
    def supports_chain(self) -> bool:
        """Whether single paths can be verified."""
        return self.decoding != "plain"


class TargetSession(Protocol):
    """The KV cache of one text, and the forward passes over it."""

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Take ``token_ids`` into the KV cache and ask for no logits."""
        ...

    def verify(self, token_ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """Take in committed tokens that the cache does not hold yet, with a draft tree behind them.

        The committed tokens are in the cache afterwards; the nodes of the tree wait for ``commit``.

        Args:
            token_ids: One or more committed tokens, in order.
            tree: n draft nodes; must be what the capability allows.

        Returns:
            Logits [n + 1, vocab]: row 0 follows the last committed token, row i + 1 follows node i.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path`` (indices from the root down) in the KV cache and drop all others."""
        ...


class TargetModel(Protocol):
    """The model whose answer is wanted."""

    @property
    def capability(self) -> Capability:
        """What it can verify in one pass."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it takes in tokens."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the width of the logits."""
        ...

    @property
    def context_length(self) -> int | None:
        """Most tokens a text may have, None where the model sets no bound."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        ...

    def open(self, capacity: int) -> TargetSession:
        """Start a text that will never hold more than ``capacity`` tokens, draft nodes included."""
        ...
