"""What LangChain's users give for tools and for the form of an answer, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool

from groundspeed.errors import InputError
from groundspeed.integrations.tools import Tool

__all__ = ["openai_format", "openai_tools"]


def openai_tools(tools: Any, strict: bool | None = None) -> list[Tool]:
    """Tools of any kind that LangChain knows, in OpenAI's form; None is none.

    Raises:
        InputError: Something that is no tool, or one that only a provider can run.
    """
    if not isinstance(tools, list | tuple | None):
        raise InputError(f"tools is a {type(tools).__name__}; give a list of tools, functions or classes")
    told: list[Tool] = []
    for tool in tools or ():
        try:
            form = convert_to_openai_tool(tool, strict=strict)
        except (TypeError, ValueError) as error:
            raise InputError(f"the tool {tool!r} cannot be described to the model: {error}") from error
        if "function" not in form:
            raise InputError(
                f"the tool {tool!r} runs at a provider; a model in this process has none of those"
            )
        told.append(form)
    return told


def openai_format(response_format: Mapping[str, Any] | type | None) -> Mapping[str, Any] | None:
    """A ``response_format``, which may be a class."""
    if isinstance(response_format, type):
        return {"type": "json_schema", "json_schema": {"schema": convert_to_json_schema(response_format)}}
    return response_format
