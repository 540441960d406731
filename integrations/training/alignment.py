"""Draft alignment: a small model is trained to say what the target says.

Sequence-level distillation (Kim and Rush 2016): the draft model learns the target's own answers as they are,
so that it needs nothing of the target but its words (DistillSpec, Zhou et al. 2024, compares the ways).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from groundspeed.errors import InputError, ModelError
from groundspeed.integrations.training.samples import Sample, batches
from groundspeed.types import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["acceptance", "align", "first_layers"]

_TOKENS = 2048  # of a step
_SEED = 0


@torch.no_grad()
def acceptance(draft: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """How often the draft model's first choice is the target's next token, behind the target's own text."""
    right = asked = 0
    for batch in batches(samples, _TOKENS):
        labels = batch.labels()
        chosen = batch.logits(draft).argmax(-1).cpu()
        right += int((chosen == labels).sum())
        asked += int((labels >= 0).sum())
    return right / asked


def align(
    draft: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    epochs: int = 4,
    learning_rate: float = 1e-3,
    on_progress: ProgressCallback | None = None,
) -> None:
    """Fine-tune a draft model in place on what the target says; its embeddings stay as they are.

    Args:
        draft: A causal language model with the target's tokens, in float32.
        samples: The target's answers.
        epochs: Times that all of it is gone through.
        learning_rate: At first; it falls to 0.
        on_progress: Told about the steps.
    """
    draft.train().requires_grad_(True)
    for embeddings in (draft.get_input_embeddings(), draft.get_output_embeddings()):
        embeddings.requires_grad_(False)
    learnt = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=learning_rate, weight_decay=0.0)
    shuffle = torch.Generator().manual_seed(_SEED)
    steps = epochs * len(batches(samples, _TOKENS))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for batch in batches(samples, _TOKENS, shuffle):
            logits = batch.logits(draft).float()
            labels = batch.labels().to(logits.device)
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            schedule.step()
            if on_progress:
                on_progress("Aligning the draft model", schedule.last_epoch, steps)
    draft.eval().requires_grad_(False)


def first_layers(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A draft model for those who have none: the target's first layers, embeddings and head, copied.

    Args:
        model: The target.
        layers: How many.

    Raises:
        InputError: The target has no more than that.
    """
    from transformers import AutoModelForCausalLM

    config: Any = copy.deepcopy(model.config)
    text = config.get_text_config()
    if not 0 < layers < text.num_hidden_layers:
        raise InputError(
            f"a draft model of {layers} layers was asked for and the target has {text.num_hidden_layers}; "
            "give at least 1, and fewer than it has"
        )
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    draft: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing = draft.load_state_dict(model.state_dict(), strict=False).missing_keys
    if missing:
        raise ModelError(
            f"the target has no {missing[0]} to copy; hand over the model as it was loaded, before its "
            "linear layers are packed for an engine"
        )
    draft.generation_config = copy.deepcopy(model.generation_config)
    return draft
