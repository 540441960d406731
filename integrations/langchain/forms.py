"""What an answer must look like: a call of a tool, JSON that a schema describes, or either of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.utils.function_calling import convert_to_json_schema

from groundspeed.errors import InputError
from groundspeed.integrations.langchain.tools import CLOSING, OPENING, Tool
from groundspeed.types import Grammar
from groundspeed.verify.grammar import JSON_WHITESPACE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["answer_instructions", "answer_schema", "call_grammar", "call_or_answer_grammar", "closed"]

_ANY_OBJECT = {"type": "object"}

_EITHER = """start: call ("\\n" call)* | body | answer
call: {opening} "\\n" body "\\n" {closing}
body: %json {body}
answer: %json {answer}
"""
"""In llguidance's form of Lark. The bare ``body`` is how models with templates like Llama's call."""


def answer_schema(response_format: Mapping[str, Any] | type | None) -> dict[str, Any] | None:
    """The JSON schema that a ``response_format`` in OpenAI's form asks for; None for free text.

    Objects get no properties but those that the schema names, unless it says ``"strict": False``.

    Args:
        response_format: A dict with the type ``text``, ``json_object`` or ``json_schema``, or a class.

    Raises:
        InputError: Another form.
    """
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": schema, **rest}}:
            form: dict[str, Any] = schema if rest.get("strict") is False else closed(schema)
            return form
        case type():
            form = closed(convert_to_json_schema(response_format))
            return form
    raise InputError(
        f"response_format is {response_format!r}; give a class, or a dict with the type text, json_object or "
        "json_schema as OpenAI's API takes it"
    )


def answer_instructions(schema: Mapping[str, Any]) -> str:
    """What to tell a model about its answer; of one that may be any object there is nothing to tell."""
    if schema == _ANY_OBJECT:
        return ""
    return f"Your answer must be JSON that fits this schema:\n{json.dumps(schema, ensure_ascii=False)}"


def call_grammar(tools: Sequence[Tool]) -> Grammar:
    """An answer that is a call of one of the tools, with arguments as their schemas want them."""
    return Grammar.json_schema(_call_schema(tools))


def call_or_answer_grammar(
    tools: Sequence[Tool], schema: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> Grammar:
    """An answer that is calls of the tools, or JSON that a schema describes.

    Args:
        tools: At least one.
        schema: Of the answer.
        tokenizer: Of the model; where it has tokens for the marks of a call, those must be used.
    """
    tokens = tokenizer.get_added_vocab()
    opening, closing = (mark if mark in tokens else json.dumps(mark) for mark in (OPENING, CLOSING))
    body, answer = (
        json.dumps({"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}, **form})
        for form in (_call_schema(tools), schema)
    )
    return Grammar.lark(_EITHER.format(opening=opening, closing=closing, body=body, answer=answer))


def _call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": closed(
                    tool["function"].get("parameters") or {"type": "object", "properties": {}}
                ),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def closed(schema: Any) -> Any:
    """The schema with objects that have no other properties than they name, unless it says otherwise."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {
        key: value if key in ("const", "enum", "default") else closed(value) for key, value in schema.items()
    }
    if inner.get("type") == "object" and isinstance(inner.get("properties"), dict):
        inner.setdefault("additionalProperties", False)
    return inner
