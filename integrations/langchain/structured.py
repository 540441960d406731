"""Answers as JSON that a schema describes, by the engine's grammar."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from groundspeed.errors import InputError
from groundspeed.integrations.forms import closed
from groundspeed.types import Grammar

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["structured_output"]

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
    form = convert_to_json_schema(schema)
    if method == "json_mode":
        wanted: dict[str, Any] = {"grammar": Grammar.json_schema(form if strict is False else closed(form))}
    else:
        named = {"name": form.get("title", "answer"), "schema": form, "strict": strict}
        wanted = {"response_format": {"type": "json_schema", "json_schema": named}}
    bound = model.bind(
        ls_structured_output_format={"kwargs": {"method": method, "strict": strict}, "schema": schema},
        **wanted,
    )
    parser: Runnable[Any, Any] = JsonAnswer()
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        parser = PydanticAnswer(pydantic_object=schema)
    if not include_raw:
        return bound | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _refuse_cut(result: list[Generation]) -> None:
    """An answer that was cut may still be read as JSON, and would miss something unnoticed.

    Raises:
        OutputParserException: Saying why it was cut.
    """
    generation = result[0]
    assert isinstance(generation, ChatGeneration)
    reason = generation.message.response_metadata.get("finish_reason", "stop")
    if reason != "stop":
        raise OutputParserException(
            f"the answer ends before its JSON is complete, with the finish reason {reason}; raise "
            "max_tokens, or bound the schema with maxLength and maxItems",
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
