"""The drafters that a replay knows by name, and what each needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DrafterFactory
from groundspeed.errors import InputError, MissingDependencyError

__all__ = ["DRAFTERS", "History", "Named", "check", "installed"]

History: TypeAlias = Sequence[NDArray[np.int32]]
"""Earlier answers, int32 [r_i] each."""


@dataclass(frozen=True, slots=True)
class Named:
    """A drafter of the replay.

    Attributes:
        build: Makes the factory from the history and the size of the vocabulary.
        package: The distribution it needs beyond those of groundspeed.
        module: What that installs.
    """

    build: Callable[[History, int], DrafterFactory]
    package: str | None = None
    module: str | None = None

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return self.module is None or importlib.util.find_spec(self.module) is not None


def installed() -> list[str]:
    """Names of the drafters that can run here."""
    return [name for name, drafter in DRAFTERS.items() if drafter.installed]


def check(names: Sequence[str]) -> None:
    """Refuse what cannot run.

    Raises:
        InputError: There is no drafter of that name.
        MissingDependencyError: What it needs is not installed.
    """
    for name in names:
        if name not in DRAFTERS:
            raise InputError(f"there is no drafter {name}; choose from {', '.join(DRAFTERS)}")
        if not DRAFTERS[name].installed:
            raise MissingDependencyError(
                f"the drafter {name} needs {DRAFTERS[name].package}, which is not installed; "
                "benchmarks/peers.md says how, or leave it out"
            )


def _blend(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.datastores.snapshot import Snapshot
    from groundspeed.drafting.blend import BlendDrafter, warm_up

    stored = Snapshot.of(history, vocab_size)
    warm_up(stored)
    return lambda: BlendDrafter(stored)


def _single_match(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.drafting.single_match import SingleMatchDrafter, index_history

    index = index_history(history)
    return lambda: SingleMatchDrafter(index)


def _prompt_lookup(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.drafting.prompt_lookup import PromptLookupDrafter

    return PromptLookupDrafter


def _vllm_ngram(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.drafting.prompt_lookup import PromptLookupDrafter

    # vLLM's defaults for prompt_lookup_max and prompt_lookup_min.
    return lambda: PromptLookupDrafter(max_ngram=5, min_ngram=5)


def _none(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.drafting.none import NoDrafter

    return NoDrafter


def _rest(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.integrations.bench.peers.rest import Rest

    return Rest.factory(history)


def _suffix_decoding(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.integrations.bench.peers.suffix_decoding import BEST, SuffixDecoding

    return SuffixDecoding.factory(BEST, history)


def _suffix_decoding_vllm(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.integrations.bench.peers.suffix_decoding import VLLM, SuffixDecoding

    return SuffixDecoding.factory(VLLM, history)


def _draft_retriever(history: History, vocab_size: int) -> DrafterFactory:
    from groundspeed.integrations.bench.peers.draft_retriever import DraftRetriever

    return DraftRetriever.factory(history)


DRAFTERS = {
    "blend": Named(_blend),
    "single-match": Named(_single_match),
    "prompt-lookup": Named(_prompt_lookup),
    "none": Named(_none),
    "rest": Named(_rest, "pydivsufsort", "pydivsufsort"),
    "vllm-ngram": Named(_vllm_ngram),
    "suffix-decoding": Named(_suffix_decoding, "arctic-inference", "arctic_inference"),
    "suffix-decoding-vllm": Named(_suffix_decoding_vllm, "arctic-inference", "arctic_inference"),
    "draftretriever": Named(_draft_retriever, "draftretriever", "draftretriever"),
}
