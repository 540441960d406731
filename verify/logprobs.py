"""How probable the model held the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from groundspeed.errors import InputError
from groundspeed.types import TokenLogprob
from groundspeed.verify.top_tokens import leading

if TYPE_CHECKING:
    from groundspeed.types import GenerationRequest

__all__ = ["check_logprobs", "token_logprobs"]

_MOST = 20
"""Tokens that may be asked for in each place, as in OpenAI's API and in vLLM."""


@torch.no_grad()
def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of chosen tokens, and of the most probable ones in their places.

    They are those of the model itself, the log-softmax of its logits in float32: temperature, penalties,
    masks and everything else that decides what is drawn come after it, as in OpenAI's API and in vLLM.

    Args:
        logits: [n, vocab], the model's own, by place.
        token_ids: n chosen tokens.
        top: How many of the most probable ones are wanted, 0 for none.
    """
    logits = logits.float()
    norms = logits.logsumexp(-1)
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0] - norms
    best: list[list[tuple[int, float]]] = [[] for _ in token_ids]
    if top:
        ids = torch.from_numpy(leading(logits, top)).to(logits.device, torch.long)
        values = logits.gather(1, ids) - norms[:, None]
        best = [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
    return tuple(
        TokenLogprob(token, logprob, tuple(others))
        for token, logprob, others in zip(token_ids, chosen.tolist(), best, strict=True)
    )


def check_logprobs(request: GenerationRequest) -> None:
    """Refuse a number of log-probabilities out of range.

    Raises:
        InputError: Naming the number and its range.
    """
    wanted = request.logprobs
    if wanted is not None and not (isinstance(wanted, int) and 0 <= wanted <= _MOST):
        raise InputError(
            f"logprobs is {wanted!r}; it must be None (none) or a whole number from 0 to {_MOST}"
        )
