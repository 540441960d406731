"""Many requests at once over tiny models, with passes that are watched and held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import RwkvConfig

from groundspeed.drafting.base import DraftRequest, DraftTree
from groundspeed.drafting.blend import BlendDrafter
from groundspeed.types import GenerationRequest, GenerationResult
from groundspeed.verify.base import Segment
from groundspeed.verify.engine import Engine
from groundspeed.verify.target import TransformersTarget
from helpers.drafters import Adversary
from helpers.engines import FREE, Words
from helpers.families import OTHER_FAMILIES, TREE_FAMILIES, tiny_model

FAMILIES = {
    **TREE_FAMILIES,
    **{name: config for name, (_, config) in OTHER_FAMILIES.items()},
    "rwkv": lambda: RwkvConfig(vocab_size=97, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2),
}
"""Of trees, chains, single tokens, and one that reads the whole text every pass."""


class Watched:
    """A target whose passes are noted, and may be held, delayed or made to fail.

    Attributes:
        passes: By pass the number of committed tokens that each of its texts had in it.
        before: Called with the segments before each pass.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._free = threading.Event()
        self._free.set()
        self.passes: list[list[int]] = []
        self.before: Callable[[Sequence[Segment]], object] = lambda segments: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def verify(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        assert self._free.wait(60)
        self.passes.append([len(segment.token_ids) for segment in segments])
        self.before(segments)
        logits: list[torch.Tensor] = self._target.verify(segments)
        return logits

    def hold(self) -> None:
        """Let no pass begin."""
        self._free.clear()

    def release(self) -> None:
        """Let passes go on."""
        self._free.set()


def watched(family: str, **config: Any) -> Watched:
    """A tiny model of a family, with other settings than the usual ones."""
    settings = FAMILIES[family]()
    for name, value in config.items():
        setattr(settings, name, value)
    return Watched(TransformersTarget(tiny_model(settings)))


def engine_of(target: Watched, drafter: Any = BlendDrafter, **options: Any) -> Engine:
    return Engine(target, Words(), drafter=drafter, cost=FREE, **options)


def side_by_side(engine: Engine, requests: Iterable[GenerationRequest]) -> list[GenerationResult]:
    """What the engine answers to requests that are all there before its first pass."""
    target = engine.target
    assert isinstance(target, Watched)
    target.hold()

    def all_of_them() -> Iterator[GenerationRequest]:
        try:
            yield from requests
        finally:
            target.release()

    return engine.generate_all(all_of_them())


def texts_of(results: Iterable[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


def some_prompts(count: int, longest: int = 60, seed: int = 1) -> list[tuple[int, ...]]:
    """Random prompts, the first of one token, all of tokens that every family has."""
    lengths = [1, *np.random.default_rng(seed).integers(2, longest + 1, count - 1)]
    return [text_of(length, 100 * seed + i) for i, length in enumerate(lengths)]


def text_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """A random text."""
    return tuple(np.random.default_rng(seed).integers(3, 97, length).tolist())


class ByPrompt:
    """An adversary of each request, by the answers that are known."""

    def __init__(self, adversary: type[Adversary], answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        self._adversary = adversary
        self._answers = answers

    def begin(self, request: DraftRequest) -> None:
        self._drafter = self._adversary(self._answers[tuple(request.prompt_ids.tolist())])
        self._drafter.begin(request)

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        self._drafter.extend(token_ids)

    def propose(self, budget: int) -> DraftTree:
        return self._drafter.propose(budget)

    def end(self) -> None:
        self._drafter.end()
