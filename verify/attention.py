"""Tree attention for any model that goes through the attention interface of transformers.

A pass carries stretches of one or many texts in a row of tokens. Every draft node sees the whole committed
prefix of its text, so what differs between nodes is the small block of the stretch itself. ``PassAttention``
describes one forward pass; while it is active, the function registered as ``groundspeed`` computes the
attention of every layer from it, sliding windows included. The heads that share a key/value head are laid
behind one another as rows of one query block, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from groundspeed.verify.attention_kernel import LONGEST_STEP
from groundspeed.verify.cache import KeyValueCache
from groundspeed.verify.paths import trace_paths
from groundspeed.verify.pattern import Pattern
from groundspeed.verify.step_attention import Scoring, StepAttention

__all__ = ["PassAttention", "Stretch", "attend_masked"]


class Stretch:
    """Consecutive rows of a pass: committed tokens of a text and the draft nodes behind them.

    Attributes:
        cache: Of the text.
        prefix: Tokens of the text before it, which all rows see.
        first: Row of the first token in the pass.
        held: Draft nodes of earlier passes that stand in the cache before it; not all rows see them.
        rows: Tokens, m committed and n draft nodes without those held.
        causal: Whether each row sees all rows of the stretch before it, as without a draft.
        paths: int32 [rows, d], by row the slots behind the prefix that it sees, in order of position.
        offsets: int32 [rows], of a row's position from that of the prefix's end.
    """

    def __init__(
        self,
        cache: KeyValueCache,
        committed: int,
        parents: NDArray[np.int32],
        first: int = 0,
        prefix: int | None = None,
        held: int = 0,
    ) -> None:
        """Lay out a stretch.

        Args:
            cache: Of the text.
            committed: m committed tokens, none where nodes are held.
            parents: int32 [n], of the draft nodes; -1 for a child of the last committed token.
            first: Row of the first token in the pass.
            prefix: Tokens before it; what the cache holds by default.
            held: So many of the first nodes stand in the cache.
        """
        self.cache = cache
        self.prefix = cache.length if prefix is None else prefix
        self.first = first
        self.held = held
        slots = committed + len(parents)
        self.rows = slots - held
        self.causal = not len(parents)
        self._slot_offsets = np.arange(slots, dtype=np.int32)
        self.paths = np.empty((0, 0), np.int32)
        if slots <= LONGEST_STEP or len(parents):
            paths = np.zeros((slots, slots), np.int32)
            trace_paths(parents, committed, paths, self._slot_offsets)
            self.paths = paths[held:]
        self.offsets = self._slot_offsets[held:]
        self._masks: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}

    @property
    def fits_kernel(self) -> bool:
        """Whether it can be cut into pieces that the kernel takes."""
        return self.causal or self.held + self.rows <= LONGEST_STEP

    def pieces(self) -> list[Stretch]:
        """It as short stretches, each of which sees those before it."""
        if self.rows <= LONGEST_STEP:
            return [self]
        return [
            Stretch(
                self.cache,
                min(LONGEST_STEP, self.rows - start),
                np.empty(0, np.int32),
                self.first + start,
                self.prefix + start,
            )
            for start in range(0, self.rows, LONGEST_STEP)
        ]

    def mask(
        self, heads: int, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, int]:
        """The additive mask of a layer.

        Args:
            heads: Query heads per key/value head; their queries stand behind one another.
            window: Positions a token sees including its own, None for all.
            dtype: Of the queries.
            device: Of the queries.

        Returns:
            [1, 1, heads * rows, L - first + held + rows], and ``first``: keys before it are out of sight.
        """
        key = (heads, window, dtype, device)
        if key not in self._masks:
            prefix, rows = self.prefix, self.rows
            first = 0 if window is None else max(0, prefix - window + 1)
            visible = torch.ones(rows, prefix - first + self.held + rows, dtype=torch.bool)
            block = visible[:, prefix - first :]
            offsets = torch.from_numpy(self.offsets)
            if self.causal:
                block.tril_()
            else:
                block.zero_()
                for row in range(rows):
                    block[row, torch.from_numpy(self.paths[row, : self.offsets[row] + 1])] = True
            if window is not None:
                slots = torch.from_numpy(self._slot_offsets)
                at = torch.cat((torch.arange(first, prefix), prefix + slots))
                visible &= at[None] > (prefix + offsets)[:, None] - window
            bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
            self._masks[key] = (bias.repeat(heads, 1)[None, None].to(device), first)
        return self._masks[key]


class PassAttention(Pattern):
    """The pattern of stretches that each have a cache of their own."""

    def __init__(self, stretches: Sequence[Stretch], rows: int, layers: int, device: torch.device) -> None:
        """Describe a pass.

        Args:
            stretches: Its texts, one after the other.
            rows: Tokens of the pass; those behind the last stretch are to spare and see nothing.
            layers: Of the model.
            device: Where the model's embeddings live.
        """
        super().__init__(layers)
        self._stretches = stretches
        self._kernels: list[StepAttention] | None = None
        positions = np.zeros(rows, np.int64)
        for stretch in stretches:
            positions[stretch.first : stretch.first + stretch.rows] = stretch.prefix + stretch.offsets
        self.positions = torch.from_numpy(positions).to(device)[None]

    @property
    def prefix(self) -> int:
        """Most committed tokens before a stretch."""
        return max(stretch.prefix for stretch in self._stretches)

    def note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``Pattern``."""
        super().note(layer, key, value)
        for stretch in self._stretches:
            stretch.cache.prepare(layer, key, value)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """See ``Pattern``."""
        layer = self.layer_of(key)
        shape = (1, query.shape[2], query.shape[1], value.shape[3])
        out = torch.zeros(shape, dtype=query.dtype, device=query.device)
        others = self._stretches
        if StepAttention.takes(query) and key.dtype == value.dtype == query.dtype:
            others = [stretch for stretch in others if not stretch.fits_kernel]
            for kernel in self._kernels_in_turn():
                kernel(layer, query, key, value, out, scoring)
        for stretch in others:
            rows = slice(stretch.first, stretch.first + stretch.rows)
            own = _attend_stretch(
                stretch, layer, query[:, :, rows], key[:, :, rows], value[:, :, rows], scoring
            )
            out[:, rows] = own.transpose(1, 2)
        return out

    def _kernels_in_turn(self) -> list[StepAttention]:
        """What the kernel does of the pass: the first pieces of all stretches, then the second ones, ..."""
        if self._kernels is None:
            pieces = [stretch.pieces() for stretch in self._stretches if stretch.fits_kernel]
            turns = zip_longest(*pieces)
            self._kernels = [StepAttention([piece for piece in turn if piece is not None]) for turn in turns]
        return self._kernels


def _attend_stretch(
    stretch: Stretch,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Store the new states and attend, by PyTorch's own operations: [1, H, rows, dk] -> [1, H, rows, dv]."""
    cache, prefix, size = stretch.cache, stretch.prefix, stretch.rows
    cache.write(layer, key[0], value[0], stretch.held)
    heads, groups = query.shape[1], key.shape[1]
    each = heads // groups
    window, scaling = scoring.window, scoring.scaling
    unwindowed = window is None or size <= window
    if scoring.fused and stretch.causal and prefix == 0 and unwindowed and size > 1:
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    mask, first = stretch.mask(each, window, query.dtype, query.device)
    keys, values = cache.read(layer, first, prefix + stretch.held + size)
    out = attend_masked(query.reshape(1, groups, each * size, -1), keys[None], values[None], mask, scoring)
    return out.reshape(1, heads, size, -1)


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """Attention under an additive mask.

    Args:
        query: [b, G, r, dk], the query heads of a key/value head behind one another.
        key: [b, G, k, dk].
        value: [b, G, k, dv].
        mask: [b, 1, r, k].
        scoring: Of the layer; its window is in the mask.

    Returns:
        [b, G, r, dv].
    """
    if scoring.fused:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scoring.scaling)
    return _attend_plainly(query, key, value, mask, scoring)


def _attend_plainly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scoring: Scoring,
) -> torch.Tensor:
    """``attend_masked`` by matrix products.

    Has what the fused kernels lack: soft-capped logits (Gemma 2) and attention sinks (gpt-oss). Its scores
    are rounded to the dtype before the softmax, as in eager attention.
    """
    softcap, sinks = scoring.softcap, scoring.sinks
    scores = query @ key.transpose(2, 3) * scoring.scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    batch, groups, rows, _ = query.shape
    each = rows * groups // sinks.numel()
    sink = sinks.reshape(groups, -1, 1).repeat_interleave(each, 1).to(scores.dtype)
    weights = torch.cat((scores, sink.expand(batch, -1, -1, -1)), -1).softmax(-1, dtype=torch.float32)[
        ..., :-1
    ]
    return weights.to(value.dtype) @ value
