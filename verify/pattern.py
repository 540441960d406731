"""The joint to transformers: whose attention a forward pass takes, and what stands for its cache.

While a ``Pattern`` is active in a thread, the function registered as ``groundspeed`` has it compute the
attention of every layer; in other threads, and without one, the model does what it always does.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from groundspeed.verify.step_attention import Scoring

__all__ = ["IMPLEMENTATION", "Pattern", "active_pattern", "register"]

IMPLEMENTATION = "groundspeed"

_active = threading.local()


class Pattern(Cache, ABC):  # type: ignore[misc]
    """Who sees whom in one forward pass, and what the model takes for its cache.

    Attributes:
        positions: int64 [1, rows], of the pass's tokens in their texts.
        windows: By layer, the window that the model asked for.
    """

    positions: torch.Tensor

    def __init__(self, layers: int) -> None:
        """Make the caches that the layers of a model hand their new states to."""
        super().__init__(layers=[_Layer(self, layer) for layer in range(layers)])
        self.windows: dict[int, int | None] = {}
        self._noted: dict[int, tuple[int, torch.Tensor]] = {}

    @contextmanager
    def active(self, config: Any) -> Iterator[None]:
        """Make this the pattern of the forward passes of the current thread.

        Args:
            config: Of the text part of the model, whose attention is ours meanwhile.
        """
        before = config._attn_implementation
        config._attn_implementation = IMPLEMENTATION
        _active.pattern = self
        try:
            yield
        finally:
            _active.pattern = None
            config._attn_implementation = before
            self.layers.clear()  # they refer back, and what goes in circles is freed late

    @property
    @abstractmethod
    def prefix(self) -> int:
        """Most committed tokens before a stretch."""

    def note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Take in that these, [1, heads, rows, size], are a layer's new keys and values."""
        self._noted[id(key)] = (layer, key)  # held, so that no other tensor gets its id

    def layer_of(self, key: torch.Tensor) -> int:
        """Whose keys they are: a layer may look at those of another one."""
        if id(key) not in self._noted:
            raise RuntimeError("the model changes keys between its cache and its attention")
        return self._noted[id(key)][0]

    @abstractmethod
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """Query [1, H, rows, dk], key and value [1, G, rows, d], as noted -> [1, rows, H, dv]."""


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """What a layer takes for its cache: hands on the new states, which are stored when they are looked at."""

    def __init__(self, pattern: Pattern, layer: int) -> None:
        super().__init__()
        self._pattern = pattern
        self._layer = layer

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._pattern.note(self._layer, key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._pattern.prefix + query_length, 0

    def get_seq_length(self) -> int:
        return self._pattern.prefix

    def get_max_length(self) -> int:
        return -1


def active_pattern() -> Pattern | None:
    """Who sees whom in the forward pass of this thread, None while it is not one of ours."""
    pattern: Pattern | None = getattr(_active, "pattern", None)
    return pattern


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
    """Called per layer with query [1, H, s, d], key and value [1, G, s, d]; returns [1, s, H, d]."""
    pattern = active_pattern()
    if pattern is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out: torch.Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
        )[0]
        return out, None
    pattern.windows[int(getattr(module, "layer_idx", len(pattern.windows)))] = sliding_window
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return pattern.attend(query, key, value, Scoring(scaling, sliding_window, softcap, s_aux)), None


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """What transformers calls per pass for its own mask: none is needed while a pattern is active."""
    from transformers.masking_utils import sdpa_mask

    if active_pattern() is not None:
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
