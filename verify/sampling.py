"""How the target's logits become a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from groundspeed.errors import InputError

if TYPE_CHECKING:
    from groundspeed.types import GenerationRequest

__all__ = ["Chooser", "leading", "make_chooser"]

_BLOCK = 128
"""Logits that are looked at together."""

Chooser = Callable[[torch.Tensor], Callable[[int], int]]
"""Takes the logits [n + 1, vocab] of a pass, gives the function that chooses a token by row."""


def greedy(logits: torch.Tensor) -> Callable[[int], int]:
    """The most probable token of each row, of equals the first."""
    tokens: list[int] = _argmax(logits).tolist()
    return tokens.__getitem__


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """``logits.argmax(-1)``, [n, vocab] -> [n]: of equals the first.

    On the CPU PyTorch's own takes many times as long as its maximum, up to a tenth of a forward pass. So the
    maximum finds the first block that holds it, and only that one is searched.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    blocks = _blocks(logits)
    first = blocks.amax(-1).argmax(-1)
    rows = torch.arange(len(logits))
    return first * _BLOCK + blocks[rows, first].argmax(-1)


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


def leading(logits: torch.Tensor, k: int) -> NDArray[np.int32]:
    """The most probable tokens of each row, best first.

    A sort of a whole row takes far longer than its maximum. The k largest values lie in the k blocks whose
    maxima are largest, so it is enough to sort the maxima, and then those blocks.

    Args:
        logits: [n, vocab].
        k: How many; fewer where the vocabulary has fewer.

    Returns:
        int32 [n, k].
    """
    k = min(k, logits.shape[1])
    blocks = _blocks(logits)
    chosen = blocks.amax(-1).topk(min(k, blocks.shape[1])).indices
    values = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    best = values.topk(k).indices
    ids = chosen.gather(1, best // _BLOCK) * _BLOCK + best % _BLOCK
    return ids.to(device="cpu", dtype=torch.int32).numpy()


def _blocks(logits: torch.Tensor) -> torch.Tensor:
    """[n, vocab] -> [n, blocks, _BLOCK], filled up with what is never chosen.

    Half precision is widened: on the CPU that and the maximum in float32 take a third of its own maximum.
    """
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    missing = -logits.shape[1] % _BLOCK
    if missing:
        logits = torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits.reshape(len(logits), -1, _BLOCK)
