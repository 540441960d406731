"""LangChain's messages become the turns of a conversation."""

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
from groundspeed.integrations.turns import Turn

__all__ = ["turns"]

_SILENT = {"tool_use", "tool_call", "tool_call_chunk", "function_call", "reasoning", "thinking"}
"""Blocks of an answer that are no text of it: calls stand in ``tool_calls``, thoughts are not repeated."""


def turns(messages: Sequence[BaseMessage]) -> list[Turn]:
    """What ``TurnPrompt`` takes, for any number of messages of any kind, in any order.

    Raises:
        InputError: A message has something else than text, or is of a kind that no template takes.
    """
    return [_turn(message) for message in messages]


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
