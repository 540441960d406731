"""SuffixDecoding (Oliaro et al. 2024) as arctic-inference implements it, in two settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DrafterFactory, DraftRequest, DraftTree
from groundspeed.types import Source

__all__ = ["BEST", "VLLM", "Setting", "SuffixDecoding"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How the cache is driven.

    Attributes:
        depth: Of the suffix trees: the longest context and draft, in tokens.
        factor: At most ``factor * match + offset`` tokens are drafted behind a match.
        offset: See ``factor``.
        min_token_prob: Nodes with a path probability below are not drafted.
        tree: A tree is drafted, else a chain.
    """

    depth: int
    factor: float
    offset: float
    min_token_prob: float
    tree: bool


BEST = Setting(depth=64, factor=64.0, offset=64.0, min_token_prob=0.0, tree=True)
"""Nothing held back: as many nodes as the budget allows."""

VLLM = Setting(depth=24, factor=1.0, offset=0.0, min_token_prob=0.1, tree=False)
"""The defaults of vLLM's ``suffix`` method."""


class SuffixDecoding:
    """A drafter over arctic-inference's ``SuffixDecodingCache``.

    One cache serves all requests of a factory: it holds the earlier answers in one suffix tree, and prompt
    and output of the running request in another; the draft of the higher score is taken. A finished request's
    own answer is evicted, so that it is not history of the next.
    """

    def __init__(self, cache: Any, request: int, setting: Setting) -> None:
        self._cache = cache
        self._request = request
        self._setting = setting
        self._tokens = np.empty(0, np.int32)

    @classmethod
    def factory(cls, setting: Setting, history: Sequence[NDArray[np.int32]]) -> DrafterFactory:
        """Put earlier answers, int32 [r_i] each, into a cache that the drafters share."""
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        cache = SuffixDecodingCache(
            max_tree_depth=setting.depth, max_cached_requests=-1 if len(history) else 0
        )
        requests = count()
        for response in history:
            request = next(requests)
            cache.start_request(request, np.empty(0, np.int32))
            cache.add_active_response(request, response)
            cache.stop_request(request)
        return lambda: cls(cache, next(requests), setting)

    def begin(self, request: DraftRequest) -> None:
        """Start the request in the cache."""
        self._cache.start_request(self._request, request.prompt_ids)
        self._tokens = request.prompt_ids[-self._setting.depth :]

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._cache.add_active_response(self._request, token_ids)
        self._tokens = np.concatenate([self._tokens, token_ids])[-self._setting.depth :]

    def propose(self, budget: int) -> DraftTree:
        """Let the cache speculate with at most ``budget`` tokens."""
        draft = self._cache.speculate(
            self._request,
            self._tokens,
            max_spec_tokens=budget,
            max_spec_factor=self._setting.factor,
            max_spec_offset=self._setting.offset,
            min_token_prob=self._setting.min_token_prob,
            use_tree_spec=self._setting.tree,
        )
        n = len(draft.token_ids)
        return DraftTree(
            np.array(draft.token_ids, np.int32),
            np.array(draft.parents, np.int32),
            np.array(draft.probs, np.float32),
            np.full(n, Source.PROMPT, np.uint16),
            np.full(n, -1, np.int64),
        )

    def end(self) -> None:
        """Stop the request and take its answer out of the cache."""
        self._cache.stop_request(self._request)
        if self._request in self._cache.cached_requests:
            self._cache.evict_cached_response(self._request)
