"""What an answer must look like: a call of a tool, JSON that a schema describes, or either of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from groundspeed.errors import InputError
from groundspeed.integrations.tools import CLOSING, OPENING, AnswerReader, CallReader, Tool, chosen_tools
from groundspeed.types import Grammar
from groundspeed.verify.grammar import JSON_WHITESPACE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["AnswerForm", "answer_form", "answer_schema", "closed", "instructions"]

_ANY_OBJECT = {"type": "object"}

_EITHER = """start: call ("\\n" call)* | body | answer
call: {opening} "\\n" body "\\n" {closing}
body: %json {body}
answer: %json {answer}
"""
"""In llguidance's form of Lark. The bare ``body`` is how models with templates like Llama's call."""


class AnswerForm(NamedTuple):
    """What an answer must look like, and how the model gets to know.

    Attributes:
        tools: That the model is told of.
        instructions: For the model, behind those of the system message.
        opening: What the answer begins with; the last of the prompt.
        grammar: That the answer fits; None for free text.
    """

    tools: Sequence[Tool]
    instructions: str
    opening: str
    grammar: Grammar | None

    def reader(self) -> AnswerReader:
        """What tells the answer's text from its calls."""
        names = {tool["function"]["name"] for tool in self.tools}
        return CallReader(names, opened=bool(self.opening)) if names else AnswerReader()


def answer_form(
    tools: Sequence[Tool],
    choice: Any,
    response_format: Mapping[str, Any] | None,
    tokenizer: PreTrainedTokenizerBase,
) -> AnswerForm:
    """Work out the form of an answer; a call that is asked for comes before a ``response_format``.

    Args:
        tools: All there are, in OpenAI's form.
        choice: See ``chosen_tools``.
        response_format: A dict with the type ``text``, ``json_object`` or ``json_schema``. Objects get no
            properties but those that the schema names, unless it says ``"strict": False``.
        tokenizer: Of the model.

    Raises:
        InputError: There is no such tool or format.
    """
    tools, forced = chosen_tools(tools, choice)
    if forced:
        return AnswerForm(tools, "", f"{OPENING}\n", Grammar.json_schema(_call_schema(forced)))
    schema = answer_schema(response_format)
    if schema is None:
        return AnswerForm(tools, "", "", None)
    grammar = _call_or_answer(tools, schema, tokenizer) if tools else Grammar.json_schema(schema)
    return AnswerForm(tools, instructions(schema), "", grammar)


def answer_schema(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The schema that a ``response_format`` holds an answer to; None for free text.

    Raises:
        InputError: There is no such format.
    """
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return _ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": schema, **rest}}:
            form: dict[str, Any] = schema if rest.get("strict") is False else closed(schema)
            return form
    raise InputError(
        f"response_format is {response_format!r}; give a dict with the type text, json_object or json_schema "
        "as OpenAI's API takes it"
    )


def instructions(schema: Mapping[str, Any]) -> str:
    """What to tell a model about its answer; of one that may be any object there is nothing to tell."""
    if schema == _ANY_OBJECT:
        return ""
    return f"Your answer must be JSON that fits this schema:\n{json.dumps(schema, ensure_ascii=False)}"


def _call_or_answer(
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
