"""An application runs: on a port, until it is told to stop, with a log of one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from groundspeed.integrations.server.errors import invalid

if TYPE_CHECKING:
    from asyncio import Transport

    from fastapi import FastAPI

__all__ = ["JsonLines", "make_server", "write_log"]

_CONNECTIONS = 1000
"""More are turned away with a 503 as they ask; each takes a file descriptor."""

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}


class _Protocol(H11Protocol):
    """HTTP, with a bound on the time that a request's head may take, and its errors in OpenAI's form."""

    head_seconds = 30.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(
            invalid(f"{msg} Send a whole and shorter head, in the form of HTTP/1.1.").body
        ).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        before = self.cycle

        def give_up() -> None:
            if self.cycle is before and not self.transport.is_closing():
                self.transport.close()

        self.loop.call_later(self.head_seconds, give_up)


class _Server(uvicorn.Server):
    """Tells the application at once that it is going to end, so that it takes no more requests."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app: Any = self.config.app
        app.state.serving.admission.leaving = True
        super().handle_exit(sig, frame)


def make_server(app: FastAPI, host: str, port: int, drain_seconds: float) -> uvicorn.Server:
    """What serves an application; ``run`` blocks until a signal, then lets running answers finish.

    Args:
        app: Of ``create_app``.
        host: Address to listen on.
        port: 0 takes a free one.
        drain_seconds: For which running answers may go on after the signal; then they are ended.
    """
    stall = app.state.serving.settings.stall_seconds
    return _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=type("Protocol", (_Protocol,), {"head_seconds": stall}),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=int(drain_seconds),
        )
    )


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def __init__(self, *, with_messages: bool) -> None:
        """Choose how much of an exception is told.

        Args:
            with_messages: Its message too, which may quote a prompt; otherwise its kind and where it came up.
        """
        super().__init__()
        self._with_messages = with_messages

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info and record.exc_info[0]:
            kind, error, trace = record.exc_info
            line["error"] = f"{kind.__name__}: {error}" if self._with_messages else kind.__name__
            line["trace"] = "".join(traceback.format_tb(trace))
        return json.dumps(line, ensure_ascii=True, default=str)


def write_log(*, log_prompts: bool) -> None:
    """Write what the server and its libraries note to standard error, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(with_messages=log_prompts))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("groundspeed", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
