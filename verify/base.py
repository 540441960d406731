"""The contract of verification: a target model takes in a text and a draft tree in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from groundspeed.drafting.base import DraftTree, TargetView
from groundspeed.types import Decoding

if TYPE_CHECKING:
    import torch

__all__ = ["Capability", "Segment", "TargetModel", "TargetSession"]


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
    """The state of one text in a target model: its KV cache."""

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path`` (indices from the root down) of the last tree and drop all others."""
        ...

    def close(self) -> None:
        """Free the KV cache, whoever still holds the session: a traceback may hold all texts of a pass."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """What a text takes through a forward pass.

    Attributes:
        session: Of the text.
        token_ids: Committed tokens that its cache does not hold yet, in order; one or more, none where the
            tree goes on from an earlier pass.
        tree: n draft nodes behind them; must be what the capability allows.
        rows: How many of the last of ``token_ids`` logits are wanted behind: 1, none for a piece of a prompt
            that goes on, all to score the prompt. Those behind the nodes come with any.
        held: So many of the first nodes went through passes since the last ``commit``: they are not taken
            in again, and no logits come for them.
    """

    session: TargetSession
    token_ids: Sequence[int]
    tree: DraftTree = field(default_factory=DraftTree.empty)
    rows: int = 1
    held: int = 0


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

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the KV cache, 0 where it is not known."""
        ...

    def reserve(self, tokens: int) -> None:
        """Get ready for KV caches of so many tokens in all, where it helps to know beforehand."""
        ...

    def open(self, capacity: int, *, like: TargetSession | None = None, length: int = 0) -> TargetSession:
        """Start a text that will never hold more than ``capacity`` tokens, draft nodes included.

        Args:
            capacity: In tokens.
            like: A text whose first ``length`` tokens are this one's as well: they are taken over. Only where
                the capability says ``supports_tree``.
            length: At most the length of ``like``.
        """
        ...

    def view(self, session: TargetSession) -> TargetView | None:
        """What the drafter of a text may use of the model; None where the model verifies no trees."""
        ...

    def verify(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Take texts through one forward pass, at most one segment each.

        The committed tokens are in their caches afterwards; the nodes of the trees wait for ``commit``. Where
        the capability says ``supports_tree``, a pass that fails changes nothing and may be tried again;
        elsewhere texts would take turns anyway, and are handed over one at a time.

        Returns:
            By segment logits [rows + n - held, vocab], behind the last committed tokens and behind the new
            nodes, in order; [0, vocab] where ``rows`` is 0.
        """
        ...
