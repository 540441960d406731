"""A plugin for the ``llm`` command line (https://llm.datasette.io): ``llm -m groundspeed "Say hello"``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import llm
from pydantic import Field

from groundspeed.integrations.engines import EngineSpec, load
from groundspeed.integrations.forms import answer_form
from groundspeed.integrations.turns import Turn, TurnPrompt
from groundspeed.types import GenerationRequest, GenerationResult, Passage, StepEvent

__all__ = ["Groundspeed", "register_models"]


@llm.hookimpl
def register_models(register: Any) -> None:
    """Tell ``llm`` of the model."""
    register(Groundspeed())


class Groundspeed(llm.Model):
    """The embedded model, or one of your own by ``-o model NAME``; fragments are drafted from as well."""

    model_id = "groundspeed"
    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """The settings that ``-o`` takes."""

        model: str | None = Field(default=None, description="A hub id, a folder or a GGUF file")
        max_tokens: int = Field(default=256, description="Longest answer, in tokens")
        temperature: float = Field(default=0.0, description="0 is greedy decoding; above, tokens are drawn")
        top_p: float = Field(default=1.0, description="Draw from the tokens that have this probability")
        seed: int | None = Field(default=None, description="Of the draws")

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """Answer a prompt bit by bit."""
        options = prompt.options
        engine = load(EngineSpec(options.model) if options.model else EngineSpec())
        wanted = {"type": "json_schema", "json_schema": {"schema": prompt.schema}} if prompt.schema else None
        form = answer_form((), None, wanted, engine.tokenizer)
        request = GenerationRequest(
            TurnPrompt(engine.tokenizer).ids(_turns(prompt, conversation), instructions=form.instructions),
            tuple(Passage(f"fragment-{n}", str(text)) for n, text in enumerate(prompt.fragments)),
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            seed=options.seed,
            grammar=form.grammar,
        )
        with engine.stream(request) as events:
            for event in events:
                if isinstance(event, StepEvent):
                    yield event.text
                elif isinstance(event, GenerationResult):
                    stats = event.stats
                    response.set_usage(input=stats.prompt_tokens, output=stats.completion_tokens)
                    response.response_json = {
                        "finish_reason": event.finish_reason,
                        "tokens_per_step": stats.tokens_per_step,
                        "grounding": [asdict(span) for span in event.grounding],
                    }


def _turns(prompt: Any, conversation: Any) -> list[Turn]:
    earlier = getattr(conversation, "responses", ())
    system = prompt.system or next((turn.prompt.system for turn in earlier if turn.prompt.system), None)
    turns: list[Turn] = [{"role": "system", "content": system}] if system else []
    for turn in earlier:
        turns.append({"role": "user", "content": turn.prompt.prompt})
        turns.append({"role": "assistant", "content": turn.text_or_raise()})
    return [*turns, {"role": "user", "content": prompt.prompt}]
