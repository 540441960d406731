"""Whether the server lives, whether it takes requests, and its figures. None of it asks for a key."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from groundspeed.integrations.server.errors import ApiError, ErrorReply
from groundspeed.integrations.server.serving import Serving, ServingOf

__all__ = ["router"]

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """The server lives."""

    status: str = "ok"


@router.get("/health", responses={503: {"model": ErrorReply}})
async def health(serving: ServingOf) -> Health:
    """Say whether the server lives; one whose engine answers no more has to be started anew."""
    _check_engine(serving)
    return Health()


@router.get("/ready", responses={429: {"model": ErrorReply}, 503: {"model": ErrorReply}})
async def ready(serving: ServingOf) -> Health:
    """Say whether the server takes requests: not while it shuts down, nor while its queue is full."""
    _check_engine(serving)
    serving.admission.check()
    return Health()


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(serving: ServingOf) -> Response:
    """Give the figures in Prometheus' text format."""
    return Response(serving.metrics.page(), media_type=CONTENT_TYPE_LATEST)


def _check_engine(serving: Serving) -> None:
    if fault := serving.engine.fault:
        raise ApiError(503, f"{fault}; start the server anew", "engine_failed")
