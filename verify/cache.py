"""One preallocated KV cache per text: passes write at its end, accepted paths are compacted in place."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["PreallocatedCache"]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """The slots of one layer in its cache's buffers."""

    def __init__(self, cache: PreallocatedCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._cache.allocate("key", key_states)
        self.values = self._cache.allocate("value", value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._cache.length
        end = start + key_states.shape[2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_max_length(self) -> int:
        return self._cache.capacity


class PreallocatedCache(Cache):  # type: ignore[misc]
    """Keys and values of one text, in buffers that never move.

    Layers of one shape share a buffer [layers, heads, capacity, dim], so that compaction is one operation for
    all of them. Sliding-window layers keep all positions: a window is a matter of the mask.

    Args:
        layers: Number of layers of the model.
        capacity: Most tokens it can hold, draft nodes included.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__(layers=[_Layer(self) for _ in range(layers)])
        self.capacity = capacity
        self.length = 0
        self._buffers: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}

    def allocate(self, role: str, states: torch.Tensor) -> torch.Tensor:
        """A layer's part [1, heads, capacity, dim] of the buffer for ``states`` [1, heads, any, dim]."""
        _, heads, _, dim = states.shape
        kind = (role, heads, dim, states.dtype, states.device)
        buffer, used = self._buffers.get(kind, (None, 0))
        if buffer is None:
            shape = (len(self.layers), heads, self.capacity, dim)
            buffer = torch.empty(shape, dtype=states.dtype, device=states.device)
        self._buffers[kind] = (buffer, used + 1)
        return buffer[used : used + 1]

    def advance(self, tokens: int) -> None:
        """Commit the first ``tokens`` tokens that were written behind the committed ones."""
        self.length += tokens

    @torch.inference_mode()
    def keep(self, path: list[int]) -> None:
        """Commit the tokens at ``path`` (indices, rising, behind the committed ones) and drop the others."""
        run = 0
        while run < len(path) and path[run] == run:
            run += 1
        if run < len(path):
            for buffer, used in self._buffers.values():
                source = torch.tensor([self.length + i for i in path[run:]], device=buffer.device)
                target = buffer[:used, :, self.length + run : self.length + len(path)]
                target.copy_(buffer[:used].index_select(2, source))
        self.length += len(path)
