"""One preallocated KV cache per text: passes write at its end, accepted paths are compacted in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from groundspeed.verify.vectors import HAS_PAIRS, TILE_LANES

__all__ = [
    "CHUNK",
    "KeyValueCache",
    "Layout",
    "StateKind",
    "chunks_of",
    "in_pairs",
    "steps_in_place",
    "whole_chunks",
]


CHUNK = 128
"""Positions that are stored together."""


def chunks_of(tokens: int) -> int:
    """Chunks that so many tokens begin."""
    return -(-tokens // CHUNK)


def whole_chunks(tokens: int) -> int:
    """The room that is reserved for so many tokens, in tokens."""
    return chunks_of(tokens) * CHUNK


def steps_in_place(path: Sequence[int]) -> int:
    """How many of the first nodes of an accepted path stand where they are needed already."""
    return next((step for step, node in enumerate(path) if node != step), len(path))


def in_pairs(dtype: torch.dtype) -> bool:
    """Whether caches on the CPU hold numbers of a dtype in pairs: where it multiplies two at once."""
    return HAS_PAIRS and dtype == torch.bfloat16


class StateKind(NamedTuple):
    """What the keys or the values of a layer look like."""

    role: str
    heads: int
    size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, role: str, states: torch.Tensor) -> StateKind:
        """The kind of states [1, heads, rows, size]."""
        return cls(role, states.shape[1], states.shape[3], states.dtype, states.device)

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.size * self.dtype.itemsize


@dataclass
class Layout:
    """Which layers of a model have keys and values of their own, and of which kind; its first pass tells.

    Attributes:
        kinds: By layer, of its keys and of its values.
        complete: Whether a pass has been through all layers.
    """

    kinds: dict[int, tuple[StateKind, StateKind]]
    complete: bool = False

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the caches of all layers."""
        return sum(kind.nbytes for pair in self.kinds.values() for kind in pair)


class KeyValueCache:
    """Keys and values of one text, in buffers that never move.

    Layers of one kind share a buffer, so that compaction is one operation for all of them. A chunk lies in
    one piece, on the CPU as the kernel reads it: keys [size, CHUNK], values [CHUNK, size], and where bfloat16
    is multiplied in pairs, two dimensions of a key or two positions of a value lie together, keys
    [size / 2, CHUNK, 2] and values [CHUNK / 2, size, 2]. Sliding-window layers keep all positions: a window
    is a matter of the mask.

    Attributes:
        capacity: Most tokens it can hold, draft nodes included.
        chunks: Chunks of ``CHUNK`` positions that it has room for.
        length: Committed tokens.
    """

    def __init__(self, layout: Layout, capacity: int) -> None:
        """Reserve room.

        Args:
            layout: Of the model; an incomplete one is filled in by the first pass.
            capacity: Most tokens it can hold, draft nodes included.
        """
        self.capacity = capacity
        self.chunks = chunks_of(capacity)
        self.length = 0
        self._layout = layout
        self._states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._addresses: dict[int, tuple[int, int]] = {}
        self._buffers: list[torch.Tensor] = []
        if layout.complete:
            layers: dict[StateKind, list[int]] = {}
            for layer, pair in layout.kinds.items():
                for kind in pair:
                    layers.setdefault(kind, []).append(layer)
            rooms = {kind: iter(self._reserve(kind, len(of))) for kind, of in layers.items()}
            for layer, (keys, values) in layout.kinds.items():
                self._take_room(layer, next(rooms[keys]), next(rooms[values]))

    def prepare(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Make sure that a layer has room for states like ``key`` and ``value``, [1, heads, rows, size]."""
        if layer not in self._states:
            keys, values = StateKind.of("key", key), StateKind.of("value", value)
            self._layout.kinds[layer] = keys, values
            self._take_room(layer, self._reserve(keys, 1)[0], self._reserve(values, 1)[0])

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where a layer's keys and values begin in memory."""
        return self._addresses[layer]

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, held: int = 0) -> None:
        """Store states [heads, rows, size] behind the committed ones and ``held`` draft nodes."""
        begin = self.length + held
        for states, new in zip(self._states[layer], (key, value), strict=True):
            heads, *_, outer, inner = states.shape
            rows = pad(new, (0, outer * inner - new.shape[2])).reshape(heads, -1, outer, inner)
            states[_at(states, torch.arange(begin, begin + new.shape[1], device=new.device))] = rows

    def read(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values of positions [start, stop), each [heads, stop - start, size]."""
        chunks = chunks_of(stop)
        keys, values = (
            states[:, :chunks].flatten(4, 5).flatten(1, 3)[:, start:stop, : kind.size]
            for states, kind in zip(self._states[layer], self._layout.kinds[layer], strict=True)
        )
        return keys, values

    def advance(self, tokens: int) -> None:
        """Commit the first ``tokens`` tokens that were written behind the committed ones."""
        self.length += tokens

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Commit the tokens at ``path`` (indices, rising, behind the committed ones) and drop the others."""
        run = steps_in_place(path)
        if run < len(path):
            for buffer in self._buffers:
                source = torch.tensor([self.length + i for i in path[run:]], device=buffer.device)
                target = torch.arange(self.length + run, self.length + len(path), device=buffer.device)
                buffer[_at(buffer, target)] = buffer[_at(buffer, source)]
        self.length += len(path)

    @torch.inference_mode()
    def take(self, other: KeyValueCache, length: int) -> None:
        """Begin with the first ``length`` tokens of another text of the same model."""
        chunks = chunks_of(length)
        for own, buffer in zip(self._buffers, other._buffers, strict=True):
            own[:, :, :chunks] = buffer[:, :, :chunks]
        self.length = length

    def free(self) -> None:
        """Give the memory back; nothing can be read or written any more."""
        self._states.clear()
        self._addresses.clear()
        self._buffers.clear()

    def _take_room(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._states[layer] = keys, values
        self._addresses[layer] = keys.data_ptr(), values.data_ptr()

    def _reserve(self, kind: StateKind, layers: int) -> torch.Tensor:
        """A buffer, see above, as [layers, heads, chunks, CHUNK / p, p, size / d, d].

        Positions lie p and dimensions d together; one of the two is 1.
        """
        on_cpu = kind.device.type == "cpu"
        each = 2 if on_cpu and in_pairs(kind.dtype) else 1
        across = kind.role == "key" and on_cpu
        shape = (-(-kind.size // each), CHUNK, each) if across else (CHUNK // each, kind.size, each)
        numbers = layers * kind.heads * self.chunks * math.prod(shape)
        # Tiles may reach behind the last value.
        room = torch.empty(numbers + TILE_LANES * each, dtype=kind.dtype, device=kind.device)[:numbers]
        buffer = room.view(layers, kind.heads, self.chunks, *shape)
        buffer = buffer.transpose(3, 4).unsqueeze(4) if across else buffer.transpose(4, 5).unsqueeze(6)
        self._buffers.append(buffer)
        return buffer


def _at(states: torch.Tensor, positions: torch.Tensor) -> tuple[Any, ...]:
    """The index of positions in states [..., chunks, CHUNK / p, p, size / d, d]."""
    together = states.shape[-3]
    return (
        ...,
        positions // CHUNK,
        positions % CHUNK // together,
        positions % together,
        slice(None),
        slice(None),
    )
