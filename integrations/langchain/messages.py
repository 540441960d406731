"""Messages become the prompt that the model's chat template makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from groundspeed.errors import InputError
from groundspeed.integrations.tools import Tool
from groundspeed.integrations.turns import Turn, TurnPrompt

__all__ = ["ChatPrompt"]

_SILENT = {"tool_use", "tool_call", "tool_call_chunk", "function_call", "reasoning", "thinking"}
"""Blocks of an answer that are no text of it: calls stand in ``tool_calls``, thoughts are not repeated."""


class ChatPrompt(TurnPrompt):
    """Builds the prompts of one tokenizer from messages."""

    def token_ids(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[Tool] = (),
        instructions: str = "",
        opening: str = "",
    ) -> tuple[int, ...]:
        """The prompt of ``TurnPrompt.ids``; ``messages`` are any number of any kind, in any order.

        Raises:
            InputError: No message, or one with something else than text.
            ModelError: As ``TurnPrompt.ids``.
        """
        return self.ids([_turn(message) for message in messages], tools, instructions, opening)


def _turn(message: BaseMessage) -> Turn:
    turn: dict[str, Any] = {"role": _role(message), "content": _text(message)}
    if isinstance(message, AIMessage) and message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": call["id"],
                "function": {"name": call["name"], "arguments": call["args"]},
            }
            for call in message.tool_calls
        ]
    if isinstance(message, ToolMessage):
        turn["tool_call_id"] = message.tool_call_id
        turn["name"] = message.name or ""
    return turn


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
