"""What a row of a log says: its prompt, what had been retrieved, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groundspeed.errors import InputError

__all__ = ["LABELS", "Trace", "read_row"]

LABELS = ("type", "config", "model")
"""Fields that say what kind of row it is; figures are given for each kind apart."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded answer as text.

    Attributes:
        id: Unique in its file.
        question: The last turn; answers to the same question are never history of one another.
        prompt: What the model was given: passages, earlier turns and question, joined by blank lines.
        passages: What had been retrieved, best first.
        response: The recorded answer.
        labels: Those of ``LABELS`` that the row has.
    """

    id: str
    question: str
    prompt: str
    passages: tuple[str, ...]
    response: str
    labels: Mapping[str, str] = field(default_factory=dict)


def read_row(row: Mapping[str, Any], where: str) -> Trace:
    """A row of a log.

    Either ``question``, ``response`` and, where there are any, ``passages`` (texts) and ``history`` (objects
    with a ``text``): the prompt is passages, earlier turns and question. Or, as OpenAI's API has it,
    ``messages`` and a ``response``, which is a text or the body of the reply; without one, the last message
    is the answer. The prompt is then the messages alone; ``passages`` may be drafted from as well.

    Args:
        row: The row.
        where: File and line, for messages; the row is called by its line where it has no ``id``.

    Raises:
        InputError: It has another form, or holds half a character.
    """
    passages = row.get("passages", [])
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise InputError(f"{where}: `passages` is {_shown(passages)}; it must be a list of texts")
    name = row.get("id", where.rpartition(", ")[2])
    if not isinstance(name, str | int):
        raise InputError(f"{where}: `id` is {_shown(name)}; it must be a text or a whole number")
    turns, question, response = (_chat if "messages" in row else _question)(row, where)
    prompt = "\n\n".join([*(() if "messages" in row else passages), *turns])
    try:
        "".join([str(name), prompt, response, *passages]).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: half of a character stands alone (\\ud800 to \\udfff); mend the text"
        ) from error
    labels = {label: row[label] for label in LABELS if row.get(label) and isinstance(row[label], str)}
    return Trace(str(name), question, prompt, tuple(passages), response, labels)


def _question(row: Mapping[str, Any], where: str) -> tuple[list[str], str, str]:
    """Turns, the last of them, and the answer."""
    for name in ("question", "response"):
        if not isinstance(row.get(name), str):
            got = _shown(row[name]) if name in row else "missing"
            raise InputError(
                f"{where}: `{name}` is {got}; it must be a text. A row has `question`, `response` and "
                "perhaps `passages`, or `messages` and `response`"
            )
    history = row.get("history") or []
    turns = [turn.get("text") if isinstance(turn, dict) else None for turn in _list(history)]
    if not isinstance(history, list) or None in turns or not all(isinstance(turn, str) for turn in turns):
        raise InputError(
            f"{where}: `history` is {_shown(history)}; it must be a list of objects with a `text`"
        )
    return [*map(str, turns), row["question"]], row["question"], row["response"]


def _chat(row: Mapping[str, Any], where: str) -> tuple[list[str], str, str]:
    turns = [(_role(message), _content(message)) for message in _list(row["messages"])]
    if not turns or any(text is None for _, text in turns):
        raise InputError(
            f"{where}: `messages` is {_shown(row['messages'])}; it must be a list of objects with `role` and "
            "`content`, a text or a list of parts with a `text`"
        )
    if "response" in row:
        response = _reply(row["response"])
    else:
        response = turns.pop()[1] if turns[-1][0] == "assistant" else None
    if response is None:
        raise InputError(
            f"{where}: `response` is {_shown(row['response']) if 'response' in row else 'missing'}; it must "
            "be a text or an object with `choices`, or the last of the messages the assistant's"
        )
    texts = [text for _, text in turns if text]
    asked = [text for role, text in turns if role == "user" and text]
    return texts, (asked or texts or [""])[-1], response


def _reply(response: Any) -> str | None:
    """The answer in what OpenAI's API replied."""
    if isinstance(response, dict):
        choices = _list(response.get("choices"))
        first = choices[0] if choices and isinstance(choices[0], dict) else {}
        return _content(first["message"]) if "message" in first else _text(first.get("text"))
    return _text(response)


def _content(message: Any) -> str | None:
    """The text of a message; one that only calls tools has none, and is empty."""
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", "") if isinstance(part, dict) else None for part in content]
        return "".join(map(str, parts)) if all(isinstance(part, str) for part in parts) else None
    return "" if content is None and message.get("tool_calls") else _text(content)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(value: Any) -> str:
    """A value in an error message, cut short."""
    return f"{json.dumps(value):.60}"
