"""Answers as JSON that a schema describes, by the engine's grammar."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from groundspeed.errors import InputError
from groundspeed.integrations.tools import closed
from groundspeed.types import Grammar

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["grammar_of", "structured_output"]

_METHODS = ("json_schema", "function_calling", "json_mode")


def structured_output(
    model: BaseChatModel,
    schema: dict[str, Any] | type,
    *,
    include_raw: bool = False,
    method: str = "json_schema",
    strict: bool | None = None,
) -> Runnable[Any, Any]:
    """The model bound to a schema, and the parser behind it; see ``ChatGroundspeed.with_structured_output``.

    Raises:
        InputError: An unknown method.
    """
    if method not in _METHODS:
        raise InputError(f"method is {method!r}; it must be one of {', '.join(_METHODS)}")
    wanted: dict[str, Any] = {"type": "json_object"}
    if method != "json_mode":
        form = convert_to_json_schema(schema)
        form = form if strict is False else closed(form)
        wanted = {"type": "json_schema", "json_schema": {"name": form.get("title", "answer"), "schema": form}}
    bound = model.bind(
        response_format=wanted,
        ls_structured_output_format={"kwargs": {"method": method, "strict": strict}, "schema": schema},
    )
    parser: Runnable[Any, Any] = JsonAnswer()
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        parser = PydanticAnswer(pydantic_object=schema)
    if not include_raw:
        return bound | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def grammar_of(response_format: Mapping[str, Any] | None) -> Grammar | None:
    """The grammar for a ``response_format`` in OpenAI's form.

    Raises:
        InputError: Another form.
    """
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar.json_object()
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return Grammar.json_schema(schema)
    raise InputError(
        f"response_format is {response_format!r}; give a dict with the type text, json_object or json_schema "
        "as OpenAI's API takes it"
    )


def _refuse_cut(result: list[Generation]) -> None:
    """An answer that was cut may still be read as JSON, and would miss something unnoticed.

    Raises:
        OutputParserException: Saying why it was cut.
    """
    generation = result[0]
    assert isinstance(generation, ChatGeneration)
    reason = generation.message.response_metadata.get("finish_reason", "stop")
    if reason != "stop":
        remedy = {"length": "raise max_tokens", "timeout": "raise timeout"}.get(reason, "ask again")
        raise OutputParserException(
            f"the answer ends before its JSON is complete, with the finish reason {reason}; {remedy}, or "
            "bound the schema with maxLength and maxItems",
            llm_output=generation.text,
        )


class JsonAnswer(JsonOutputParser):
    """Reads the JSON of an answer, of one that streams the part that is there."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Parse an answer, or what there is of it.

        Raises:
            OutputParserException: The answer was cut.
        """
        _refuse_cut(result)
        return super().parse_result(result, partial=partial)


class PydanticAnswer(PydanticOutputParser[Any]):
    """Reads the JSON of an answer as an object of a Pydantic class."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Parse an answer, or what there is of it.

        Raises:
            OutputParserException: The answer was cut, or the class refuses it.
        """
        _refuse_cut(result)
        return super().parse_result(result, partial=partial)
