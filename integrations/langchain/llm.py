"""The text model: completes texts, without a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseLLM, LangSmithParams, LanguageModelInput
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from pydantic import PrivateAttr

from groundspeed.integrations.langchain.answers import check_in_time, metadata, usage
from groundspeed.integrations.langchain.documents import documents_of_text
from groundspeed.integrations.langchain.settings import SETTINGS, GroundspeedSettings
from groundspeed.types import Event, GenerationRequest, GenerationResult, StepEvent
from groundspeed.verify.engine import Engine

__all__ = ["GroundspeedLLM"]


class GroundspeedLLM(GroundspeedSettings, BaseLLM):
    """A text model in this process; prompts that come together go through the engine side by side.

    ``draft_documents=[...]`` with a call are drafted from and grounded in; they never change the prompt, and
    no trace or cache key holds them.
    """

    # The base class makes cache keys of a model's own parameters and traces of the arguments of a call. So
    # the settings of a call become those of a copy, and what may be seen nowhere waits here.
    _call: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "groundspeed"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        grammar = self._call.get("grammar")
        return {**self.settings, **({"grammar": repr(grammar)} if grammar is not None else {})}

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        engine = self._engine_for(self.model)
        requests = [self._request_for(prompt, stop) for prompt in prompts]
        return self._result(engine, engine.generate_all(requests))

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        engine = await self._aengine_for(self.model)
        requests = [self._request_for(prompt, stop) for prompt in prompts]
        tasks = [asyncio.ensure_future(engine.agenerate(request)) for request in requests]
        try:
            return self._result(engine, await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one that fails ends the others
                task.cancel()

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        engine = self._engine_for(self.model)
        with engine.stream(self._request_for(prompt, stop)) as events:
            for event in events:
                if (chunk := self._chunk(engine, event)) is not None:
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        engine = await self._aengine_for(self.model)
        async with aclosing(engine.astream(self._request_for(prompt, stop))) as events:
            async for event in events:
                if (chunk := self._chunk(engine, event)) is not None:
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    def _request_for(self, prompt: str, stop: list[str] | None) -> GenerationRequest:
        return self._request(prompt, documents_of_text(prompt), stop, dict(self._call))

    def _result(self, engine: Engine, results: list[GenerationResult]) -> LLMResult:
        generations = [
            [Generation(text=result.text, generation_info=self._info(engine, result))] for result in results
        ]
        return LLMResult(generations=generations, llm_output={"model_name": engine.model_name or self.model})

    def _chunk(self, engine: Engine, event: Event) -> GenerationChunk | None:
        if isinstance(event, StepEvent):
            return GenerationChunk(text=event.text) if event.text else None
        if isinstance(event, GenerationResult):
            return GenerationChunk(text="", generation_info=self._info(engine, event))
        return None

    def _info(self, engine: Engine, result: GenerationResult) -> dict[str, Any]:
        check_in_time(result.finish_reason, result.stats.completion_tokens)
        return {
            **metadata(result, engine, engine.model_name or self.model),
            "usage_metadata": usage(result.stats),
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = "groundspeed"
        return params

    def _for_call(self, call: dict[str, Any]) -> tuple[GroundspeedLLM, dict[str, Any]]:
        """A copy that has the settings of a call, and what of the call is for LangChain."""
        own = {name: call.pop(name) for name in ("model", *SETTINGS) if name in call and name != "stop"}
        langchains = ("tags", "metadata", "run_name", "run_id")
        rest = {name: call.pop(name) for name in langchains if name in call}
        if own.get("model", self.model) != self.model:
            own["shared_engine"] = None
        copy = self.model_copy(update=own)
        copy._call = call
        return copy, rest

    def generate(
        self, prompts: list[str], stop: list[str] | None = None, callbacks: Any = None, **kwargs: Any
    ) -> LLMResult:
        """Complete texts side by side; further arguments are settings and ``draft_documents``."""
        copy, rest = self._for_call(kwargs)
        return super(GroundspeedLLM, copy).generate(prompts, stop, callbacks, **rest)

    async def agenerate(
        self, prompts: list[str], stop: list[str] | None = None, callbacks: Any = None, **kwargs: Any
    ) -> LLMResult:
        """``generate`` for an event loop."""
        copy, rest = self._for_call(kwargs)
        return await super(GroundspeedLLM, copy).agenerate(prompts, stop, callbacks, **rest)

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        """Complete a text bit by bit."""
        copy, _ = self._for_call(kwargs)
        yield from super(GroundspeedLLM, copy).stream(input, config, stop=stop)

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        """``stream`` for an event loop."""
        copy, _ = self._for_call(kwargs)
        async with aclosing(super(GroundspeedLLM, copy).astream(input, config, stop=stop)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece
