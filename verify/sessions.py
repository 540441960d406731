"""The texts of a target model: over KV caches of our own, over the library's, or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from groundspeed.drafting.base import DraftTree
from groundspeed.errors import ModelError
from groundspeed.verify.cache import KeyValueCache
from groundspeed.verify.pages import PagedCache

if TYPE_CHECKING:
    from groundspeed.verify.target import TransformersTarget

__all__ = ["ChainSession", "RecomputeSession", "TreeSession"]


class TreeSession:
    """A text whose KV cache is ours: trees are verified by tree attention and compacted in place.

    Attributes:
        cache: Its keys and values.
        shows: Whether hidden states are to be kept.
        hidden: What the output head was shown in the last pass, [1 + n, hidden_size], behind the last
            committed token and the n nodes; after ``commit`` without the nodes that were dropped.
    """

    def __init__(self, cache: KeyValueCache | PagedCache) -> None:
        """Take a text up behind what its cache holds."""
        self.cache = cache
        self.shows = False
        self.hidden: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Committed tokens in the KV cache."""
        return self.cache.length

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of ``path`` and drop all others."""
        self.cache.keep(path)
        if self.hidden is not None:
            self.hidden = self.hidden[[0, *(node + 1 for node in path)]]

    def close(self) -> None:
        """Free the KV cache."""
        self.cache.free()
        self.hidden = None


class ChainSession:
    """A text whose cache is the library's: single paths where it can be rewound, single tokens elsewhere."""

    def __init__(self, target: TransformersTarget, *, rewind: bool) -> None:
        """Start with an empty cache.

        Args:
            target: The model.
            rewind: Whether chains will be verified, so that the cache must be able to forget tokens.
        """
        from transformers import DynamicCache

        self._target = target
        self._rewind = rewind
        self._cache = DynamicCache(config=target.config)
        self._recording = False
        self._pending = 0
        self.length = 0

    def verify(self, token_ids: Sequence[int], tree: DraftTree, rows: int = 1, held: int = 0) -> torch.Tensor:
        """Take in committed tokens with a chain behind them; see ``TargetModel``.

        Raises:
            ModelError: The tree has branches, or nodes although the cache cannot be rewound.
        """
        if len(tree) and (not self._rewind or tree.parents.tolist() != list(range(-1, len(tree) - 1))):
            raise ModelError(
                f"this model verifies {'single paths' if self._rewind else 'no drafts'}, not a tree"
            )
        if not held:
            self._forget(0)
        if len(tree) and not self._recording:
            # Only once the prompt is in: layers of bounded size keep everything from here on.
            self._cache.activate_past_recording()
            self._recording = True
        tokens = [*token_ids, *tree.token_ids[held:].tolist()]
        wanted = min(max(rows, 1), len(token_ids)) + len(tree) - held
        logits = self._target.forward(tokens, wanted, self._cache, past=self.length + held)
        self.length += len(token_ids)
        self._pending = len(tree)
        return logits if rows else logits[:0]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the first nodes of the chain and drop the others."""
        self._forget(len(path))

    def close(self) -> None:
        """Free the cache."""
        del self._cache

    def _forget(self, kept: int) -> None:
        if self._recording:
            self._cache.crop(kept - self._pending)
        self.length += kept
        self._pending = 0


class RecomputeSession:
    """A text without a cache, for models whose own cannot be driven from outside: right, and slow."""

    def __init__(self, target: TransformersTarget) -> None:
        """Start an empty text."""
        self._target = target
        self._text: list[int] = []

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self._text)

    def verify(self, token_ids: Sequence[int], tree: DraftTree, rows: int = 1, held: int = 0) -> torch.Tensor:
        """Take in committed tokens and compute the whole text anew; see ``TargetModel``.

        Raises:
            ModelError: The tree has nodes.
        """
        if len(tree):
            raise ModelError("this model verifies no drafts, a tree was given; mind its capability")
        self._text += token_ids
        if not rows:
            return torch.empty(0, self._target.vocab_size)
        return self._target.forward(self._text, rows)

    def commit(self, path: Sequence[int]) -> None:
        """There are no nodes to keep."""

    def close(self) -> None:
        """There is no cache to free."""
