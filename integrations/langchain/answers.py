"""Results of the engine become what LangChain reads: messages, usage, metadata and citations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.content import Citation, create_citation
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from groundspeed.errors import GenerationTimeoutError
from groundspeed.integrations.logprobs import chat_logprobs
from groundspeed.integrations.tools import AnswerReader, Call
from groundspeed.integrations.view.record import stats_as_json
from groundspeed.types import Event, GenerationResult, GenerationStats, GroundedSpan, Passage, StepEvent

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = [
    "ChatAnswer",
    "Ending",
    "answer_metadata",
    "answer_piece",
    "chat_result",
    "check_in_time",
    "citations",
    "last_chunk",
    "metadata",
    "usage",
]


class Ending(NamedTuple):
    """What there is to say of an answer when it is over.

    Attributes:
        metadata: See ``answer_metadata``.
        usage: Tokens, where they were counted.
        citations: For the content.
    """

    metadata: dict[str, Any]
    usage: UsageMetadata | None
    citations: Sequence[Citation]


class ChatAnswer:
    """One answer of a chat model in this process, whole or as it comes."""

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        passages: Sequence[Passage],
        reader: AnswerReader,
        *,
        cite: bool = False,
    ) -> None:
        """Start an answer.

        Args:
            engine: That gives it.
            model_name: What the model is asked for by.
            passages: Of the request.
            reader: Finds the tool calls.
            cite: Put citations into the content.
        """
        self._engine = engine
        self._model_name = model_name
        self._passages = passages
        self._reader = reader
        self._cite = cite
        self._calls = 0

    def chunks(self, event: Event) -> Iterator[ChatGenerationChunk]:
        """What an event of the engine adds to the message; the result brings usage and metadata.

        Raises:
            GenerationTimeoutError: The answer is not whole.
        """
        if isinstance(event, StepEvent):
            yield from map(self._piece, self._reader.push(event.text))
        elif isinstance(event, GenerationResult):
            ending = self._ending(event)
            yield from map(self._piece, self._reader.finish())
            yield last_chunk(ending)

    def result(self, result: GenerationResult) -> ChatResult:
        """The whole answer.

        Raises:
            GenerationTimeoutError: It is not whole.
        """
        return chat_result(self._reader.whole(result.text), self._ending(result))

    def _piece(self, part: str | Call) -> ChatGenerationChunk:
        self._calls += isinstance(part, Call)
        return answer_piece(part, self._calls - 1)

    def _ending(self, result: GenerationResult) -> Ending:
        check_in_time(result.finish_reason, result.stats.completion_tokens)
        cited = citations(result.grounding, self._passages) if self._cite else ()
        return Ending(metadata(result, self._engine, self._model_name), usage(result.stats), cited)


def answer_piece(part: str | Call, index: int) -> ChatGenerationChunk:
    """What a part of an answer adds to the message; ``index`` is that of a call among the calls."""
    if isinstance(part, str):
        return ChatGenerationChunk(message=AIMessageChunk(content=part))
    chunk = tool_call_chunk(name=part.name, args=part.arguments, id=part.id, index=index)
    return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))


def chat_result(parts: Iterable[str | Call], ending: Ending) -> ChatResult:
    """A whole answer."""
    parts = list(parts)
    content: Any = "".join(part for part in parts if isinstance(part, str))
    valid, invalid = [], []
    for call in (part for part in parts if isinstance(part, Call)):
        try:
            valid.append(_parsed(call))
        except ValueError as error:
            invalid.append(
                invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error))
            )
    if ending.citations:
        content = [{"type": "text", "text": content, "annotations": ending.citations}]
    message = AIMessage(
        content=content,
        tool_calls=valid,
        invalid_tool_calls=invalid,
        usage_metadata=ending.usage,
        response_metadata=ending.metadata,
    )
    info = {"finish_reason": ending.metadata["finish_reason"]}
    return ChatResult(
        generations=[ChatGeneration(message=message, generation_info=info)],
        llm_output={"model_name": ending.metadata["model_name"]},
    )


def last_chunk(ending: Ending) -> ChatGenerationChunk:
    """The end of a stream."""
    content: Any = ""
    if ending.citations:
        content = [{"type": "text", "text": "", "annotations": ending.citations}]
    message = AIMessageChunk(
        content=content,
        usage_metadata=ending.usage,
        response_metadata=ending.metadata,
        chunk_position="last",
    )
    info = {"finish_reason": ending.metadata["finish_reason"]}
    return ChatGenerationChunk(message=message, generation_info=info)


def check_in_time(finish_reason: str, tokens: int) -> None:
    """Refuse an answer that a timeout cut: LangChain's retries and fallbacks go by errors.

    Raises:
        GenerationTimeoutError: Saying how far it came.
    """
    if finish_reason == "timeout":
        raise GenerationTimeoutError(
            f"the answer has {tokens} tokens after its timeout and is not whole; raise timeout, lower "
            "max_tokens, or take what comes in time by streaming"
        )


def usage(stats: GenerationStats) -> UsageMetadata:
    """Tokens of prompt and answer; ``cache_read`` counts those of the prompt that were read before."""
    return UsageMetadata(
        input_tokens=stats.prompt_tokens,
        output_tokens=stats.completion_tokens,
        total_tokens=stats.prompt_tokens + stats.completion_tokens,
        input_token_details={"cache_read": stats.cached_tokens},
    )


def metadata(result: GenerationResult, engine: Engine, model_name: str) -> dict[str, Any]:
    """``answer_metadata`` of a result."""
    logprobs = None if result.logprobs is None else chat_logprobs(engine.tokenizer, result.logprobs)
    return answer_metadata(
        model_name,
        result.finish_reason,
        result.grounding,
        statistics=stats_as_json(result.stats),
        stop=result.stop,
        seed=result.seed,
        logprobs=logprobs,
    )


def answer_metadata(
    model_name: str,
    finish_reason: str,
    grounding: Iterable[GroundedSpan],
    *,
    statistics: dict[str, Any] | None = None,
    stop: str | int | None = None,
    seed: int | None = None,
    logprobs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """How an answer came about, in terms that JSON can hold; what is not known is left out."""
    known = {
        "model_name": model_name,
        "model_provider": "groundspeed",
        "finish_reason": finish_reason,
        "speculative_decoding": statistics,
        "grounding": [asdict(span) for span in grounding],
        "stop": stop,
        "seed": seed,
        "logprobs": None if logprobs is None else {"content": logprobs},
    }
    return {name: value for name, value in known.items() if value is not None}


def citations(grounding: Iterable[GroundedSpan], passages: Sequence[Passage]) -> list[Citation]:
    """The spans that an answer copied, as LangChain's citations.

    Offsets of the answer are ``start_index`` and ``end_index``; those of the document, its id and the
    passage's number stand in ``extras``.
    """
    found = []
    for span in grounding:
        facts = passages[span.passage].metadata
        url = next(
            (str(facts[key]) for key in ("url", "source") if str(facts.get(key)).startswith("http")), None
        )
        found.append(
            create_citation(
                url=url,
                title=str(facts["title"]) if facts.get("title") else None,
                start_index=span.start,
                end_index=span.end,
                cited_text=span.text,
                document_id=span.document_id,
                document_start=span.document_start,
                document_end=span.document_end,
                passage=span.passage,
            )
        )
    return found


def _parsed(call: Call) -> ToolCall:
    arguments = json.loads(call.arguments)
    if call.name is None or not isinstance(arguments, dict):
        raise ValueError("it is no JSON object with a name and an object of arguments")
    return tool_call(name=call.name, args=arguments, id=call.id)
