"""Turns of a conversation become the prompt that the model's chat template makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from groundspeed.errors import InputError, ModelError
from groundspeed.integrations.tools import Tool, tool_instructions, written_calls
from groundspeed.verify.text import check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Turn", "TurnPrompt", "defused", "instructed"]

Turn: TypeAlias = Mapping[str, Any]
"""``role``, ``content``, perhaps ``tool_calls`` (arguments as objects), ``tool_call_id``, ``name``."""


class TurnPrompt:
    """Builds the prompts of one tokenizer.

    A template that has no place for tools gets them as text, in the form that Hermes made common; one that
    insists on turns that alternate, or knows no system message, gets turns joined until it agrees.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take the tokenizer of the target model."""
        self._tokenizer = tokenizer

    def ids(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        instructions: str = "",
        opening: str = "",
    ) -> tuple[int, ...]:
        """The prompt, up to where the answer begins.

        Args:
            turns: Any number in any order.
            tools: That the model may call, in OpenAI's form.
            instructions: For the model, behind those of the system message.
            opening: What the answer begins with; it becomes the end of the prompt.

        Raises:
            InputError: There is no turn.
            ModelError: The model has no chat template, or one that cannot be rendered.
        """
        if not turns:
            raise InputError("there are no messages; give one at least")
        told = [{**turn, "content": self._defused(turn["content"])} for turn in turns]
        for turn in told:
            if "tool_calls" in turn:
                turn["tool_calls"] = [self._defused_call(call) for call in turn["tool_calls"]]
        if not self._knows_tools():
            told = instructed(_as_text(told), self._defused(tool_instructions(tools)) if tools else "")
            tools = ()
        told = instructed(told, self._defused(instructions))
        text = check_text(self._rendered(told, tools) + opening)
        # The template writes the special tokens itself, the first one included.
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _knows_tools(self) -> bool:
        if not self._tokenizer.chat_template:
            raise ModelError(
                "the model's tokenizer has no chat template; complete a text with it (GroundspeedLLM, "
                "/v1/completions), or give the tokenizer a chat_template"
            )
        return "tools" in self._tokenizer.get_chat_template(tools=[{}])

    def _rendered(self, turns: list[dict[str, Any]], tools: Sequence[Tool]) -> str:
        problem: Exception | None = None
        for form in (turns, _joined(turns), _joined(_without_system(turns))):
            try:
                text: str = self._tokenizer.apply_chat_template(
                    form, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
                )
            except Exception as error:  # templates say in an error of their own what they do not take
                problem = problem or error
            else:
                return text
        raise ModelError(
            f"the model's chat template cannot be rendered ({type(problem).__name__}: {problem}); mend it in "
            "the model's folder, or change the messages"
        ) from problem

    def _defused_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = {**call["function"], "arguments": self._defused_all(call["function"]["arguments"])}
        return {**call, "function": function}

    def _defused(self, text: str) -> str:
        return defused(text, self._tokenizer)

    def _defused_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._defused(value)
        if isinstance(value, dict):
            return {key: self._defused_all(item) for key, item in value.items()}
        return [self._defused_all(item) for item in value] if isinstance(value, list) else value


def _as_text(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write calls and their results into the text of the turns."""
    written: list[dict[str, Any]] = []
    for turn in turns:
        content = turn["content"]
        if turn["role"] == "tool":
            written.append({"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"})
            continue
        if calls := turn.get("tool_calls"):
            content = "\n".join(filter(None, [content, written_calls(calls)]))
        written.append({"role": turn["role"], "content": content})
    return written


def instructed(turns: list[dict[str, Any]], instructions: str) -> list[dict[str, Any]]:
    """Put instructions into the system message, or a new one."""
    if not instructions:
        return turns
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": instructions}, *turns]
    return [{**turns[0], "content": f"{turns[0]['content']}\n\n{instructions}"}, *turns[1:]]


def _joined(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours of the same role, for templates whose turns alternate."""
    joined: list[dict[str, Any]] = []
    for turn in turns:
        plain = "tool_calls" not in turn and turn["role"] != "tool"
        if plain and joined and joined[-1]["role"] == turn["role"] and "tool_calls" not in joined[-1]:
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{turn['content']}"}
        else:
            joined.append(turn)
    return joined


def _without_system(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make system messages the user's, and let the user begin."""
    told = [{**turn, "role": "user"} if turn["role"] == "system" else turn for turn in turns]
    return told if told[0]["role"] == "user" else [{"role": "user", "content": ""}, *told]


def defused(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Break up special tokens: a text that spells one out must not be able to end its turn."""
    for token in _special_tokens(tokenizer):
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


@lru_cache(16)
def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    added = tokenizer.added_tokens_decoder.values()
    return tuple(token.content for token in added if token.special and len(token.content) > 1)
