"""What a request asks to be done to the logits before a token is chosen, and what it may ask.

The processors are those of transformers, in the order of its ``generate``; the two penalties that it lacks
are added here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers.generation import logits_process as library

from groundspeed.errors import InputError
from groundspeed.types import GenerationRequest
from groundspeed.verify.warpers import TopP, Typical

__all__ = ["check_sampling", "make_processors"]

_COOLEST = 1e-3
_SEEDS = 2**64


class CountPenalty(library.LogitsProcessor):  # type: ignore[misc]
    """Lowers the logits of tokens that the answer holds, as OpenAI's API does; the prompt does not count.

    Args:
        frequency: Taken off for every time a token occurs.
        presence: Taken off once from every token that occurs.
        prompt_tokens: Tokens that stand before the generated ones.
    """

    def __init__(self, frequency: float, presence: float, prompt_tokens: int) -> None:
        self._frequency = frequency
        self._presence = presence
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ids [1, text], scores [1, vocab] -> [1, vocab]."""
        tokens, counts = torch.unique(input_ids[0, self._prompt_tokens :], return_counts=True)
        penalties = self._frequency * counts + self._presence
        return scores.index_add(1, tokens, -penalties[None].to(scores.dtype))


def make_processors(
    request: GenerationRequest, prompt_tokens: int, eos_token_ids: Collection[int], device: torch.device
) -> list[library.LogitsProcessor]:
    """The processors of a checked request; empty where its logits are used as they are.

    Args:
        request: What is asked for. What only shapes random draws is left out in greedy decoding.
        prompt_tokens: Length of the prompt.
        eos_token_ids: Tokens that end the text.
        device: Where the logits are.
    """
    chosen: list[library.LogitsProcessor] = []
    ends = sorted(eos_token_ids)
    if request.logit_bias:
        chosen.append(
            library.SequenceBiasLogitsProcessor(
                {(token,): float(bias) for token, bias in request.logit_bias.items()}
            )
        )
    if request.repetition_penalty != 1:
        chosen.append(library.RepetitionPenaltyLogitsProcessor(float(request.repetition_penalty)))
    if request.frequency_penalty or request.presence_penalty:
        chosen.append(CountPenalty(request.frequency_penalty, request.presence_penalty, prompt_tokens))
    # An end of sequence is no bad word: the library says so, and refuses a list in which nothing is left.
    bad_words = [list(word) for word in request.bad_words if list(word) not in [[end] for end in ends]]
    if bad_words:
        chosen.append(library.NoBadWordsLogitsProcessor(bad_words))
    if request.min_tokens and ends:
        chosen.append(
            library.MinNewTokensLengthLogitsProcessor(
                prompt_tokens, request.min_tokens, torch.tensor(ends, device=device)
            )
        )
    chosen.extend(request.logits_processors)
    if request.temperature:
        chosen.extend(_warpers(request))
    return chosen


def _warpers(request: GenerationRequest) -> list[library.LogitsProcessor]:
    """What shapes the distribution that is drawn from."""
    warpers: list[library.LogitsProcessor] = []
    if request.temperature != 1:
        warpers.append(library.TemperatureLogitsWarper(float(request.temperature)))
    if request.top_k:
        warpers.append(library.TopKLogitsWarper(request.top_k))
    if request.top_p < 1:
        warpers.append(TopP(request.top_p))
    if request.min_p:
        warpers.append(library.MinPLogitsWarper(request.min_p))
    if request.typical_p < 1:
        warpers.append(Typical(request.typical_p))
    return warpers


def check_sampling(request: GenerationRequest, vocab_size: int) -> None:
    """Refuse settings out of range.

    Raises:
        InputError: Naming the setting, its value and its range.
    """
    temperature, seed = request.temperature, request.seed
    settings = (
        (
            "temperature",
            temperature == 0 or _COOLEST <= temperature < math.inf,
            f"0 (greedy decoding) or at least {_COOLEST}",
        ),
        (
            "top_k",
            isinstance(request.top_k, int) and request.top_k >= 0,
            "0 (all tokens) or a whole number above",
        ),
        ("top_p", 0 < request.top_p <= 1, "above 0 and at most 1 (all tokens)"),
        ("min_p", 0 <= request.min_p <= 1, "from 0 (all tokens) to 1"),
        ("typical_p", 0 < request.typical_p <= 1, "above 0 and at most 1 (all tokens)"),
        (
            "repetition_penalty",
            0 < request.repetition_penalty < math.inf,
            "above 0; 1 changes nothing, above 1 discourages repetition",
        ),
        ("frequency_penalty", -2 <= request.frequency_penalty <= 2, "from -2 to 2; 0 changes nothing"),
        ("presence_penalty", -2 <= request.presence_penalty <= 2, "from -2 to 2; 0 changes nothing"),
        (
            "min_tokens",
            0 <= request.min_tokens <= request.max_tokens,
            f"from 0 to max_tokens, {request.max_tokens}",
        ),
        (
            "seed",
            seed is None or (isinstance(seed, int) and 0 <= seed < _SEEDS),
            "None or a whole number in [0, 2**64)",
        ),
    )
    for name, right, wanted in settings:
        if not right:
            raise InputError(f"{name} is {getattr(request, name)}; it must be {wanted}")
    for token, bias in request.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise InputError(_outside("logit_bias", token, vocab_size))
        if not bias < math.inf:
            raise InputError(
                f"logit_bias of token {token} is {bias}; it must be finite, or -inf to exclude the token"
            )
    words: Sequence[Any] = request.bad_words
    for word in words:
        if isinstance(word, str | int) or not word:
            raise InputError(
                f"bad_words holds {word!r}; each word must be a tuple of token ids, one or more: "
                "encode it with the model's tokenizer, with a leading space and without"
            )
        for token in word:
            if not 0 <= token < vocab_size:
                raise InputError(_outside("bad_words", token, vocab_size))


def _outside(name: str, token: int, vocab_size: int) -> str:
    return (
        f"{name} holds token id {token}; the model's vocabulary has {vocab_size} tokens: encode with the "
        "model's own tokenizer"
    )
