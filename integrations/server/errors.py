"""Errors in the form of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from groundspeed.errors import ContextLengthError, GroundspeedError, InputError, ModelError, StoreError

__all__ = ["ApiError", "ErrorReply", "add_error_handlers", "as_api_error", "documented", "invalid"]

logger = logging.getLogger(__name__)

_TOLD = {
    404: "there is nothing at this path; GET /openapi.json says what there is",
    405: "this path does not take this method; the header Allow says which ones it takes",
}
"""What to say where the libraries have a word or two."""

_MOST = 2000  # characters of a message, which may quote what it was given


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(BaseModel):
    """An error, as OpenAI's API gives it."""

    error: ErrorFacts


class ApiError(HTTPException):
    """An error with all that its reply says.

    Attributes:
        facts: The reply's own part.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Make an error; its type follows from the status."""
        super().__init__(status, message, headers)
        # A lone surrogate could not be sent.
        message = message[:_MOST].encode(errors="replace").decode()
        self.facts = ErrorFacts(message=message, type=_type_of(status), param=param, code=code)

    @property
    def body(self) -> dict[str, Any]:
        """The reply's body."""
        return {"error": self.facts.model_dump()}


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """An error of the request itself."""
    return ApiError(400, message, code, param=param)


def as_api_error(error: BaseException) -> ApiError:
    """What to tell a client of an error; only what groundspeed raises on purpose is told word for word."""
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return _of_validation(error)
        case HTTPException():
            told = _TOLD.get(error.status_code, str(error.detail))
            return ApiError(error.status_code, told, headers=error.headers)
        case ContextLengthError():
            return invalid(str(error), code="context_length_exceeded")
        case InputError() | ModelError():
            return invalid(str(error))
        case StoreError():
            return ApiError(503, str(error), "store_unavailable")
        case GroundspeedError():
            return ApiError(503, str(error), "unavailable")
    return ApiError(500, "the server failed at this request; its log says more", "internal_error")


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The statuses of errors for the OpenAPI document of a route, beside those that every route has."""
    every = (400, 401, 408, 413, 429, 500, 503)
    return {status: {"model": ErrorReply} for status in sorted({*every, *statuses})}


def add_error_handlers(app: FastAPI) -> None:
    """Give every error the form of OpenAI's API."""
    for kind in (HTTPException, RequestValidationError, GroundspeedError):
        app.add_exception_handler(kind, _handle)


def _handle(request: Request, error: Exception) -> JSONResponse:
    told = as_api_error(error)
    return JSONResponse(told.body, told.status_code, told.headers)


def _of_validation(error: RequestValidationError) -> ApiError:
    """The first of the errors that pydantic found, with where it is."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "this parameter is unknown here; leave it out (docs/serving.md lists those that there are)"
    elif first["type"] == "json_invalid":
        place, message = "", f"the body is not JSON: {first['ctx']['error']}"
    return invalid(f"{place}: {message}" if place else message, param=place or None)


def _type_of(status: int) -> str:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
