"""Server-sent events as OpenAI's clients read them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from groundspeed.integrations.server.errors import as_api_error

__all__ = ["EventStreamResponse", "event_stream", "streamed"]

logger = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"


class EventStreamResponse(StreamingResponse):
    """A response of the type ``text/event-stream`` that no proxy should keep back."""

    media_type = "text/event-stream"


def event_stream(items: AsyncGenerator[BaseModel | dict[str, Any]]) -> EventStreamResponse:
    """Send items as they come, each as one event, and at last ``[DONE]``.

    An error ends the stream with an event that holds it, without ``[DONE]``. When the client leaves, the
    generator is closed: what it has begun it must end in ``finally``.

    Args:
        items: Models, of which the fields that were set are sent, or dicts.
    """
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return EventStreamResponse(_encoded(items), headers=headers)


def streamed(item: type[BaseModel]) -> dict[str, Any]:
    """What ``responses`` of a route says under 200, if beside its plain reply it has a stream of items."""
    data = {"type": "string", "description": f"JSON of a {item.__name__}, and `[DONE]` at last."}
    event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {"content": {"text/event-stream": {"itemSchema": event}}}


async def _encoded(items: AsyncGenerator[BaseModel | dict[str, Any]]) -> AsyncGenerator[bytes]:
    async with aclosing(items):
        try:
            async for item in items:
                yield _event(item)
        except Exception as error:
            told = as_api_error(error)
            if told.status_code == 500:
                logger.exception("an answer failed after it had begun")
            yield _event(told.body)
            return
    yield _DONE


def _event(item: BaseModel | dict[str, Any]) -> bytes:
    if isinstance(item, BaseModel):
        text = item.model_dump_json(exclude_unset=True)
    else:
        text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
