"""Log-probabilities of tokens in the form of OpenAI's chat API, which LangChain has taken over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from groundspeed.verify.text import token_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.types import TokenLogprob

__all__ = ["chat_logprobs"]


def chat_logprobs(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """A dict for each token: ``token``, ``bytes``, ``logprob`` and, in ``top_logprobs``, its rivals alike."""
    return [
        {
            **_named(tokenizer, one.token_id, one.logprob),
            "top_logprobs": [_named(tokenizer, *other) for other in one.top],
        }
        for one in tokens
    ]


def _named(tokenizer: PreTrainedTokenizerBase, token_id: int, logprob: float) -> dict[str, Any]:
    data = token_bytes(tokenizer, token_id)
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}
