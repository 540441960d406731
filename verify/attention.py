"""Tree attention for any model that goes through the attention interface of transformers.

Every draft node sees the whole committed prefix, so what differs between nodes is the small block of the pass
itself. ``TreeAttention`` describes one forward pass; while it is active, the function registered as
``groundspeed`` computes the attention of every layer from it, sliding windows included. The heads that share
a key/value head are laid behind one another as rows of one query block, so keys and values are never
repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["IMPLEMENTATION", "TreeAttention", "tree_block"]

IMPLEMENTATION = "groundspeed"

_STEP = 64
"""Passes up to this many tokens are steps, larger ones are pieces of a prompt."""

_active = threading.local()


def tree_block(committed: int, parents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Who sees whom within a pass of committed tokens followed by draft nodes.

    Args:
        committed: m >= 1 committed tokens, each seeing those before it.
        parents: [n] parent per node, -1 for a child of the last committed token.

    Returns:
        bool [m + n, m + n], True where the row's token sees the column's, and int64 [m + n], the offset of
        each token's position from the first one's.
    """
    m, size = committed, committed + len(parents)
    visible = torch.zeros(size, size, dtype=torch.bool)
    visible[:m, :m] = torch.ones(m, m, dtype=torch.bool).tril_()
    offsets = list(range(m)) + [0] * len(parents)
    for node, parent in enumerate(parents):
        row = m + node
        above = m - 1 if parent < 0 else m + parent
        visible[row] = visible[above]
        visible[row, row] = True
        offsets[row] = offsets[above] + 1
    return visible, torch.tensor(offsets)


class TreeAttention:
    """The attention pattern of one forward pass over a committed prefix.

    Args:
        prefix: L tokens already in the cache.
        parents: Parents of the n draft nodes.
        committed: m committed tokens that the pass brings along before the nodes.
        device: Where the model's embeddings live.
    """

    def __init__(self, prefix: int, parents: list[int], committed: int, device: torch.device) -> None:
        self.prefix = prefix
        self.causal = not parents
        visible, offsets = tree_block(committed, parents) if parents else (None, torch.arange(committed))
        self._visible = visible
        self._offsets = offsets
        self.positions = (prefix + offsets).to(device)[None]
        self.windows: dict[int, int | None] = {}
        self._masks: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the pattern of the forward passes of the current thread."""
        _active.pattern = self
        try:
            yield
        finally:
            _active.pattern = None

    def mask(
        self, rows: int, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, int]:
        """The additive mask of a layer.

        Args:
            rows: Query heads per key/value head; their queries stand behind one another.
            window: Positions a token sees including its own, None for all.
            dtype: Of the queries.
            device: Of the queries.

        Returns:
            [1, 1, rows * (m + n), L - first + m + n] and ``first``: keys before it are out of every query's
            sight.
        """
        key = (rows, window, dtype, device)
        if key not in self._masks:
            size = len(self._offsets)
            first = 0 if window is None else max(0, self.prefix - window + 1)
            visible = torch.ones(size, self.prefix - first + size, dtype=torch.bool)
            block = self._visible
            if block is None:
                block = torch.ones(size, size, dtype=torch.bool).tril_()
            visible[:, self.prefix - first :] = block
            if window is not None:
                at = torch.cat((torch.arange(first, self.prefix), self.prefix + self._offsets))
                visible &= at[None] > (self.prefix + self._offsets)[:, None] - window
            bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
            self._masks[key] = (bias.repeat(rows, 1)[None, None].to(device), first)
        return self._masks[key]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention by matrix products: query [G, r, d], key and value [G, k, d], mask [G, r, k] -> [G, r, d].

    Has what the fused kernels lack: soft-capped logits (Gemma 2), attention sinks (gpt-oss), and in bfloat16
    on the CPU a row comes out the same to the bit however many rows there are, so that a draft does not round
    the answer. Its scores are rounded to the dtype before the softmax, as in eager attention.
    """
    if softcap is None:
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scaling)
    else:
        scores = torch.tanh(query @ key.transpose(1, 2) * (scaling / softcap)) * softcap + mask
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    groups, rows, _ = query.shape
    each = rows * groups // sinks.numel()
    sink = sinks.reshape(groups, -1, 1).repeat_interleave(each, 1).to(scores.dtype)
    weights = torch.cat((scores, sink), -1).softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(value.dtype) @ value


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Called per layer with query [1, H, s, d], key and value [1, G, L + s, d]; returns [1, s, H, d]."""
    pattern: TreeAttention | None = getattr(_active, "pattern", None)
    if pattern is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out: torch.Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
        )[0]
        return out, None
    pattern.windows[int(getattr(module, "layer_idx", len(pattern.windows)))] = sliding_window
    heads, size, groups = query.shape[1], query.shape[2], key.shape[1]
    rows = heads // groups
    fused = softcap is None and s_aux is None
    unwindowed = sliding_window is None or size <= sliding_window
    if fused and pattern.causal and pattern.prefix == 0 and unwindowed and size > 1:
        key, value = key.repeat_interleave(rows, 1), value.repeat_interleave(rows, 1)
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return out.transpose(1, 2), None
    mask, first = pattern.mask(rows, sliding_window, query.dtype, query.device)
    query = query.reshape(1, groups, rows * size, -1)
    key, value = key[:, :, first:], value[:, :, first:]
    if fused and (query.is_cuda or size > _STEP):
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    else:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = _attend(query[0], key[0], value[0], mask[0].expand(groups, -1, -1), scale, softcap, s_aux)
    return out.reshape(1, heads, size, -1).transpose(1, 2), None


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """What transformers calls per pass for its own mask: none is needed while a pattern is active."""
    from transformers.masking_utils import sdpa_mask

    if getattr(_active, "pattern", None) is not None:
        return None
    mask: torch.Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def register() -> None:
    """Make attention and mask known to transformers as ``IMPLEMENTATION``.

    In a thread without an active pattern both do what ``sdpa`` does: whoever else calls the model meanwhile
    gets what they asked for.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _forward)
    AttentionMaskInterface.register(IMPLEMENTATION, _mask)
