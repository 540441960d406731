"""The target's own first layers as draft model: early exit through its final norm and head.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) and LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710),
which trains models for it. The layers share weights and KV cache with the target: the prompt and what was
accepted need not be read again, and what a draft leaves in the cache, its verification writes anew.

    engine.drafter = DraftModel(FirstLayers.chosen(engine.target, engine.encode(text)))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from groundspeed.drafting.base import DraftTree, TargetView
from groundspeed.drafting.draft_lm import Outlook
from groundspeed.errors import DraftError, InputError, ModelError
from groundspeed.verify.base import Segment
from groundspeed.verify.draft_lm import outlook_of
from groundspeed.verify.sessions import TreeSession
from groundspeed.verify.target import TransformersTarget
from groundspeed.verify.target_view import check_shown

__all__ = ["Exit", "FirstLayers", "measure_exits"]

_CANDIDATES = 8
_DEPTH = 8  # longest draft that is thought of
_MEASURED = 256  # tokens that agreement is counted on
_ROUNDS = 3


class Exit(NamedTuple):
    """What a number of first layers is good for.

    Attributes:
        layers: How many.
        agreement: How often their first choice is the whole model's.
        cost: Time of a pass of one token, of that of all layers.
    """

    layers: int
    agreement: float
    cost: float

    @property
    def speed(self) -> float:
        """Tokens per time of a plain step with the best length of a chain, where verifying costs a step."""
        return max(
            sum(self.agreement**i for i in range(depth + 1)) / (depth * self.cost + 1)
            for depth in range(1, _DEPTH + 1)
        )


def measure_exits(target: TransformersTarget, token_ids: Sequence[int]) -> list[Exit]:
    """Measure what exits at several depths are good for.

    Args:
        target: The model.
        token_ids: A text of the kind that it writes; its last 256 tokens are looked at.

    Raises:
        InputError: A text that is too short.
    """
    tokens = list(token_ids[-_MEASURED:])
    if len(tokens) < 2:
        raise InputError("a text of two tokens or more is needed to measure on; give some of what is written")
    chain = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    session = target.open(len(tokens) + _ROUNDS)
    assert isinstance(session, TreeSession)
    counts = {round(target.layers * i / _CANDIDATES) for i in range(1, _CANDIDATES)} - {0, target.layers}
    said = {n: target.read_ahead(session, n, tokens, chain).argmax(-1) for n in sorted(counts)}
    wanted = target.verify([Segment(session, tokens, rows=len(tokens))])[0].argmax(-1)
    one = tokens[-1:]

    def seconds(step: Callable[[], object]) -> float:
        taken = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            step()
            taken.append(time.perf_counter() - start)
        return min(taken)

    costs = {n: seconds(partial(target.read_ahead, session, n, one, chain[:1])) for n in said}
    whole = seconds(partial(target.verify, [Segment(session, one)]))
    session.close()
    return [
        Exit(n, float((tokens_said == wanted).float().mean()), costs[n] / whole)
        for n, tokens_said in said.items()
    ]


class FirstLayers:
    """The first layers of a target as a ``DraftLM`` of ``DraftModel``.

    Attributes:
        layers: How many.
        exits: What was measured, where that chose them.
        branches: They read trees.
        vocab_size: Number of token ids.
        context_length: Most tokens of a text, None for no bound.
    """

    branches = True

    def __init__(self, target: TransformersTarget, layers: int, exits: Sequence[Exit] = ()) -> None:
        """Take layers into service.

        Args:
            target: Of the engine whose requests are drafted for.
            layers: How many of its layers, fewer than it has.
            exits: What chose them.

        Raises:
            InputError: A number that it does not have.
            ModelError: It verifies no trees, cannot be cut short, or its KV caches are paged.
        """
        if not 0 < layers < target.layers:
            raise InputError(
                f"the first {layers} layers were to draft for a model of {target.layers}; give at least 1, "
                "and fewer than it has"
            )
        check_shown(target, "its first layers")
        session = target.open(1)
        assert isinstance(session, TreeSession)
        try:
            target.read_ahead(session, layers, [0], np.full(1, -1, np.int32))
        except ModelError:
            raise
        except Exception as error:  # whatever a model's own code raises
            raise ModelError(
                f"{type(target.model).__name__} does not run with its first {layers} layers alone: "
                f"{type(error).__name__}: {error}; choose another drafter for it"
            ) from error
        self.layers, self.exits = layers, tuple(exits)
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length

    @classmethod
    def chosen(cls, target: TransformersTarget, token_ids: Sequence[int]) -> FirstLayers:
        """As many layers as promise the fastest decoding, by measurement on a text.

        Args:
            target: Of the engine whose requests are drafted for.
            token_ids: A text of the kind that it writes.

        Raises:
            InputError: As ``measure_exits``; also a model of one layer.
            ModelError: As for a given number.
        """
        cls(target, 1)  # says what is wrong with the model, if anything is
        exits = measure_exits(target, token_ids)
        return cls(target, max(exits, key=lambda one: one.speed).layers, exits)

    def open(self, vocab_size: int, target: TargetView | None = None) -> _SharedText:
        """Start a text in the KV cache of its request."""
        if target is None:
            raise DraftError(
                "the first layers of a target draft for its own requests, and none was handed on; make them "
                "of the engine's own target"
            )
        return _SharedText(self.layers, vocab_size, target)


class _SharedText:
    """What a request has in the KV cache already is read; the last committed token never is."""

    def __init__(self, layers: int, vocab_size: int, target: TargetView) -> None:
        self._layers, self._vocab_size, self._target = layers, vocab_size, target

    def read(self, token_ids: NDArray[np.int32], tree: DraftTree, held: int, k: int) -> Outlook:
        known = 1 + held
        if len(token_ids):
            self._last = int(token_ids[-1])
            known = 0
        logits = self._target.read_ahead(
            self._layers,
            [self._last, *tree.token_ids.tolist()],
            np.concatenate([np.array([-1], np.int32), tree.parents + 1]),
            known,
        )
        return outlook_of(logits[:, : self._vocab_size], k)

    def commit(self, path: Sequence[int]) -> None:
        """The target's own verification has kept them."""

    def close(self) -> None:
        """The KV cache is the request's."""
