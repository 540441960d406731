"""The body of ``/v1/chat/completions``."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from groundspeed.integrations.server.sampling import OpenAIBody, TextPart, joined
from groundspeed.integrations.turns import Turn

__all__ = ["ChatBody"]

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Lenient(BaseModel):
    """Parts of a body that clients send back as they got them, with whatever else was in them."""

    model_config = ConfigDict(extra="ignore")


class CalledFunction(_Lenient):
    """What a tool call called."""

    name: str
    arguments: str


class ToolCall(_Lenient):
    """A call in an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Lenient):
    """A message; of its fields those that the model cannot read are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def turn(self) -> Turn:
        """The message as chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        turn: dict[str, Any] = {"role": role, "content": joined(self.content)}
        if self.tool_calls:
            turn["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {"name": call.function.name, "arguments": _read(call.function.arguments)},
                }
                for call in self.tool_calls
            ]
        if self.role == "tool":
            turn["tool_call_id"] = self.tool_call_id or ""
            turn["name"] = self.name or ""
        return turn


class Function(_Lenient):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Lenient):
    """A tool."""

    type: Literal["function"]
    function: Function


class NamedFunction(_Lenient):
    """The name of a function."""

    name: ToolName


class NamedTool(_Lenient):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(_Lenient):
    """A schema with a name."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFormat(_Lenient):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(_Lenient):
    """A JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(_Lenient):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat: TypeAlias = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class ChatBody(OpenAIBody):
    """A conversation to go on with.

    Fields of OpenAI's API that ask for nothing here are taken and ignored; all others that are not listed are
    refused.
    """

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="False ends the answer with its first call.")

    metadata: dict[str, Any] | None = Field(None, description="Ignored.")
    store: bool | None = Field(None, description="Ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored: prompts that begin alike are found.")

    def given_tools(self) -> list[dict[str, Any]]:
        """The tools, as ``answer_form`` takes them."""
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def choice(self) -> Any:
        """The choice of one, likewise."""
        return self.tool_choice.model_dump() if isinstance(self.tool_choice, NamedTool) else self.tool_choice

    def form(self) -> dict[str, Any] | None:
        """The format of the answer, likewise."""
        return self.response_format.model_dump(by_alias=True) if self.response_format else None

    @property
    def answer_tokens(self) -> int | None:
        """Length of the answer, under either of its names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
