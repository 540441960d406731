"""What drafters are trained on: the target's own answers, or text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from groundspeed.errors import InputError
from groundspeed.types import GenerationRequest, ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from groundspeed.integrations.bench.prompts import BenchPrompt
    from groundspeed.verify.engine import Engine

__all__ = ["Batch", "Sample", "answers", "batches", "blocks", "split"]

_TOGETHER = 16  # prompts that are answered side by side


@dataclass(frozen=True, slots=True)
class Sample:
    """A text to learn from.

    Attributes:
        token_ids: All of it.
        start: Tokens before this one are context; those from it on are to be guessed.
    """

    token_ids: tuple[int, ...]
    start: int


def answers(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    max_tokens: int,
    on_progress: ProgressCallback | None = None,
) -> list[Sample]:
    """What the target says to prompts, greedily: what a drafter for it should have said."""
    found = []
    for start in range(0, len(prompts), _TOGETHER):
        group = prompts[start : start + _TOGETHER]
        results = engine.generate_all(
            GenerationRequest(prompt.token_ids, prompt.passages, max_tokens=max_tokens) for prompt in group
        )
        for prompt, result in zip(group, results, strict=True):
            found.append(Sample((*prompt.token_ids, *result.token_ids), len(prompt.token_ids)))
        if on_progress:
            on_progress("Answering", start + len(group), len(prompts))
    return [sample for sample in found if len(sample.token_ids) > sample.start]


def blocks(token_ids: Sequence[int], size: int) -> list[Sample]:
    """A text in pieces of ``size`` tokens, all to be guessed but the first of each."""
    pieces = [tuple(token_ids[start : start + size]) for start in range(0, len(token_ids), size)]
    return [Sample(piece, 1) for piece in pieces if len(piece) > 1]


def split(samples: Sequence[Sample], every: int) -> tuple[list[Sample], list[Sample]]:
    """Samples to learn from, and every so-manieth one held out to measure with.

    Raises:
        InputError: There are too few.
    """
    if len(samples) < every:
        raise InputError(
            f"{len(samples)} texts to learn from were given; at least {every} are needed, as one in {every} "
            "is held out to measure with: give more prompts"
        )
    held_out = list(samples[every - 1 :: every])
    return [sample for place, sample in enumerate(samples) if place % every != every - 1], held_out


def batches(samples: Iterable[Sample], tokens: int, shuffle: torch.Generator | None = None) -> list[Batch]:
    """Samples of about one length together, of at most so many tokens a batch with padding."""
    groups: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda sample: len(sample.token_ids)):
        if not groups or (len(groups[-1]) + 1) * len(sample.token_ids) > tokens:
            groups.append([])
        groups[-1].append(sample)
    order = range(len(groups)) if shuffle is None else torch.randperm(len(groups), generator=shuffle).tolist()
    return [Batch(groups[place]) for place in order]


class Batch:
    """Samples that go through a model together, padded on the left, so that they end side by side.

    Attributes:
        kept: m, rows that logits are wanted for: those behind which the last m tokens stand.
    """

    def __init__(self, samples: list[Sample]) -> None:
        """Pad them."""
        longest = max(len(sample.token_ids) for sample in samples)
        self.kept = max(len(sample.token_ids) - sample.start for sample in samples)
        self._ids = torch.zeros(len(samples), longest, dtype=torch.long)
        self._there = torch.zeros(len(samples), longest, dtype=torch.long)
        self._asked = torch.zeros(len(samples), longest, dtype=torch.bool)
        for row, sample in enumerate(samples):
            self._ids[row, longest - len(sample.token_ids) :] = torch.tensor(sample.token_ids)
            self._there[row, longest - len(sample.token_ids) :] = 1
            self._asked[row, longest - len(sample.token_ids) + sample.start :] = True

    def labels(self, ahead: int = 0) -> torch.Tensor:
        """By wanted row, the token ``ahead`` places behind the next one; int64 [b, m], -100 for none."""
        labels = self._ids.masked_fill(~self._asked, -100)[:, self._ids.shape[1] - self.kept :]
        return torch.nn.functional.pad(labels, (0, ahead), value=-100)[:, ahead:]

    def logits(self, model: PreTrainedModel) -> torch.Tensor:
        """What a model says in the wanted rows, [b, m, vocab]."""
        device = model.get_input_embeddings().weight.device
        there = self._there.to(device)
        logits: torch.Tensor = model(
            input_ids=self._ids.to(device),
            attention_mask=there,
            position_ids=(there.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=self.kept + 1,
            use_cache=False,
        ).logits
        return logits[:, -self.kept - 1 : -1]
