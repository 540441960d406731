"""Training Medusa heads on a frozen target (Medusa-1: Cai et al. 2024, section 2.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from groundspeed.integrations.training.samples import Sample, batches
from groundspeed.types import ProgressCallback
from groundspeed.verify.medusa_heads import MedusaHeads
from groundspeed.verify.target_view import head_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["head_accuracy", "train_heads"]

_FADING = 0.8  # weight of a head's loss, of the one before
_TOKENS = 2048  # of a pass of the target
_ROWS = 128  # of a step
_SEED = 0


def train_heads(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    count: int = 3,
    epochs: int = 4,
    learning_rate: float = 1e-3,
    on_progress: ProgressCallback | None = None,
) -> MedusaHeads:
    """Train heads that share the target's output head; the target itself is not changed.

    Args:
        model: The target, as ``load_model`` gives it.
        samples: What it says, or other text; heads learn what it says best from its own answers.
        count: How many heads.
        epochs: Times that all of it is gone through.
        learning_rate: At first; it falls to 0.
        on_progress: Told about the steps.
    """
    hidden, labels = _rows(model, samples, count)
    heads = MedusaHeads(hidden.shape[1], count).to(hidden.device)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=learning_rate, weight_decay=0.0)
    steps = epochs * -(-len(hidden) // _ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    shuffle = torch.Generator().manual_seed(_SEED)
    output = model.get_output_embeddings()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(hidden), generator=shuffle), _ROWS):
            guesses = output(heads(hidden[rows].float()).to(hidden.dtype)).float()
            loss = torch.stack(
                [
                    _FADING**head * cross_entropy(guess, labels[rows, head], reduction="sum") / len(rows)
                    for head, guess in enumerate(guesses)
                ]
            ).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if on_progress:
                on_progress("Training the heads", schedule.last_epoch, steps)
    return heads.requires_grad_(False)


@torch.no_grad()
def head_accuracy(model: PreTrainedModel, heads: MedusaHeads, samples: Sequence[Sample]) -> list[float]:
    """By head, how often its first guess is right."""
    hidden, labels = _rows(model, samples, heads.count)
    output = model.get_output_embeddings()
    right = torch.zeros(heads.count)
    for rows in torch.split(torch.arange(len(hidden)), _ROWS):
        guesses = output(heads(hidden[rows].float()).to(hidden.dtype)).argmax(-1)
        right += guesses.T.eq(labels[rows]).sum(0).cpu()
    return [float(share) for share in right / (labels >= 0).sum(0).clamp(min=1).cpu()]


@torch.no_grad()
def _rows(model: PreTrainedModel, samples: Sequence[Sample], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [r, width] that tokens are chosen behind, and what the heads are to guess, [r, count]."""
    hidden, labels = [], []
    for batch in batches(samples, _TOKENS):
        with head_inputs(model) as inputs:
            batch.logits(model)
        states = inputs[-1][:, -batch.kept - 1 : -1]
        there = batch.labels() >= 0
        hidden.append(states[there.to(states.device)])
        labels.append(torch.stack([batch.labels(head + 1)[there] for head in range(count)], -1))
    states = torch.cat(hidden)
    return states, torch.cat(labels).to(states.device)
