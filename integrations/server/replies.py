"""What replies have in common: a head, usage, how the answer came about, and log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import BaseModel

from groundspeed.integrations.logprobs import chat_logprobs
from groundspeed.integrations.server.errors import ApiError
from groundspeed.integrations.view.record import stats_as_json
from groundspeed.types import Decoding, FinishReason, GenerationResult, GroundedSpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.integrations.server.serving import Serving
    from groundspeed.types import TokenLogprob

__all__ = [
    "Finish",
    "GroundspeedFacts",
    "Stats",
    "TokenFacts",
    "Usage",
    "finish_of",
    "reply_head",
    "tokens_facts",
]

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


def reply_head(serving: Serving, kind: str) -> dict[str, Any]:
    """What each reply, and each chunk of one stream, begins with; ``kind`` begins its id."""
    return {
        "id": f"{kind}-{uuid4().hex}",
        "created": int(time.time()),
        "model": serving.model,
        "system_fingerprint": serving.fingerprint,
    }


class CompletionTokens(BaseModel):
    """The tokens of answers: drafted ones that were accepted, and those that were not."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0
    audio_tokens: int = 0


class PromptTokens(BaseModel):
    """The tokens of prompts that had been read before."""

    cached_tokens: int
    audio_tokens: int = 0


class Usage(BaseModel):
    """What a request took, all its answers together; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokens
    prompt_tokens_details: PromptTokens

    @classmethod
    def of(cls, results: Sequence[GenerationResult], n: int) -> Usage:
        """Add up results, of which each n in a row have one prompt."""
        stats = [result.stats for result in results]
        prompt = sum(one.prompt_tokens for one in stats[::n])
        completion = sum(one.completion_tokens for one in stats)
        accepted = sum(one.accepted for one in stats)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            completion_tokens_details=CompletionTokens(
                accepted_prediction_tokens=accepted,
                rejected_prediction_tokens=sum(one.drafted for one in stats) - accepted,
                reasoning_tokens=0,
                audio_tokens=0,
            ),
            prompt_tokens_details=PromptTokens(
                cached_tokens=sum(one.cached_tokens for one in stats[::n]), audio_tokens=0
            ),
        )


class Stats(BaseModel):
    """What an answer took: ``GenerationStats``, with the rates that follow from it."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    steps: int
    shared_steps: int
    tokens_per_step: float
    drafted: int
    accepted: int
    accepted_by_source: dict[str, int]
    queued_s: float
    prefill_s: float
    decode_s: float
    tokens_per_second: float
    decoding: Decoding
    decoding_reason: str | None


class GroundspeedFacts(Stats):
    """How an answer came about; the names are those of ``GenerationResult``."""

    finish_reason: FinishReason
    stop: str | int | None
    seed: int | None
    grounding: list[GroundedSpan]

    @classmethod
    def of(cls, result: GenerationResult) -> GroundspeedFacts:
        """Take them from a result."""
        return cls(
            **stats_as_json(result.stats),
            finish_reason=result.finish_reason,
            stop=result.stop,
            seed=result.seed,
            grounding=list(result.grounding),
        )


def finish_of(result: GenerationResult) -> Literal["stop", "length"]:
    """The reason of an answer's end in the words of OpenAI's API.

    Raises:
        ApiError: The answer was ended before it began, or by the server.
    """
    if result.finish_reason == "cancelled":
        raise ApiError(503, "the server is shutting down and ended the answer", "shutting_down")
    if result.finish_reason == "timeout" and not result.token_ids:
        raise ApiError(504, "the time for a request was over before the answer began; try later", "timeout")
    return "stop" if result.finish_reason == "stop" else "length"


class TopToken(BaseModel):
    """A token and how probable the model held it."""

    token: str
    logprob: float
    bytes: list[int]


class TokenFacts(TopToken):
    """A token of an answer, with the most probable ones in its place."""

    top_logprobs: list[TopToken]


def tokens_facts(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[TokenLogprob]) -> list[TokenFacts]:
    """Log-probabilities in the form of the chat API."""
    return [TokenFacts.model_validate(one) for one in chat_logprobs(tokenizer, tokens)]
