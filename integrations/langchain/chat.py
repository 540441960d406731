"""The chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from groundspeed.errors import InputError
from groundspeed.integrations.langchain.answers import ChatAnswer
from groundspeed.integrations.langchain.documents import without_documents
from groundspeed.integrations.langchain.messages import ChatPrompt
from groundspeed.integrations.langchain.settings import GroundspeedSettings
from groundspeed.integrations.langchain.structured import grammar_of, structured_output
from groundspeed.integrations.tools import OPENING, CallReader, chosen_tools, forced_call
from groundspeed.types import GenerationRequest

if TYPE_CHECKING:
    from groundspeed.verify.engine import Engine

__all__ = ["ChatGroundspeed"]


class _Prepared(NamedTuple):
    """A call, ready for the engine."""

    engine: Engine
    request: GenerationRequest
    answer: ChatAnswer


class ChatGroundspeed(GroundspeedSettings, BaseChatModel):
    """A chat model in this process that drafts its answers from the documents of the conversation.

    Documents come with a call, ``draft_documents=[...]``, or with messages: in the ``artifact`` of tool
    messages and in ``additional_kwargs["documents"]``. They are drafted from and grounded in; they never
    change the prompt, and no trace or cache key of the model holds those of a call.
    """

    streaming: bool = False
    """Answer ``invoke`` by a stream as well, so that callbacks are told of every piece."""

    @property
    def _llm_type(self) -> str:
        return "groundspeed-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return self.settings

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        engine = self._engine_for(kwargs.pop("model", self.model))
        call = self._prepare(engine, messages, stop, kwargs)
        return call.answer.result(engine.generate(call.request))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        engine = await self._aengine_for(kwargs.pop("model", self.model))
        call = self._prepare(engine, messages, stop, kwargs)
        return call.answer.result(await engine.agenerate(call.request))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        engine = self._engine_for(kwargs.pop("model", self.model))
        call = self._prepare(engine, messages, stop, kwargs)
        with engine.stream(call.request) as events:
            for event in events:
                yield from call.answer.chunks(event)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        engine = await self._aengine_for(kwargs.pop("model", self.model))
        call = self._prepare(engine, messages, stop, kwargs)
        async with aclosing(engine.astream(call.request)) as events:
            async for event in events:
                for chunk in call.answer.chunks(event):
                    yield chunk

    def _prepare(
        self, engine: Engine, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> _Prepared:
        messages, carried = without_documents(messages)
        documents = [*(call.pop("draft_documents", None) or ()), *carried]
        tools, forced = chosen_tools(call.pop("tools", None) or (), call.pop("tool_choice", None))
        form = grammar_of(call.pop("response_format", None))
        if form is not None and tools:
            raise InputError(
                "tools and a response_format were given; an answer can have one form: leave one out"
            )
        if forced:
            form = forced_call(forced)
        if form is not None:
            call["grammar"] = form
        prompt = ChatPrompt(engine.tokenizer).token_ids(messages, tools, f"{OPENING}\n" if forced else "")
        request = self._request(prompt, documents, stop, call)
        names = {tool["function"]["name"] for tool in tools}
        answer = ChatAnswer(
            engine,
            engine.model_name or self.model,
            request.passages,
            reader=CallReader(names, opened=bool(forced)) if names else None,
            cite=self.output_version == "v1",
        )
        return _Prepared(engine, request, answer)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tell the model of tools.

        Args:
            tools: Tools, functions, Pydantic classes or dicts.
            tool_choice: ``any``, ``required``, True or a tool's name make the answer a call, with arguments
                that fit the tool's schema; ``none`` hides the tools; ``auto`` leaves it to the model.
            strict: As in OpenAI's form of a tool.
            kwargs: Further arguments of the call.
        """
        told = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        if tool_choice is not None:
            chosen_tools(told, tool_choice)
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=told, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Answer with JSON that a schema describes: the grammar of the answer lets nothing else in.

        Args:
            schema: A Pydantic class, a ``TypedDict``, a JSON schema or a tool in OpenAI's form.
            include_raw: Give a dict with ``raw``, ``parsed`` and ``parsing_error``.
            kwargs: ``method``: ``json_mode`` for any JSON object, others are the same here; ``strict=False``
                lets objects have further properties.

        Raises:
            OutputParserException: From the result, for an answer that ``max_tokens`` or a timeout cuts.
        """
        return structured_output(self, schema, include_raw=include_raw, **kwargs)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """Answer several inputs side by side; without a ``max_concurrency`` all at once."""
        configs = get_config_list(config, len(inputs))
        for one in configs:
            if one.get("max_concurrency") is None:
                one["max_concurrency"] = len(inputs)
        return super().batch(inputs, configs, return_exceptions=return_exceptions, **kwargs)

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """How many tokens the prompt for the messages has, the chat template's included."""
        told = [convert_to_openai_tool(tool) for tool in tools or ()]
        return len(ChatPrompt(self.engine.tokenizer).token_ids(messages, told))

    # What follows keeps documents out of traces and cache keys.

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        kwargs.pop("draft_documents", None)
        return super()._get_invocation_params(stop=stop, **kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "groundspeed"
        return params

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        kwargs.pop("draft_documents", None)
        return super()._get_llm_string(stop=stop, **kwargs)

    def _generate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        messages, kwargs = _with_documents_apart(messages, kwargs)
        return super()._generate_with_cache(messages, stop=stop, run_manager=run_manager, **kwargs)

    async def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        messages, kwargs = _with_documents_apart(messages, kwargs)
        return await super()._agenerate_with_cache(messages, stop=stop, run_manager=run_manager, **kwargs)


def _with_documents_apart(
    messages: list[BaseMessage], kwargs: dict[str, Any]
) -> tuple[list[BaseMessage], dict[str, Any]]:
    """The key of a cached answer is made of the messages: documents go beside them."""
    messages, carried = without_documents(messages)
    if carried:
        kwargs["draft_documents"] = [*(kwargs.get("draft_documents") or ()), *carried]
    return messages, kwargs
