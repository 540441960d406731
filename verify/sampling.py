"""How the target's logits become a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from groundspeed.errors import InputError

if TYPE_CHECKING:
    import torch

    from groundspeed.types import GenerationRequest

__all__ = ["Chooser", "make_chooser"]

Chooser = Callable[["torch.Tensor"], Callable[[int], int]]
"""Takes the logits [n + 1, vocab] of a pass, gives the function that chooses a token by row."""


def greedy(logits: torch.Tensor) -> Callable[[int], int]:
    """The most probable token of each row."""
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens.__getitem__


def make_chooser(request: GenerationRequest) -> Chooser:
    """The chooser that a request asks for.

    Raises:
        InputError: The temperature is negative, or above 0.
    """
    if request.temperature < 0:
        raise InputError(f"temperature is {request.temperature}; it must be 0 (greedy decoding) or above")
    if request.temperature > 0:
        raise InputError(
            f"temperature is {request.temperature}; this version decodes greedily only: leave it at 0"
        )
    return greedy
