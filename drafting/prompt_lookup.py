"""Prompt lookup: the baseline that repeats what followed the last n-gram the first time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.tree import chain
from groundspeed.types import Source

__all__ = ["PromptLookupDrafter"]


class PromptLookupDrafter:
    """Drafts one chain by the rule of transformers' ``prompt_lookup_num_tokens`` (Saxena 2023).

    The last ``max_ngram`` tokens are looked up in prompt and output, then ever shorter n-grams down to
    ``min_ngram``; the first place found is copied from. The passages are not looked at. With both numbers at
    5 this is vLLM's n-gram proposer as it is configured by default.
    """

    def __init__(self, max_ngram: int = 2, min_ngram: int = 1) -> None:
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram
        self.end()

    def begin(self, request: DraftRequest) -> None:
        """Take in the prompt."""
        self._tokens = request.prompt_ids
        self._prompt_length = len(request.prompt_ids)
        self._vocab_size = request.vocab_size

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Take in newly committed tokens, int32 [k]."""
        self._tokens = np.concatenate([self._tokens, token_ids])

    def propose(self, budget: int) -> DraftTree:
        """Copy up to ``budget`` tokens from the first place that the last tokens stand at."""
        tokens = self._tokens
        for length in range(min(self._max_ngram, len(tokens) - 1), self._min_ngram - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)
            places = np.flatnonzero((windows == tokens[-length:]).all(axis=1))
            if len(places):
                start = int(places[0]) + length
                drafted = tokens[start : start + max(budget, 0)]
                beyond = np.flatnonzero(drafted >= self._vocab_size)
                drafted = drafted[: beyond[0]] if len(beyond) else drafted
                positions = np.arange(start, start + len(drafted), dtype=np.int64)
                source = np.where(positions < self._prompt_length, Source.PROMPT, Source.OUTPUT)
                return chain(drafted, source=source.astype(np.uint16), origin=positions)
        return DraftTree.empty()

    def end(self) -> None:
        """Forget the request."""
        self._tokens = np.empty(0, np.int32)
        self._prompt_length = self._vocab_size = 0
