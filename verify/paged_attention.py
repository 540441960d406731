"""The attention of a pass over pages: shapes by bucket, and all that differs between passes in one array.

A pass is a table of texts and rows. What the device reads beside weights and pages lies in one int64 array,
so one copy brings it there, and a recorded pass finds it where it was. Rows to spare see what the first row
of their text sees, so that what they compute is at least numbers, and write to a page that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.verify.attention import attend_masked
from groundspeed.verify.base import Segment
from groundspeed.verify.cache import CHUNK
from groundspeed.verify.pages import EMPTY, SPARE, PagedCache, PagePool
from groundspeed.verify.paths import trace_spans
from groundspeed.verify.pattern import Pattern
from groundspeed.verify.step_attention import Scoring

__all__ = ["PagedAttention", "PassInputs", "Shape", "pack"]


class Shape(NamedTuple):
    """How large a pass is, with what is to spare.

    Attributes:
        texts: B.
        rows: R, of each text.
        pages: P, of each text.
    """

    texts: int
    rows: int
    pages: int

    @property
    def tokens(self) -> int:
        """Rows of all texts."""
        return self.texts * self.rows

    @property
    def inputs(self) -> int:
        """Numbers that ``PassInputs`` takes."""
        return 5 * self.tokens + self.texts * (1 + self.pages)


class PassInputs(NamedTuple):
    """What a pass reads, as views into one array of numpy or torch.

    Attributes:
        token_ids: int64 [B, R].
        positions: int64 [B, R], in their texts.
        slots: int64 [B, R], of the pool, where their states go.
        enter: int64 [B, R], see ``trace_spans``.
        leave: int64 [B, R], likewise; 0 for rows to spare, which nobody sees.
        prefix: int64 [B], committed tokens before the pass.
        table: int64 [B, P], pages of the texts.
    """

    token_ids: Any
    positions: Any
    slots: Any
    enter: Any
    leave: Any
    prefix: Any
    table: Any

    @classmethod
    def cut(cls, shape: Shape, values: Any) -> PassInputs:
        """Views into the first ``shape.inputs`` of some values."""
        texts, rows, pages = shape
        token_ids, positions, slots, enter, leave = values[: 5 * shape.tokens].reshape(5, texts, rows)
        by_text = values[5 * shape.tokens : shape.inputs]
        table = by_text[texts:].reshape(texts, pages)
        return cls(token_ids, positions, slots, enter, leave, by_text[:texts], table)


def pack(shape: Shape, segments: Sequence[Segment], caches: Sequence[PagedCache]) -> NDArray[np.int64]:
    """Lay out a pass.

    Args:
        shape: Of at least so many texts, rows and pages as the segments have.
        segments: What the texts take through it, in order.
        caches: Theirs.

    Returns:
        int64 [shape.inputs], as ``PassInputs`` cuts it.
    """
    values = np.zeros(shape.inputs, np.int64)
    inputs = PassInputs.cut(shape, values)
    inputs.slots[:] = SPARE * CHUNK
    inputs.table[:] = EMPTY
    inputs.leave[len(segments) :, 0] = 1  # a text to spare sees its first row, which is zeros
    for text, (segment, cache) in enumerate(zip(segments, caches, strict=True)):
        committed, tree = len(segment.token_ids), segment.tree
        rows = committed + len(tree)
        own = tuple(part[text, :rows] for part in inputs[:5])
        token_ids, positions, slots, enter, leave = own
        token_ids[:committed], token_ids[committed:] = segment.token_ids, tree.token_ids
        trace_spans(tree.parents, committed, enter, leave, positions)
        positions += cache.length
        slots[:] = cache.slots(cache.length, cache.length + rows)
        inputs.prefix[text] = cache.length
        pages = min(len(cache.pages), shape.pages)
        inputs.table[text, :pages] = cache.pages[:pages]
    return values


class PagedAttention(Pattern):
    """The pattern of a pass over pages. It asks the device for nothing."""

    def __init__(self, pool: PagePool, shape: Shape, inputs: PassInputs, layers: int) -> None:
        """Describe a pass.

        Args:
            pool: Whose pages.
            shape: Of the pass.
            inputs: What it reads, on the device.
            layers: Of the model.
        """
        super().__init__(layers)
        self.positions = inputs.positions.reshape(1, -1)
        self._pool = pool
        self._shape = shape
        self._inputs = inputs
        self._slots = inputs.slots.flatten()
        self._table = inputs.table.flatten()
        self._biases: dict[tuple[Any, ...], torch.Tensor] = {}

    @property
    def prefix(self) -> int:
        """Positions that the pages have: how many of them are committed is known to the device only."""
        return self._shape.pages * CHUNK

    def note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """See ``Pattern``; stores them."""
        super().note(layer, key, value)
        for states, new in zip(self._pool.states(layer), (key, value), strict=True):
            states.index_copy_(0, self._slots, new[0].transpose(0, 1))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """See ``Pattern``."""
        texts, rows, _ = self._shape
        heads, groups = query.shape[1], key.shape[1]
        each = heads // groups
        keys, values = (self._gather(states) for states in self._pool.states(self.layer_of(key)))
        by_text = (
            query[0].view(heads, texts, rows, -1).transpose(0, 1).reshape(texts, groups, each * rows, -1)
        )
        bias = self._bias(each, scoring.window, query.dtype)
        out = attend_masked(by_text, keys, values, bias, scoring)
        return out.reshape(texts, heads, rows, -1).transpose(1, 2).reshape(1, texts * rows, heads, -1)

    def _gather(self, states: torch.Tensor) -> torch.Tensor:
        """[slots, heads, size] -> those of each text, [B, heads, P * CHUNK, size]."""
        pages = states.view(-1, CHUNK, *states.shape[1:]).index_select(0, self._table)
        return pages.view(self._shape.texts, -1, *states.shape[1:]).transpose(1, 2)

    def _bias(self, each: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """The additive mask [B, 1, each * R, P * CHUNK] for so many query heads a key/value head."""
        wanted = (each, window, dtype)
        if wanted not in self._biases:
            _, _, _, enter, leave, prefix, _ = self._inputs
            positions = self._inputs.positions
            rows = self._shape.rows
            at = torch.arange(self.prefix, device=prefix.device)[None]
            behind = at - prefix[:, None]  # [B, keys], the row that stands there, negative in the prefix
            row = behind.clamp(0, rows - 1)
            visible = (enter.gather(1, row)[:, None] <= enter[..., None]) & (
                enter[..., None] < leave.gather(1, row)[:, None]
            )
            committed = (behind < 0)[:, None]
            visible = committed | (visible & (behind < rows)[:, None])  # [B, R, keys]
            if window is not None:
                place = torch.where(committed[:, 0], at, positions.gather(1, row))
                visible &= place[:, None] > positions[..., None] - window
            bias = torch.zeros(visible.shape, dtype=dtype, device=prefix.device)
            bias.masked_fill_(~visible, float("-inf"))
            self._biases[wanted] = bias.repeat(1, each, 1)[:, None]
        return self._biases[wanted]
