"""Results of the engine become what LangChain reads: messages, usage, metadata and citations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.content import Citation, create_citation
from langchain_core.messages.tool import ToolCall, invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from groundspeed.errors import GenerationTimeoutError
from groundspeed.integrations.logprobs import chat_logprobs
from groundspeed.integrations.tools import AnswerReader, Call
from groundspeed.integrations.view.record import stats_as_json
from groundspeed.types import Event, GenerationResult, GenerationStats, Passage, StepEvent

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = ["ChatAnswer", "check_in_time", "citations", "metadata", "usage"]


class ChatAnswer:
    """One answer of a chat model, whole or as it comes."""

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
            check_in_time(event)
            yield from map(self._piece, self._reader.finish())
            content: Any = ""
            if self._cite and event.grounding:
                content = [{"type": "text", "text": "", "annotations": citations(event, self._passages)}]
            message = AIMessageChunk(
                content=content,
                usage_metadata=usage(event.stats),
                response_metadata=self._metadata(event),
                chunk_position="last",
            )
            yield ChatGenerationChunk(message=message, generation_info={"finish_reason": event.finish_reason})

    def result(self, result: GenerationResult) -> ChatResult:
        """The whole answer.

        Raises:
            GenerationTimeoutError: It is not whole.
        """
        check_in_time(result)
        parts = self._reader.whole(result.text)
        text = "".join(part for part in parts if isinstance(part, str))
        valid, invalid = [], []
        for call in (part for part in parts if isinstance(part, Call)):
            try:
                valid.append(_parsed(call))
            except ValueError as error:
                invalid.append(
                    invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error))
                )
        content: Any = text
        if self._cite and result.grounding:
            content = [{"type": "text", "text": text, "annotations": citations(result, self._passages)}]
        message = AIMessage(
            content=content,
            tool_calls=valid,
            invalid_tool_calls=invalid,
            usage_metadata=usage(result.stats),
            response_metadata=self._metadata(result),
        )
        info = {"finish_reason": result.finish_reason}
        return ChatResult(
            generations=[ChatGeneration(message=message, generation_info=info)],
            llm_output={"model_name": self._model_name},
        )

    def _piece(self, part: str | Call) -> ChatGenerationChunk:
        if isinstance(part, str):
            return ChatGenerationChunk(message=AIMessageChunk(content=part))
        chunk = tool_call_chunk(name=part.name, args=part.arguments, id=part.id, index=self._calls)
        self._calls += 1
        return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))

    def _metadata(self, result: GenerationResult) -> dict[str, Any]:
        return metadata(result, self._engine, self._model_name)


def check_in_time(result: GenerationResult) -> None:
    """Refuse an answer that a timeout cut: LangChain's retries and fallbacks go by errors.

    Raises:
        GenerationTimeoutError: Saying how far it came.
    """
    if result.finish_reason == "timeout":
        raise GenerationTimeoutError(
            f"the answer has {result.stats.completion_tokens} tokens after its timeout and is not whole; "
            "raise timeout, lower max_tokens, or take what comes in time by streaming"
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
    """How the answer came about, in terms that JSON can hold."""
    facts: dict[str, Any] = {
        "model_name": model_name,
        "model_provider": "groundspeed",
        "finish_reason": result.finish_reason,
        "speculative_decoding": stats_as_json(result.stats),
        "grounding": [asdict(span) for span in result.grounding],
    }
    if result.stop is not None:
        facts["stop"] = result.stop
    if result.seed is not None:
        facts["seed"] = result.seed
    if result.logprobs is not None:
        facts["logprobs"] = {"content": chat_logprobs(engine.tokenizer, result.logprobs)}
    return facts


def citations(result: GenerationResult, passages: Sequence[Passage]) -> list[Citation]:
    """The spans that the answer copied, as LangChain's citations.

    Offsets of the answer are ``start_index`` and ``end_index``; those of the document, its id and the
    passage's number stand in ``extras``.
    """
    found = []
    for span in result.grounding:
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
