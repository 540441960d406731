"""What every request passes through: limits on what it sends and on how slowly, its log line, its count."""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundspeed.integrations.server.errors import ApiError, as_api_error
from groundspeed.integrations.server.metrics import Metrics
from groundspeed.integrations.server.settings import Settings

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

_GONE = 499  # the status under which a client that left is counted, as nginx does


class Gate:
    """An ASGI middleware around the routes; behind it no exception reaches the server."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        """Stand before an application."""
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = _Passage(scope, receive, send, self._settings)
        try:
            await self._app(scope, passage.receive, passage.send)
        except _TakesNothingError:
            pass  # the connection cannot be used any more; that it is not complete ends it
        except Exception as error:
            told = as_api_error(error)
            if told.status_code == 500:
                logger.exception("a request failed", extra={"request": passage.name})
            if not passage.status:
                await JSONResponse(told.body, told.status_code, told.headers)(scope, receive, passage.send)
        finally:
            self._note(passage)

    def _note(self, passage: _Passage) -> None:
        seconds = time.perf_counter() - passage.begun
        status = passage.status if passage.complete else _GONE
        # Never the path that was asked for: it may hold anything.
        route = getattr(passage.scope.get("route"), "path", "none")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        logger.info(
            "request",
            extra={
                "request": passage.name,
                "method": passage.scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                **passage.scope["state"]["noted"],
            },
        )


class _TakesNothingError(Exception):
    """The client takes nothing of its answer."""


class _Passage:
    """One request on its way.

    Attributes:
        name: Its id, in the log and in the header ``x-request-id``.
        begun: When it came, by ``time.perf_counter``.
        status: Of the response, 0 before it has begun.
        complete: Whether the response was sent to its end.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.scope = scope
        self.name = f"req_{uuid4().hex}"
        self.begun = time.perf_counter()
        self.status = 0
        self.complete = False
        self._receive = receive
        self._send = send
        self._settings = settings
        self._bytes = 0
        self._more = True
        scope.setdefault("state", {}).update(begun=self.begun, noted={})

    async def receive(self) -> Message:
        """The next piece of the body, or that the client has left, which may take as long as it likes."""
        if not self._more:
            return await self._receive()
        most = self._settings.body_bytes
        told = Headers(scope=self.scope).get("content-length", "")
        if told.isdecimal() and int(told) > most:
            raise self._too_long(most)
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"nothing of the body came for {self._settings.stall_seconds:g} s; send it again",
                "request_timeout",
                headers={"connection": "close"},
            ) from None
        self._more = message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > most:
            raise self._too_long(most)
        return message

    async def send(self, message: Message) -> None:
        """Send a piece of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.name
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await self._send(message)
        except TimeoutError:
            raise _TakesNothingError from None
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    def _too_long(self, most: int) -> ApiError:
        return ApiError(
            413,
            f"the body is longer than {most:,} bytes, which is all that this server reads; send less, or add "
            "documents to the store in several requests",
            "body_too_long",
            headers={"connection": "close"},
        )
