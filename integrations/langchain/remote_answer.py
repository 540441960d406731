"""Answers of a server become what LangChain reads, as those of the engine do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from groundspeed.integrations.langchain.answers import (
    Ending,
    answer_metadata,
    answer_piece,
    chat_result,
    check_in_time,
    citations,
    last_chunk,
)
from groundspeed.integrations.tools import AnswerReader, Call
from groundspeed.types import Passage
from groundspeed.verify.grounding import ground

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.completion_usage import CompletionUsage

__all__ = ["RemoteAnswer"]

_NOT_STATISTICS = {"finish_reason", "stop", "seed", "grounding"}
"""What our server tells of an answer beside its statistics."""


class RemoteAnswer:
    """One answer, whole or as it comes. It is grounded here, so that it is whatever the server can do."""

    def __init__(
        self,
        model: str,
        passages: Sequence[Passage],
        reader: AnswerReader,
        *,
        cite: bool = False,
        one_call: bool = False,
    ) -> None:
        """Start an answer.

        Args:
            model: What the server calls the model.
            passages: Of the request.
            reader: Finds the tool calls that the server has left in the text.
            cite: Put citations into the content.
            one_call: Nothing behind the first call that is found so is wanted.
        """
        self._model = model
        self._passages = passages
        self._reader = reader
        self._cite = cite
        self._one_call = one_call
        self._calls = 0  # that were found in the text
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] | None = None
        self._finish = "stop"
        self._stop: str | int | None = None
        self._facts: dict[str, Any] = {}
        self._usage: CompletionUsage | None = None

    def whole(self, reply: ChatCompletion) -> ChatResult:
        """The whole answer.

        Raises:
            GenerationTimeoutError: It is not whole.
        """
        (choice,) = reply.choices
        self._usage = reply.usage
        self._note(choice)
        parts: list[str | Call] = []
        if choice.message.content:
            self._texts.append(choice.message.content)
            parts += self._wanted(self._reader.whole(choice.message.content))
        for call in choice.message.tool_calls or ():
            if call.type == "function":
                parts.append(Call(call.function.name, call.function.arguments, call.id))
        return chat_result(parts, self._ending())

    def chunks(self, chunk: ChatCompletionChunk) -> Iterator[ChatGenerationChunk]:
        """What a piece of a stream adds to the message."""
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._note(choice)
            if choice.delta.content:
                self._texts.append(choice.delta.content)
                yield from self._pieces(self._reader.push(choice.delta.content))
            for call in choice.delta.tool_calls or ():
                function = call.function
                part = tool_call_chunk(
                    name=function.name if function else None,
                    args=function.arguments if function else None,
                    id=call.id,
                    index=call.index,
                )
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[part]))

    def end(self) -> Iterator[ChatGenerationChunk]:
        """The end of the stream.

        Raises:
            GenerationTimeoutError: The answer is not whole.
        """
        ending = self._ending()
        yield from self._pieces(self._reader.finish())
        yield last_chunk(ending)

    def _pieces(self, parts: Iterable[str | Call]) -> Iterator[ChatGenerationChunk]:
        for part in self._wanted(parts):
            yield answer_piece(part, self._calls - 1)

    def _wanted(self, parts: Iterable[str | Call]) -> Iterator[str | Call]:
        for part in parts:
            if self._one_call and self._calls:
                return
            self._calls += isinstance(part, Call)
            yield part

    def _note(self, choice: Any) -> None:
        """Take in what a choice, or a piece of one, says beside its text."""
        if choice.logprobs is not None and choice.logprobs.content is not None:
            self._logprobs = [*(self._logprobs or ()), *(one.model_dump() for one in choice.logprobs.content)]
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
        self._stop = getattr(choice, "stop_reason", None) or self._stop
        self._facts = getattr(choice, "groundspeed", None) or self._facts

    def _ending(self) -> Ending:
        facts = self._facts
        finish = facts.get("finish_reason") or ("stop" if self._finish == "tool_calls" else self._finish)
        check_in_time(finish, self._usage.completion_tokens if self._usage else 0)
        spans = ground("".join(self._texts), self._passages)
        told = answer_metadata(
            self._model,
            finish,
            spans,
            statistics={name: value for name, value in facts.items() if name not in _NOT_STATISTICS} or None,
            stop=facts.get("stop", self._stop),
            seed=facts.get("seed"),
            logprobs=self._logprobs,
        )
        cited = citations(spans, self._passages) if self._cite else ()
        return Ending(told, _counted(self._usage), cited)


def _counted(usage: CompletionUsage | None) -> UsageMetadata | None:
    """Tokens in LangChain's form."""
    if usage is None:
        return None
    counted = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    if cached is not None:
        counted["input_token_details"] = {"cache_read": cached}
    return counted
