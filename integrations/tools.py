"""Tools: how the model is told of them, how it is made to call one, and how its calls are read."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

from groundspeed.errors import InputError

__all__ = [
    "CLOSING",
    "OPENING",
    "AnswerReader",
    "Call",
    "CallReader",
    "Tool",
    "chosen_tools",
    "tool_instructions",
    "written_calls",
]

Tool: TypeAlias = Mapping[str, Any]
"""A tool in OpenAI's form: ``{"type": "function", "function": {"name": ..., "parameters": ...}}``."""

OPENING, CLOSING = "<tool_call>", "</tool_call>"

_OPENS = re.compile(rf"\s*({'|'.join(re.escape(OPENING[:n]) for n in range(len(OPENING) - 1, -1, -1))})\Z")
"""The end of a text from which on it may be the white space before a call, and the beginning of one."""

_INSTRUCTIONS = """You may call one or more functions to help the user. The functions are:
<tools>
{tools}
</tools>
To call a function, answer with its name and its arguments as JSON:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>"""


class Call(NamedTuple):
    """A tool call as the model wrote it.

    Attributes:
        name: The tool; None for a call that cannot be read.
        arguments: A JSON object, or what stands there instead.
        id: Made up, as models give none.
    """

    name: str | None
    arguments: str
    id: str


def tool_instructions(tools: Sequence[Tool]) -> str:
    """What to tell a model whose chat template has no place for tools."""
    return _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls in OpenAI's form as the model would have written them."""
    bodies = (
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls
    )
    return "\n".join(f"{OPENING}\n{json.dumps(body, ensure_ascii=False)}\n{CLOSING}" for body in bodies)


def chosen_tools(tools: Sequence[Tool], choice: Any) -> tuple[Sequence[Tool], Sequence[Tool]]:
    """Work out a ``tool_choice``.

    Args:
        tools: All there are.
        choice: None or ``auto`` leave it to the model, ``none`` hides the tools, ``any``, ``required`` or
            True ask for one of them, a name or OpenAI's dict for that one.

    Returns:
        Tools the model is told of, and tools of which one must be called (none: it need not).

    Raises:
        InputError: There is no such tool.
    """
    if isinstance(choice, Mapping):
        choice = choice.get("function", choice).get("name")
    if choice in (None, False, "auto"):
        return tools, ()
    if choice == "none":
        return (), ()
    if choice in (True, "any", "required"):
        forced = tools
    else:
        forced = [tool for tool in tools if tool["function"]["name"] == choice]
    if not forced:
        names = ", ".join(tool["function"]["name"] for tool in tools) or "none"
        raise InputError(f"tool_choice is {choice!r}, and the tools are: {names}; choose one of them")
    return tools, forced


class AnswerReader:
    """Reads an answer while it comes, where there are no tools: all of it is text."""

    def push(self, text: str) -> Iterator[str | Call]:
        """Take in a piece of the answer; what is sure by now."""
        if text:
            yield text

    def finish(self) -> Iterator[str | Call]:
        """The answer is over: what was held back."""
        yield from ()

    def whole(self, text: str) -> list[str | Call]:
        """The parts of an answer that has come at once."""
        return [*self.push(text), *self.finish()]


class CallReader(AnswerReader):
    """Tells an answer's text from its tool calls while it comes.

    A call is a JSON object with ``name`` and ``arguments`` or ``parameters``. One, or a list of them, stands
    between ``<tool_call>`` and ``</tool_call>``, or is the whole answer. What may become a call is held back.
    """

    def __init__(self, names: Collection[str], *, opened: bool = False) -> None:
        """Start an answer.

        Args:
            names: Of the tools.
            opened: Whether the prompt ends with ``<tool_call>``.
        """
        self._names = names
        self._held = ""
        self._inside = opened
        self._begun = opened  # some of the answer has come
        self._after = False  # a call has just ended

    def push(self, text: str) -> Iterator[str | Call]:
        """Take in a piece of the answer; what is sure by now. White space around calls is left out."""
        self._held += text
        while True:
            if self._inside:
                body, found, rest = self._held.partition(CLOSING)
                if not found:
                    return
                yield from _marked(body)
                self._held, self._inside, self._after = rest, False, True
            if self._after:
                self._held = self._held.lstrip()
                self._after = not self._held
            if not self._held or (not self._begun and self._held.lstrip()[:1] in ("", "{", "[")):
                return  # nothing, or all of it may be a call
            self._begun = True
            before, found, rest = self._held.partition(OPENING)
            if found:
                before, self._held, self._inside = before.rstrip(), rest, True
            else:
                sure = _OPENS.sub("", before, count=1)
                before, self._held = sure, before[len(sure) :]
            if before:
                yield before
            if not found:
                return

    def finish(self) -> Iterator[str | Call]:
        """The answer is over: what was held back."""
        held, self._held = self._held, ""
        if self._inside:
            if held.strip():
                yield from _marked(held)
        elif not self._begun and (calls := self._bare(held)):
            yield from calls
        elif held:
            yield held

    def _bare(self, text: str) -> list[Call]:
        calls = _calls_in(text)
        return calls if all(call.name in self._names for call in calls) else []


def _marked(body: str) -> list[Call]:
    """What stands between the marks of a call: one, or a list of them."""
    return _calls_in(body) or [Call(None, body.strip(), _new_id())]


def _calls_in(text: str) -> list[Call]:
    """The calls of a JSON text; none where any of it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_read(item) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if None not in calls else []


def _read(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    value = value.get("function", value)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
    return Call(value["name"], arguments, _new_id())


def _new_id() -> str:
    return f"call_{uuid4().hex[:24]}"
