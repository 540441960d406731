"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from groundspeed.integrations.server.answering import Asked, answers, away, choices, submissions
from groundspeed.integrations.server.errors import documented, invalid
from groundspeed.integrations.server.keys import Caller
from groundspeed.integrations.server.replies import GroundspeedFacts, Usage, finish_of, reply_head
from groundspeed.integrations.server.sampling import OpenAIBody
from groundspeed.integrations.server.serving import Admitted, CallerOf, Serving, ServingOf
from groundspeed.integrations.server.sse import EventStreamResponse, event_stream, streamed
from groundspeed.types import GenerationRequest, GenerationResult, StepEvent, TokenLogprob
from groundspeed.verify.text import token_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["router"]

router = APIRouter(tags=["answers"])

T = TypeVar("T")

TokenId = Annotated[int, Field(ge=0)]
Some = Annotated[list[T], Field(min_length=1)]


class CompletionBody(OpenAIBody):
    """Texts to continue; fields as in ``ChatBody``."""

    prompt: str | Some[str] | Some[TokenId] | Some[list[TokenId]]
    max_tokens: int | None = Field(None, ge=1, description="By default 16, as in OpenAI's API.")
    best_of: int | None = Field(None, ge=1, description="May only be what n is: no answer is thrown away.")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)

    def prompts(self) -> list[str | tuple[int, ...]]:
        """The prompts, each as text or as token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if ids := [one for one in self.prompt if isinstance(one, int)]:
            return [tuple(ids)]
        return [
            one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)
        ]


class Logprobs(BaseModel):
    """Log-probabilities in the form of the older API, by token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(BaseModel):
    """One of the texts, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    groundspeed: GroundspeedFacts | None = None


class Completion(BaseModel):
    """Texts, or a piece of a stream of them."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | None = None


@router.post(
    "/v1/completions",
    response_model=Completion,
    response_model_exclude_unset=True,
    responses={**documented(404, 504), 200: streamed(Completion)},
    dependencies=[Admitted],
)
async def completions(
    body: CompletionBody, serving: ServingOf, caller: CallerOf, request: Request
) -> Completion | EventStreamResponse:
    """Continue texts."""
    serving.check_model(body.model)
    asked = await away(lambda: _prepared(serving, caller, body))
    if body.stream:
        return event_stream(_chunks(serving, body, asked, request))
    results = await answers(serving, asked, request)
    tokenizer = serving.engine.tokenizer
    return Completion(
        **reply_head(serving, "cmpl"),
        object="text_completion",
        choices=[
            Choice(
                index=number,
                text=result.text,
                logprobs=_all_logprobs(tokenizer, asked[number].request, result),
                finish_reason=finish_of(result),
                groundspeed=GroundspeedFacts.of(result),
            )
            for number, result in enumerate(results)
        ],
        usage=Usage.of(results, body.n or 1),
    )


def _prepared(serving: Serving, caller: Caller, body: CompletionBody) -> list[Asked]:
    """The answers asked for."""
    if body.best_of not in (None, body.n or 1):
        raise invalid(f"best_of is {body.best_of} and n {body.n or 1}; give n alone", param="best_of")
    if body.stream and body.echo and body.logprobs is not None:
        raise invalid("echo with logprobs cannot be streamed; leave one of the three out", param="logprobs")
    documents = body.documents(serving)
    options = body.options(serving)
    options["max_tokens"] = body.max_tokens or 16
    options["echo"] = bool(body.echo)
    options["logprobs"] = body.logprobs
    options["prediction"] = body.predicted()
    prompts = (tuple(serving.engine.encode(prompt)) for prompt in body.prompts())
    made = [GenerationRequest(prompt, documents, **options) for prompt in prompts]
    return submissions(serving, caller, made, body.n or 1)


async def _chunks(
    serving: Serving, body: CompletionBody, asked: Sequence[Asked], request: Request
) -> AsyncGenerator[Completion]:
    head = reply_head(serving, "cmpl")

    def chunk(*some: Choice, usage: Usage | None = None) -> Completion:
        told: dict[str, Any] = {"usage": usage} if body.with_usage else {}
        return Completion(object="text_completion", **head, **told, choices=list(some))

    streams = [_TextStream(serving, number) for number in range(len(asked))]
    async with aclosing(choices(serving, asked, body.n or 1, request, streams)) as pieces:
        async for piece in pieces:
            if not isinstance(piece, Usage):
                yield chunk(piece)
            elif body.with_usage:
                yield chunk(usage=piece)


class _TextStream:
    """One of the texts of a stream."""

    def __init__(self, serving: Serving, number: int) -> None:
        self._tokenizer = serving.engine.tokenizer
        self._number = number
        self._offset = 0

    def step(self, event: StepEvent) -> Iterator[Choice]:
        """What a step adds."""
        logprobs = None
        if event.logprobs is not None:
            logprobs = _logprobs(self._tokenizer, event.logprobs, self._offset)
            self._offset += sum(map(len, logprobs.tokens))
        if event.text or event.logprobs:
            yield Choice(index=self._number, text=event.text, logprobs=logprobs, finish_reason=None)

    def end(self, result: GenerationResult) -> Iterator[Choice]:
        """Why it ended."""
        yield Choice(
            index=self._number,
            text="",
            logprobs=None,
            finish_reason=finish_of(result),
            groundspeed=GroundspeedFacts.of(result),
        )


def _all_logprobs(
    tokenizer: PreTrainedTokenizerBase, request: GenerationRequest, result: GenerationResult
) -> Logprobs | None:
    """Those of a whole text, with an echoed prompt's, of whose first token nothing is known."""
    if result.logprobs is None:
        return None
    if result.prompt_logprobs is None:
        return _logprobs(tokenizer, result.logprobs)
    first = request.prompt[0]
    assert isinstance(first, int)
    told = [one for one in result.prompt_logprobs if one is not None]
    rest = _logprobs(tokenizer, [*told, *result.logprobs], len(token_text(tokenizer, first)))
    return Logprobs(
        tokens=[token_text(tokenizer, first), *rest.tokens],
        token_logprobs=[None, *rest.token_logprobs],
        top_logprobs=[None, *rest.top_logprobs],
        text_offset=[0, *rest.text_offset],
    )


def _logprobs(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[TokenLogprob], offset: int = 0
) -> Logprobs:
    """Those of tokens that stand so many characters behind the beginning."""
    texts = [token_text(tokenizer, one.token_id) for one in tokens]
    return Logprobs(
        tokens=texts,
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[{token_text(tokenizer, i): logprob for i, logprob in one.top} for one in tokens],
        text_offset=list(accumulate(map(len, texts), initial=offset))[:-1],
    )
