"""Messages become the prompt that the model's chat template makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from groundspeed.errors import InputError, ModelError
from groundspeed.integrations.langchain.tools import Tool, tool_instructions, written_calls
from groundspeed.integrations.prompts import defused
from groundspeed.verify.text import check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatPrompt"]

_SILENT = {"tool_use", "tool_call", "tool_call_chunk", "function_call", "reasoning", "thinking"}
"""Blocks of an answer that are no text of it: calls stand in ``tool_calls``, thoughts are not repeated."""


class ChatPrompt:
    """Builds the prompts of one tokenizer.

    A template that has no place for tools gets them as text, in the form that Hermes made common; one that
    insists on turns that alternate, or knows no system message, gets messages joined until it agrees.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take the tokenizer of the target model."""
        self._tokenizer = tokenizer

    def token_ids(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[Tool] = (),
        instructions: str = "",
        opening: str = "",
    ) -> tuple[int, ...]:
        """The prompt, up to where the answer begins.

        Args:
            messages: Any number of any kind, in any order.
            tools: That the model may call, in OpenAI's form.
            instructions: For the model, behind those of the system message.
            opening: What the answer begins with; it becomes the end of the prompt.

        Raises:
            InputError: No message, or one with something else than text.
            ModelError: The model has no chat template, or one that cannot be rendered.
        """
        if not messages:
            raise InputError("there are no messages; give one at least")
        turns = [self._turn(message) for message in messages]
        if not self._knows_tools():
            turns = _instructed(_as_text(turns), self._defused(tool_instructions(tools)) if tools else "")
            tools = ()
        turns = _instructed(turns, self._defused(instructions))
        text = check_text(self._rendered(turns, tools) + opening)
        # The template writes the special tokens itself, the first one included.
        return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _knows_tools(self) -> bool:
        if not self._tokenizer.chat_template:
            raise ModelError(
                "the model's tokenizer has no chat template; use GroundspeedLLM to complete a text with it, "
                "or give the tokenizer a chat_template"
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
            f"the model's chat template cannot be rendered ({type(problem).__name__}: {problem}); mend it, "
            "or change the messages"
        ) from problem

    def _turn(self, message: BaseMessage) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": _role(message), "content": self._defused(_text(message))}
        if isinstance(message, AIMessage) and message.tool_calls:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": call["id"],
                    "function": {"name": call["name"], "arguments": self._defused_all(call["args"])},
                }
                for call in message.tool_calls
            ]
        if isinstance(message, ToolMessage):
            turn["tool_call_id"] = message.tool_call_id
            turn["name"] = message.name or ""
        return turn

    def _defused(self, text: str) -> str:
        return defused(text, self._tokenizer)

    def _defused_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._defused(value)
        if isinstance(value, dict):
            return {key: self._defused_all(item) for key, item in value.items()}
        return [self._defused_all(item) for item in value] if isinstance(value, list) else value


def _role(message: BaseMessage) -> str:
    match message:
        case SystemMessage():
            return "system"
        case HumanMessage():
            return "user"
        case AIMessage():
            return "assistant"
        case ToolMessage() | FunctionMessage():
            return "tool"
        case ChatMessage():
            return message.role
    raise InputError(f"a message of the type {message.type!r} was given, which no chat template takes")


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts: list[str] = []
    for block in message.content:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block.get("text"), str):
            parts.append(block["text"])
        elif block.get("type") in ("json", "tool_result"):
            parts.append(json.dumps(block.get("json", block.get("content")), ensure_ascii=False))
        elif block.get("type") not in _SILENT:
            raise InputError(
                f"a message holds a block of the type {block.get('type')!r}; the model reads text only: "
                "leave it out, or put its text in"
            )
    return "".join(parts)


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


def _instructed(turns: list[dict[str, Any]], instructions: str) -> list[dict[str, Any]]:
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
