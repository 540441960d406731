"""The chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list, run_in_executor
from langchain_core.tools import BaseTool
from langchain_core.utils import secret_from_env
from pydantic import BaseModel, Field, SecretStr, model_validator

from groundspeed.errors import InputError
from groundspeed.integrations.engines import EngineSpec
from groundspeed.integrations.forms import answer_form
from groundspeed.integrations.langchain.answers import ChatAnswer
from groundspeed.integrations.langchain.documents import without_documents
from groundspeed.integrations.langchain.forms import openai_format, openai_tools
from groundspeed.integrations.langchain.messages import turns
from groundspeed.integrations.langchain.remote import RemoteCall, Server, server_at
from groundspeed.integrations.langchain.remote_body import FORM, remote_call, tokenizer_of
from groundspeed.integrations.langchain.settings import GroundspeedSettings
from groundspeed.integrations.langchain.structured import structured_output
from groundspeed.integrations.tools import CLOSING, chosen_tools
from groundspeed.integrations.turns import TurnPrompt
from groundspeed.types import GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from groundspeed.verify.engine import Engine

__all__ = ["ChatGroundspeed"]


_PROFILE: ModelProfile = {
    "text_inputs": True,
    "text_outputs": True,
    "image_inputs": False,
    "audio_inputs": False,
    "video_inputs": False,
    "pdf_inputs": False,
    "tool_calling": True,
    "tool_choice": True,
    "structured_output": True,
}
"""What agents ask: by ``structured_output`` they hand their ``response_format`` on."""

_AT_ONCE = 64
"""Inputs of a batch that are on their way at once, each in a thread that waits for the engine."""


class ChatGroundspeed(GroundspeedSettings, BaseChatModel):
    """A chat model that drafts its answers from the documents of the conversation: here, or at ``base_url``.

    Documents come with a call, ``draft_documents=[...]``, or with messages: in the ``artifact`` of tool
    messages and in ``additional_kwargs["documents"]``. They are drafted from and grounded in; they never
    change the prompt, and no trace or cache key of the model holds those of a call.
    """

    streaming: bool = False
    """Answer ``invoke`` by a stream as well, so that callbacks are told of every piece."""
    base_url: str | None = None
    """Of a server's API, ``http://127.0.0.1:8000/v1``, whose model is asked instead of one in this process:
    ``groundspeed serve``, or vLLM with our proposer."""
    api_key: SecretStr | None = Field(default_factory=secret_from_env("GROUNDSPEED_API_KEY", default=None))
    """Of the server; by default what the environment variable GROUNDSPEED_API_KEY holds, if anything."""
    max_retries: int = 2
    """How often a request is sent again that found the server busy or not there."""
    tokenizer: str | None = None
    """Hub id or folder of the served model's tokenizer, by default ``model``: it turns documents into token
    ids for a vLLM server, and counts tokens."""

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        local = {"shared_engine", *EngineSpec._fields[1:]}
        if self.base_url and (given := sorted(local & self.model_fields_set)):
            raise InputError(
                f"base_url was given, and {', '.join(given)}, which is for a model in this process; give one "
                "or the other"
            )
        return self

    @property
    def _llm_type(self) -> str:
        return "groundspeed-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**self.settings, **({"base_url": self.base_url} if self.base_url else {})}

    @property
    def lc_secrets(self) -> dict[str, str]:
        """What must not be serialised."""
        return {"api_key": "GROUNDSPEED_API_KEY"}

    def _resolve_model_profile(self) -> ModelProfile:
        engine = None if self.base_url else self._engine_at_hand(self.model)
        room = engine.target.context_length if engine is not None else None
        return {**_PROFILE, **({"max_input_tokens": room} if room else {})}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self._server is not None:
            return self._server.generate(self._remote_call(self._server, messages, stop, kwargs))
        engine = self._engine_for(kwargs.pop("model", self.model))
        request, answer = self._prepared(engine, messages, stop, kwargs)
        return answer.result(engine.generate(request))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self._server is not None:
            call = await run_in_executor(None, self._remote_call, self._server, messages, stop, kwargs)
            return await self._server.agenerate(call)
        engine = await self._aengine_for(kwargs.pop("model", self.model))
        request, answer = self._prepared(engine, messages, stop, kwargs)
        return answer.result(await engine.agenerate(request))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        if self._server is not None:
            yield from self._server.stream(self._remote_call(self._server, messages, stop, kwargs))
            return
        engine = self._engine_for(kwargs.pop("model", self.model))
        request, answer = self._prepared(engine, messages, stop, kwargs)
        with engine.stream(request) as events:
            for event in events:
                yield from answer.chunks(event)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self._server is not None:
            call = await run_in_executor(None, self._remote_call, self._server, messages, stop, kwargs)
            async with aclosing(self._server.astream(call)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        engine = await self._aengine_for(kwargs.pop("model", self.model))
        request, answer = self._prepared(engine, messages, stop, kwargs)
        async with aclosing(engine.astream(request)) as events:
            async for event in events:
                for chunk in answer.chunks(event):
                    yield chunk

    def _prepared(
        self, engine: Engine, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> tuple[GenerationRequest, ChatAnswer]:
        """The request of a call, and what turns its events into messages."""
        messages, carried = without_documents(messages)
        form = answer_form(
            openai_tools(call.pop("tools", None)),
            call.pop("tool_choice", None),
            openai_format(call.pop("response_format", None)),
            engine.tokenizer,
        )
        if call.pop("parallel_tool_calls", None) is False and form.tools:
            stop = [*(stop or self.stop or ()), CLOSING]
        if form.grammar is not None:
            call["grammar"] = form.grammar
        prompt = TurnPrompt(engine.tokenizer).ids(
            turns(messages), form.tools, form.instructions, form.opening
        )
        request = self._request(prompt, carried, stop, call)
        answer = ChatAnswer(
            engine,
            engine.model_name or self.model,
            request.passages,
            form.reader(),
            cite=self.output_version == "v1",
        )
        return request, answer

    @property
    def _server(self) -> Server | None:
        """The server whose model is asked, if it is not one in this process."""
        if self.base_url is None:
            return None
        key = self.api_key.get_secret_value() if self.api_key else None
        return server_at(self.base_url, key, self.max_retries)

    def _remote_call(
        self, server: Server, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]
    ) -> RemoteCall:
        """What a server is asked for a call; may ask it for its models, and load a tokenizer."""
        model = call.pop("model", self.model)
        messages, carried = without_documents(messages)
        form = {name: call.pop(name, None) for name in FORM}
        form["tools"] = openai_tools(form["tools"])
        form["response_format"] = openai_format(form["response_format"])
        return remote_call(
            server.served(model),
            turns(messages),
            self._request("", carried, stop, call),
            form,
            tokenizer=self.tokenizer or model,
            cite=self.output_version == "v1",
        )

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
        told = openai_tools(tools, strict)
        if tool_choice is not None:
            chosen_tools(told, tool_choice)
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=told, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Answer with JSON that a schema describes: the model is told it, and can write nothing else.

        Args:
            schema: A Pydantic class, a ``TypedDict``, a JSON schema or a tool in OpenAI's form.
            include_raw: Give a dict with ``raw``, ``parsed`` and ``parsing_error``.
            kwargs: ``method``: with ``json_mode`` the prompt has to tell the model what is wanted, the others
                are the same here; ``strict=False`` lets objects have further properties.

        Raises:
            OutputParserException: From the result, for an answer that ``max_tokens`` cuts.
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
        """Answer several inputs side by side, however few processors there are.

        A ``max_concurrency`` bounds how many; more than the engine takes into a pass gain nothing.
        """
        configs = get_config_list(config, len(inputs))
        for one in configs:
            if one.get("max_concurrency") is None:
                one["max_concurrency"] = _AT_ONCE
        return super().batch(inputs, configs, return_exceptions=return_exceptions, **kwargs)

    def get_num_tokens_from_messages(
        self, messages: list[BaseMessage], tools: Sequence[Any] | None = None
    ) -> int:
        """How many tokens the prompt for the messages has, the chat template's included."""
        return len(TurnPrompt(self._own_tokenizer).ids(turns(messages), openai_tools(tools)))

    @property
    def engine(self) -> Engine:
        """The engine; the first access may load it.

        Raises:
            InputError: The model is a server's.
        """
        if self.base_url:
            raise InputError(f"the model is that of {self.base_url}; there is no engine in this process")
        return super().engine

    @property
    def _own_tokenizer(self) -> PreTrainedTokenizerBase:
        return tokenizer_of(self.tokenizer or self.model) if self.base_url else super()._own_tokenizer

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
