"""One preallocated KV cache per text: passes write at its end, accepted paths are compacted in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

__all__ = ["CHUNK", "KeyValueCache", "Layout", "StateKind", "chunks_of", "steps_in_place", "whole_chunks"]


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

    Layers of one kind share a buffer [layers, heads, chunks, CHUNK, size], so that compaction is one
    operation for all of them. On the CPU the positions of a chunk lie side by side for each dimension of a
    key, and the chunk in one piece, as the kernel reads it. Sliding-window layers keep all positions: a
    window is a matter of the mask.

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
        self._buffers: list[torch.Tensor] = []
        if layout.complete:
            layers: dict[StateKind, list[int]] = {}
            for layer, pair in layout.kinds.items():
                for kind in pair:
                    layers.setdefault(kind, []).append(layer)
            rooms = {kind: iter(self._reserve(kind, len(of))) for kind, of in layers.items()}
            for layer, (keys, values) in layout.kinds.items():
                self._states[layer] = next(rooms[keys]), next(rooms[values])

    def prepare(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Make sure that a layer has room for states like ``key`` and ``value``, [1, heads, rows, size]."""
        if layer not in self._states:
            keys, values = StateKind.of("key", key), StateKind.of("value", value)
            self._layout.kinds[layer] = keys, values
            self._states[layer] = self._reserve(keys, 1)[0], self._reserve(values, 1)[0]

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where a layer's keys and values begin in memory."""
        keys, values = self._states[layer]
        return keys.data_ptr(), values.data_ptr()

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, held: int = 0) -> None:
        """Store states [heads, rows, size] behind the committed ones and ``held`` draft nodes."""
        begin = self.length + held
        for states, new in zip(self._states[layer], (key, value), strict=True):
            end = begin + new.shape[1]
            for chunk in range(begin // CHUNK, chunks_of(end)):
                start = max(begin, chunk * CHUNK)
                stop = min(end, (chunk + 1) * CHUNK)
                states[:, chunk, start - chunk * CHUNK : stop - chunk * CHUNK] = new[
                    :, start - begin : stop - begin
                ]

    def read(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values of positions [start, stop), each [heads, stop - start, size]."""
        chunks = chunks_of(stop)
        keys, values = (states[:, :chunks].flatten(1, 2)[:, start:stop] for states in self._states[layer])
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
                buffer[:, :, target // CHUNK, target % CHUNK] = buffer[:, :, source // CHUNK, source % CHUNK]
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
        self._buffers.clear()

    def _reserve(self, kind: StateKind, layers: int) -> torch.Tensor:
        """A buffer [layers, heads, chunks, CHUNK, size]."""
        across = kind.role == "key" and kind.device.type == "cpu"
        shape = (kind.size, CHUNK) if across else (CHUNK, kind.size)
        buffer = torch.empty((layers, kind.heads, self.chunks, *shape), dtype=kind.dtype, device=kind.device)
        self._buffers.append(buffer.transpose(3, 4) if across else buffer)
        return self._buffers[-1]
